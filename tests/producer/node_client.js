// What the Node SDK of Couchbase is tried with: node node_client.js CONNECTION_STRING.
const assert = require("node:assert");
const couchbase = require("couchbase");

async function run(source) {
  const access = { username: "me", password: "password" };
  const cluster = await couchbase.connect(source, access);
  const bucket = cluster.bucket("default");
  const documents = bucket.defaultCollection();

  await documents.upsert("k", { n: 1 });
  assert.deepEqual((await documents.get("k")).content, { n: 1 });
  const locked = await documents.getAndLock("k", 10);
  await documents.unlock("k", locked.cas);
  const spec = couchbase.MutateInSpec.upsert("a.b", 2, { createPath: true });
  await documents.mutateIn("k", [spec]);
  const found = await documents.lookupIn("k", [couchbase.LookupInSpec.get("a.b")]);
  assert.equal(found.content[0].value, 2);
  await documents.upsert("d", 1, { durabilityLevel: couchbase.DurabilityLevel.Majority });

  const collections = bucket.collections();
  await collections.createScope("s");
  await collections.createCollection("c", "s");
  await bucket.scope("s").collection("c").upsert("x", 5);
  const scopes = (await collections.getAllScopes()).map((scope) => scope.name);
  assert.deepEqual(scopes, ["_default", "s"]);
  await collections.dropScope("s");

  const buckets = cluster.buckets();
  await buckets.createBucket({ name: "two", ramQuotaMB: 100, numReplicas: 0 });
  assert.equal((await buckets.getBucket("two")).ramQuotaMB, 100);
  await buckets.dropBucket("two");

  await cluster.transactions().run(async (attempt) => {
    await attempt.replace(await attempt.get(documents, "k"), { n: 2 });
    await attempt.insert(documents, "new", {});
  });
  assert.deepEqual((await documents.get("k")).content, { n: 2 });
  assert.ok((await documents.exists("new")).exists);
  await cluster.close();
}

run(process.argv[2]).then(
  () => console.log("done"),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);

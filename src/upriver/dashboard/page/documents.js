// Collections with their counts, and a look at one document and its versions.

import { byId, clock, count, day, fold, make, plural, say, size, sync } from "./dom.js";

const nameOf = ({ scope, name }) => `${scope}.${name}`;

export function showCollections(bucket) {
  const { collections } = bucket;
  const onlyDefault = bucket.collection_count === 1;
  fold(byId("collections-card"), onlyDefault);
  say(byId("collections-count"), onlyDefault ? "only the default one" : plural(bucket.collection_count, "collection"));
  sync(byId("collections"), onlyDefault ? [] : collections, nameOf,
    (one) => make("tr", {}, make("td", {}, one.scope), make("td", {}, one.name), make("td")),
    (row, { items }) => say(row.lastChild, items === null ? "counting" : count(items)));
  sync(byId("document-collection"), collections, nameOf,
    (one) => make("option", { value: nameOf(one) }, nameOf(one)), () => {});
  byId("document-collection-choice").hidden = onlyDefault;
}

function fact(name, text) {
  return [make("dt", {}, name), make("dd", {}, text)];
}

function pretty(value) {
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}

function makeVersion(version, at) {
  const when = `${day(version.time)} ${clock(version.time)}`;
  const facts = make("dl", {},
    ...fact("Written", when), ...fact("Seqno", count(version.seqno)), ...fact("Revision", count(version.rev)),
    ...fact("CAS", version.cas), ...fact("Flags", count(version.flags)),
    ...fact("Expires", version.expiry ? `${day(version.expiry)} ${clock(version.expiry)}` : "never"),
    ...fact("Size", size(version.size)));
  const parts = [facts];
  for (const [name, text] of Object.entries(version.xattrs)) {
    parts.push(make("h3", {}, `Attribute ${name}`), make("pre", {}, text));
  }
  if (version.op === "mutation") {
    const shown = version.value === null ? "These bytes are not text." : pretty(version.value);
    parts.push(make("h3", {}, "Value"), make("pre", {}, shown));
    if (version.value !== null && version.value.length < version.size - 4) {
      parts.push(make("p", { class: "quiet" }, "Only the beginning is shown."));
    }
  }
  const title = make("summary", {},
    make("span", { class: "badge", "data-kind": version.op }, at ? version.op : `${version.op}, newest`), ` ${when}`);
  const element = make("details", {}, title, ...parts);
  element.open = at === 0;
  return make("li", {}, element);
}

/** `ask` fetches a path, `bucket` returns the name of the bucket that is shown. */
export function offerDocuments(ask, bucket) {
  byId("document-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const key = byId("document-key").value;
    if (!key) return;
    const asked = new URLSearchParams({ bucket: bucket(), collection: byId("document-collection").value || "_default._default", key });
    try {
      const found = await ask(`document.json?${asked}`);
      say(byId("document-note"), `vbucket ${found.vbucket}, ${plural(found.versions.length, "version")} kept`);
      byId("versions").replaceChildren(...found.versions.map(makeVersion));
    } catch (problem) {
      say(byId("document-note"), problem.message);
      byId("versions").replaceChildren();
    }
  });
}

// Asks for the figures once a second and hands them to the parts of the page.

import { CurveChart } from "./charts.js";
import { byId, count, describe, duration, make, say, size } from "./dom.js";
import { showConnections, showEvents, showPipelines } from "./tables.js";
import { Detail, VBucketMap } from "./vbuckets.js";

const EVERY = 1000;
const CHARTS = [
  ["writes", new CurveChart("Writes", "/s", "writes")],
  ["reads", new CurveChart("Reads", "/s", "reads")],
  ["messages", new CurveChart("Streamed", "changes/s", "streamed")],
  ["lag", new CurveChart("Readers behind", "changes", "lag")],
];
byId("charts").append(...CHARTS.map(([, chart]) => chart.element));

const detail = new Detail();
const map = new VBucketMap((vbucket) => {
  say(byId("announcer"), vbucket === null ? "No vbucket chosen" : `Vbucket ${vbucket} chosen`);
  showDetail();
});
let bucketName = null;
let asked = 0;

async function fetched(path) {
  const answer = await fetch(path, { cache: "no-store", credentials: "omit" });
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

async function showDetail() {
  asked += 1;
  const question = asked;
  const vbucket = map.chosen;
  if (vbucket === null) {
    detail.clear();
    return;
  }
  try {
    const found = await fetched(`vbucket.json?bucket=${encodeURIComponent(bucketName)}&vbucket=${vbucket}`);
    if (question === asked) detail.show(found);
  } catch (problem) {
    if (question === asked) detail.fail(vbucket, problem.message);
  }
}

function showBuckets(buckets) {
  const choice = byId("bucket");
  const names = buckets.map(({ name }) => name);
  if (!names.includes(bucketName)) bucketName = names[0] ?? null;
  if ([...choice.options].map(({ value }) => value).join("\n") !== names.join("\n")) {
    choice.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    choice.value = bucketName;
  }
  byId("bucket-choice").hidden = names.length < 2;
}

function choose(bucket, vbucket) {
  if (bucket !== bucketName) {
    bucketName = bucket;
    byId("bucket").value = bucket;
  }
  map.pick(vbucket);
  byId("detail").scrollIntoView({ block: "nearest" });
}

function showServer(seen) {
  const { server, history, events } = seen;
  byId("server").hidden = server === null;
  byId("connections-card").hidden = server === null;
  if (server === null) return;
  showBuckets(server.buckets);
  const marks = events.filter(({ kind }) => kind !== "state");
  for (const [name, chart] of CHARTS) chart.update(history.time, history[name], seen.time, marks);
  const bucket = server.buckets.find(({ name }) => name === bucketName);
  if (bucket) {
    describe(byId("totals"), [
      ["Documents", count(bucket.items)],
      ["Deletions kept", count(bucket.tombstones)],
      ["History", size(bucket.history_bytes)],
      ["On disk", size(bucket.disk_bytes)],
      ["Backfills", count(bucket.backfills)],
      ["Rollbacks", count(server.rollbacks)],
      ["Sent", size(server.bytes)],
      ["Up for", duration(seen.time - server.started)],
    ]);
    map.update(bucket.vbuckets);
  }
  showConnections(server, bucketName);
  if (map.chosen !== null) showDetail();
}

function tell(state, text) {
  const status = byId("status");
  if (status.dataset.state !== state) status.dataset.state = state;
  say(status, text);
}

async function look() {
  try {
    const seen = await fetched("stats.json");
    if (seen.problem === null) tell("live", "live");
    else tell("lost", seen.problem);
    showServer(seen);
    showPipelines(seen.pipelines, seen.time);
    showEvents(seen.events, choose);
    byId("main").hidden = false; // only now, so that nothing moves
  } catch (problem) {
    tell("lost", "no answer; trying again");
  }
}

async function run() {
  for (;;) {
    if (!document.hidden) await look();
    await new Promise((resume) => {
      setTimeout(resume, EVERY);
    });
  }
}

const THEMES = [
  ["auto", "Auto", "Colours: as the system has them"],
  ["light", "Light", "Colours: light"],
  ["dark", "Dark", "Colours: dark"],
];

function showTheme(name) {
  const [theme, text, label] = THEMES.find(([one]) => one === name) ?? THEMES[0];
  const button = byId("theme");
  document.documentElement.dataset.theme = theme;
  button.dataset.theme = theme;
  say(button, text);
  button.setAttribute("aria-label", label);
}

byId("theme").addEventListener("click", () => {
  const at = THEMES.findIndex(([one]) => one === byId("theme").dataset.theme);
  const [next] = THEMES[(at + 1) % THEMES.length];
  localStorage.setItem("theme", next);
  showTheme(next);
});
byId("bucket").addEventListener("change", () => {
  bucketName = byId("bucket").value;
  map.pick(null);
  look();
});
showTheme(localStorage.getItem("theme"));
run();

// Asks for the figures once a second and hands them to the parts of the page.

import { CurveChart } from "./charts.js";
import { offerDocuments, showCollections } from "./documents.js";
import { brief, byId, count, describe, duration, make, say, share, size } from "./dom.js";
import { LagChart } from "./lags.js";
import { SignInNeeded, offerSignIn, showSignIn } from "./sign-in.js";
import { showConnections, showEvents, showPipelines } from "./tables.js";
import { Detail, VBucketMap } from "./vbuckets.js";

const EVERY = 1000;
const HOUR_EVERY = 5000;
const PERCENTILES = { least: 0.001, format: duration, labels: ["p99", "p50"] };
const CHARTS = [
  new CurveChart({ title: "Writes", unit: "/s", tint: "writes", columns: ["writes"] }),
  new CurveChart({ title: "Reads", unit: "/s", tint: "reads", columns: ["reads"] }),
  new CurveChart({ title: "Streamed", unit: "changes/s", tint: "streamed", columns: ["messages"] }),
  new CurveChart({ title: "Processor", tint: "lag", columns: ["cpu"], least: 0.1, format: share }),
  new CurveChart({ title: "Requests", tint: "reads", columns: ["request_p99", "request_p50"], empty: "no request", ...PERCENTILES }),
  new CurveChart({ title: "Write to delivery", tint: "streamed", columns: ["delivery_p99", "delivery_p50"], empty: "no delivery", ...PERCENTILES }),
  new CurveChart({ title: "Memory", tint: "writes", columns: ["memory"], least: 1048576, format: size }),
  new CurveChart({ title: "Disk", tint: "lag", columns: ["disk"], least: 1024, format: size }),
];
byId("charts").append(...CHARTS.map((chart) => chart.element));

const lags = new LagChart();
const detail = new Detail();
const map = new VBucketMap((vbucket) => {
  say(byId("announcer"), vbucket === null ? "No vbucket chosen" : `Vbucket ${vbucket} chosen`);
  showDetail();
});
let bucketName = null;
let asked = 0;
let range = 300;
let hour = null;
let hourAt = 0;

async function fetched(path) {
  const answer = await fetch(path, { cache: "no-store", credentials: "same-origin" });
  const content = await answer.json();
  if (answer.status === 401) throw new SignInNeeded(content.error);
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

function showBuckets({ buckets, address, software }) {
  const choice = byId("bucket");
  const names = buckets.map(({ name }) => name);
  if (!names.includes(bucketName)) bucketName = names[0] ?? null;
  if ([...choice.options].map(({ value }) => value).join("\n") !== names.join("\n")) {
    choice.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    choice.value = bucketName;
  }
  byId("bucket-choice").hidden = names.length < 2;
  say(byId("address"), bucketName === null ? address : `${address}/${bucketName}`);
  say(byId("version"), software);
}

function choose(bucket, vbucket) {
  if (bucket !== bucketName) {
    bucketName = bucket;
    byId("bucket").value = bucket;
  }
  map.pick(vbucket);
  byId("detail").scrollIntoView({ block: "nearest" });
}

async function historyOf(seen) {
  if (range <= 300) return seen.history;
  if (hour === null || Date.now() - hourAt >= HOUR_EVERY) {
    hour = await fetched("history.json");
    hourAt = Date.now();
  }
  return hour;
}

function showServer(seen, history) {
  const { server, events } = seen;
  byId("server").hidden = server === null;
  byId("connections-card").hidden = server === null;
  byId("sign-out").hidden = !server?.has_users;
  const marks = events.filter(({ kind }) => kind !== "state");
  byId("range").hidden = server === null && !history.lags.length;
  byId("lags-card").hidden = server === null && !history.lags.length;
  lags.update(history, seen.time, range, marks);
  if (server === null) return;
  showBuckets(server);
  for (const chart of CHARTS) chart.update(history, seen.time, range, marks);
  const bucket = server.buckets.find(({ name }) => name === bucketName);
  byId("bucket-panels").hidden = !bucket;
  if (bucket) {
    describe(byId("totals"), [
      ["Documents", count(bucket.items)],
      ["Deletions kept", count(bucket.tombstones)],
      ["History", size(bucket.history_bytes)],
      ["On disk", size(bucket.disk_bytes)],
      ["Disk free", size(server.disk_free)],
      ["Backfills", count(bucket.backfills)],
      ["Rollbacks", brief(server.rollbacks)],
      ["Up for", duration(seen.time - server.started)],
    ]);
    map.update(bucket.vbuckets);
    showCollections(bucket);
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
    const history = await historyOf(seen);
    showSignIn(false);
    if (seen.problem === null) tell("live", "live");
    else tell("lost", seen.problem);
    showServer(seen, history);
    showPipelines(seen.pipelines, seen.time);
    showEvents(seen.events, choose);
    byId("main").hidden = false; // only now, so that nothing moves
  } catch (problem) {
    if (problem instanceof SignInNeeded) {
      tell("waiting", "not signed in");
      showSignIn(true);
    } else {
      tell("lost", "no answer; trying again");
    }
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
for (const input of document.querySelectorAll("input[name=range]")) {
  input.addEventListener("change", () => {
    range = Number(input.value);
    hour = null;
    look();
  });
}
offerSignIn(look);
offerDocuments(fetched, () => bucketName);
showTheme(localStorage.getItem("theme"));
run();

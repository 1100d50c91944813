// Connections, events and pipelines: lists whose elements stay while what they show stays.

import { BATCH_BOX, drawBatches } from "./charts.js";
import { attribute, brief, byId, clock, count, describe, duration, fold, make, makeSvg, plural, say, size, sync } from "./dom.js";

const KINDS = { reader: "reads changes", replica: "brings changes", client: "client" };

function figure(label) {
  return make("p", { class: "figure" }, make("span", {}, label), make("b"));
}

function makeConnection() {
  const who = make("div", {}, make("p", { class: "name" }), make("p", { class: "about" }));
  const bar = make("div", { class: "meter", role: "meter", "aria-label": "Flow-control window in use", "aria-valuemin": 0 }, make("div"));
  const window = make("div", { class: "figure" }, make("span", {}, "Window"), make("b"), bar);
  return make("li", {}, who, figure("Streams"), figure("Behind"), window);
}

function updateConnection(element, connection) {
  const [who, streams, behind, window] = element.children;
  say(who.firstChild, connection.name || connection.agent || connection.peer);
  const about = [KINDS[connection.kind] ?? connection.kind, connection.peer, connection.dialect];
  if (connection.bucket) about.push(connection.bucket);
  if (connection.user) about.push(connection.user);
  if (connection.tls) about.push("TLS");
  say(who.lastChild, about.join(" · "));
  const states = Object.entries(connection.states).map(([state, number]) => `${count(number)} ${state.replaceAll("_", " ")}`);
  say(streams.lastChild, count(connection.streams + connection.receives));
  attribute(streams, "title", states.join(", "));
  say(behind.lastChild, connection.lag ? `${brief(connection.lag)}, ${duration(connection.lag_seconds)}` : "0");
  const slow = connection.slowest.filter(({ lag }) => lag > 0).map(({ vbucket, lag }) => `vbucket ${vbucket}: ${count(lag)}`);
  attribute(behind, "title", slow.length ? `slowest: ${slow.join(", ")}` : "");
  const [, text, bar] = window.children;
  const share = connection.window ? Math.min(1, connection.outstanding / connection.window) : 0;
  say(text, connection.window ? `${size(connection.outstanding)} of ${size(connection.window)}` : "none");
  attribute(bar, "aria-valuemax", String(connection.window || 1));
  attribute(bar, "aria-valuenow", String(Math.min(connection.outstanding, connection.window)));
  attribute(bar, "aria-valuetext", text.textContent);
  bar.firstChild.style.width = `${(share * 100).toFixed(1)}%`;
  bar.firstChild.className = share > 0.9 ? "full" : "";
}

export function showConnections(server, bucket) {
  const shown = server.connections.filter((one) => one.bucket === null || one.bucket === bucket);
  say(byId("connections-count"), server.connection_count > server.connections.length
    ? `${count(server.connections.length)} of ${count(server.connection_count)} shown`
    : shown.length ? plural(shown.length, "connection") : "nobody is connected");
  fold(byId("connections-card"), !shown.length);
  sync(byId("connections"), shown, (one) => `${one.peer} ${one.name}`, makeConnection, updateConnection);
}

export function showEvents(events, choose) {
  say(byId("events-count"), events.length ? `last ${count(events.length)}` : "no failover, rollback or change of state");
  fold(byId("events-card"), !events.length);
  sync(byId("events"), [...events].reverse(), ({ id }) => id,
    (event) => {
      const element = make("li", {},
        make("time", { datetime: new Date(event.time * 1000).toISOString() }, clock(event.time)),
        make("span", { class: "badge", "data-kind": event.kind }, event.kind));
      if (event.vbucket !== null) {
        const button = make("button", { type: "button", "aria-label": `Show vbucket ${event.vbucket}` }, `vbucket ${event.vbucket}`);
        button.addEventListener("click", () => choose(event.bucket, event.vbucket));
        element.append(button);
      }
      element.append(make("p", {}, event.text));
      return element;
    },
    () => {});
}

function makePipeline(pipeline) {
  const svg = makeSvg("svg", { viewBox: BATCH_BOX, preserveAspectRatio: "none", role: "img" });
  const heads = ["Batch", "Rows", "Took", "Behind", "Delay"];
  const table = make("table", { "aria-label": `Newest batches of ${pipeline.name}` },
    make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)))), make("tbody"));
  const left = make("div", {}, make("dl"), make("h3", {}, "Rows of the last batches"), svg);
  return make("section", { class: "card pipeline", "aria-label": `Pipeline ${pipeline.name}` },
    make("div", { class: "bar" }, make("h2", {}, pipeline.name), make("p", { class: "quiet" })),
    left, make("div", { class: "batches" }, table));
}

const orDash = (value, format) => (value === null || value === undefined ? "–" : format(value));

function updatePipeline(element, pipeline, now) {
  const [bar, left, batches] = element.children;
  const state = pipeline.now;
  fold(element, !pipeline.recent.length && !state);
  const last = pipeline.recent.at(-1);
  const spent = pipeline.recent.slice(-10).reduce((sum, batch) => sum + batch.seconds, 0);
  const rows = pipeline.recent.slice(-10).reduce((sum, batch) => sum + batch.rows, 0);
  const newest = last ? `last batch ${duration(Math.max(0, now - last.time))} ago` : "no batch yet";
  const since = state && `${state.state} for ${duration(Math.max(0, now - state.since))}`;
  say(bar.lastChild, [since, state?.reason, newest].filter(Boolean).join(" · "));
  describe(left.firstChild, [
    ["Rows a second", spent ? brief(rows / spent) : "–"],
    ["Last batch", orDash(last?.seconds, duration)],
    ["Behind", state?.lag ? `${brief(state.lag)}, ${orDash(state.lag_seconds, duration)}` : orDash(state?.lag, brief)],
    ["Delay", orDash(last?.delay, duration)],
    ["Rows", brief(pipeline.rows)],
    ["Batches", brief(pipeline.batches)],
    ["Rollbacks", brief(pipeline.rollbacks)],
    ["Dead letters", brief(pipeline.dead_letters)],
  ]);
  drawBatches(left.lastChild, pipeline.recent);
  batches.querySelector("tbody").replaceChildren(...pipeline.recent.slice(-7).reverse().map((batch) =>
    make("tr", {}, ...[
      count(batch.batch), count(batch.rows), duration(batch.seconds),
      orDash(batch.lag, brief), orDash(batch.delay, duration),
    ].map((text) => make("td", {}, text)))));
}

export function showPipelines(pipelines, now) {
  const parent = byId("pipelines");
  parent.hidden = !pipelines.length;
  sync(parent, pipelines, ({ name }) => name, makePipeline,
    (element, pipeline) => updatePipeline(element, pipeline, now));
}

// The map of vbuckets, and the panel that shows one of them.

import { attribute, byId, count, make, plural, say, size, sync } from "./dom.js";

const STATES = { a: "active", r: "replica", p: "pending", d: "dead" };
const LAGS = [["ln", "no reader"], ["l0", "0"], ["l1", "1 to 9"], ["l2", "10 to 99"], ["l3", "100 to 999"], ["l4", "1,000 and more"]];
const WIDE = matchMedia("(min-width: 900px)");

function lagClass(lag) {
  if (lag < 0) return "ln";
  if (lag === 0) return "l0";
  return `l${Math.min(4, 1 + Math.floor(Math.log10(lag)))}`;
}

export class VBucketMap {
  /** `choose` is called with the number of a vbucket that somebody wants to see. */
  constructor(choose) {
    this.choose = choose;
    this.map = byId("map");
    this.legend = byId("legend");
    this.cells = [];
    this.focused = 0;
    this.chosen = null;
    this.columns = null;
    this.map.addEventListener("click", (event) => {
      const cell = event.target.closest(".cell");
      if (cell) this.pick(Number(cell.dataset.vbucket));
    });
    this.map.addEventListener("pointerover", (event) => {
      const cell = event.target.closest(".cell");
      if (cell && this.data) this.describe(Number(cell.dataset.vbucket));
    });
    this.map.addEventListener("keydown", (event) => this.key(event));
    for (const input of document.querySelectorAll("input[name=colour]")) {
      input.addEventListener("change", () => {
        this.map.dataset.colour = input.value;
        this.drawLegend();
      });
    }
    byId("jump").addEventListener("submit", (event) => {
      event.preventDefault();
      const wanted = byId("jump-to").valueAsNumber;
      if (wanted >= 0 && wanted < this.cells.length) this.pick(wanted);
    });
    WIDE.addEventListener("change", () => this.build(this.cells.length));
  }

  update(vbuckets) {
    if (vbuckets.high.length !== this.cells.length) this.build(vbuckets.high.length);
    this.data = vbuckets;
    this.cells.forEach((cell, at) => {
      const name = `cell ${vbuckets.state[at]} ${lagClass(vbuckets.lag[at])}`;
      if (cell.className !== name) cell.className = name;
    });
    this.describe(this.focused);
    this.drawLegend();
  }

  build(number) {
    const had = document.activeElement?.closest("#map") !== null && document.activeElement !== document.body;
    const width = number <= 64 ? 16 : WIDE.matches ? 64 : 32;
    this.width = width;
    this.focused = Math.min(this.focused, Math.max(0, number - 1));
    this.cells = [];
    const rows = [];
    for (let first = 0; first < number; first += width) {
      const row = make("div", { class: "row", role: "row" });
      for (let at = first; at < Math.min(first + width, number); at += 1) {
        const cell = make("div", {
          class: "cell", role: "gridcell", tabindex: at === this.focused ? 0 : -1,
          "aria-label": `vbucket ${at}`, "aria-selected": at === this.chosen, "data-vbucket": at,
        });
        this.cells.push(cell);
        row.append(cell);
      }
      rows.push(row);
    }
    this.map.style.setProperty("--columns", width);
    this.map.replaceChildren(...rows);
    byId("jump-to").max = number - 1;
    if (this.data && this.data.high.length === number) this.update(this.data);
    if (had && this.cells.length) this.cells[this.focused].focus();
  }

  /** Says of one cell what its colours show; of the others when they are reached. */
  describe(at) {
    const { state, high, items, lag } = this.data;
    const behind = lag[at] < 0 ? "no reader" : `readers ${count(lag[at])} behind`;
    attribute(this.cells[at], "aria-label",
      `vbucket ${at}, ${STATES[state[at]] ?? "unknown"}, ${plural(items[at], "document")}, seqno ${count(high[at])}, ${behind}`);
    attribute(this.cells[at], "title", this.cells[at].getAttribute("aria-label"));
  }

  key(event) {
    const last = this.cells.length - 1;
    const row = Math.floor(this.focused / this.width) * this.width;
    const targets = {
      ArrowRight: this.focused + 1, ArrowLeft: this.focused - 1,
      ArrowDown: this.focused + this.width, ArrowUp: this.focused - this.width,
      PageDown: this.focused + 4 * this.width, PageUp: this.focused - 4 * this.width,
      Home: event.ctrlKey ? 0 : row, End: event.ctrlKey ? last : Math.min(row + this.width - 1, last),
    };
    if (event.key === "Enter" || event.key === " ") {
      this.pick(this.focused);
    } else if (event.key === "Escape") {
      this.pick(null);
    } else if (event.key in targets) {
      const target = targets[event.key];
      if (target >= 0 && target <= last) this.focus(target);
    } else {
      return;
    }
    event.preventDefault();
  }

  focus(at) {
    this.cells[this.focused].tabIndex = -1;
    this.focused = at;
    this.cells[at].tabIndex = 0;
    this.describe(at);
    this.cells[at].focus();
  }

  pick(at) {
    if (this.chosen !== null && this.cells[this.chosen]) attribute(this.cells[this.chosen], "aria-selected", "false");
    this.chosen = at;
    if (at !== null) {
      attribute(this.cells[at], "aria-selected", "true");
      this.cells[this.focused].tabIndex = -1;
      this.focused = at;
      this.cells[at].tabIndex = 0;
      this.describe(at);
    }
    this.choose(at);
  }

  drawLegend() {
    const { state, lag } = this.data;
    const byState = this.map.dataset.colour === "state";
    const seen = new Map();
    for (let at = 0; at < this.cells.length; at += 1) {
      const key = byState ? state[at] : lagClass(lag[at]);
      seen.set(key, (seen.get(key) ?? 0) + 1);
    }
    const entries = byState ? Object.entries(STATES) : LAGS;
    sync(this.legend, entries, ([key]) => key,
      ([key]) => make("li", {}, make("span", { class: `key ${key}` }), make("span")),
      (element, [key, text]) => say(element.lastChild, `${text}: ${count(seen.get(key) ?? 0)}`));
  }
}

function table(caption, heads) {
  const head = make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)));
  const body = make("tbody");
  return [make("table", { "aria-label": caption }, make("thead", {}, head), body), body];
}

function fill(body, rows) {
  body.replaceChildren(...rows.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell)))));
}

export class Detail {
  constructor() {
    this.title = byId("detail-title");
    this.body = byId("detail-body");
    this.hint = this.body.firstElementChild;
    this.facts = make("dl");
    [this.log, this.branches] = table("Failover log", ["Branch", "From seqno"]);
    [this.copyTable, this.copies] = table("Copies", ["Copy", "Node"]);
    [this.readerTable, this.readers] = table("Readers", ["Reader", "State", "Position", "Behind"]);
    this.noReader = make("p", { class: "empty" }, "Nobody reads it.");
    this.noCopy = make("p", { class: "empty" }, "There is no map yet.");
    this.parts = [
      this.facts,
      make("h3", {}, "Failover log, newest branch first"), this.log,
      make("h3", {}, "Copies"), this.copyTable, this.noCopy,
      make("h3", {}, "Readers"), this.readerTable, this.noReader,
    ];
    this.shown = null;
  }

  clear() {
    this.shown = null;
    say(this.title, "No vbucket chosen");
    this.body.replaceChildren(this.hint);
  }

  fail(vbucket, problem) {
    this.shown = null;
    say(this.title, `Vbucket ${vbucket}`);
    this.body.replaceChildren(make("p", { class: "empty" }, problem));
  }

  show(detail) {
    const text = JSON.stringify(detail);
    if (text === this.shown) return;
    this.shown = text;
    say(this.title, `Vbucket ${detail.vbucket}`);
    describePairs(this.facts, [
      ["State", detail.state],
      ["High seqno", count(detail.high)],
      ["Persisted up to", count(detail.persisted)],
      ["Purged up to", count(detail.purged)],
      ["Can go back to", count(detail.floor)],
      ["Documents", count(detail.items)],
      ["Deletions kept", count(detail.tombstones)],
      ["History", size(detail.history_bytes)],
    ]);
    fill(this.branches, detail.failover_log.map(({ branch, seqno }) => [make("code", {}, branch), count(seqno)]));
    fill(this.copies, detail.copies.map(({ role, node }) => [role, node]));
    this.copyTable.hidden = !detail.copies.length;
    this.noCopy.hidden = detail.copies.length > 0;
    fill(this.readers, detail.readers.map(({ connection, stream }) =>
      [connection, stream.state.replaceAll("_", " "), count(stream.position), count(stream.lag)]));
    this.readerTable.hidden = !detail.readers.length;
    this.noReader.hidden = detail.readers.length > 0;
    if (this.body.firstElementChild !== this.facts) this.body.replaceChildren(...this.parts);
  }
}

function describePairs(list, pairs) {
  sync(list, pairs.flatMap(([name, text]) => [{ tag: "dt", name, text: name }, { tag: "dd", name, text }]),
    ({ tag, name }) => tag + name, ({ tag }) => make(tag), (element, { text }) => say(element, text));
}

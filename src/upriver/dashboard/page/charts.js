// Charts as SVG: curves over time with an axis and marks, and bars of batches.

import { attribute, brief, clock, duration, fold, make, makeSvg, minutes, say } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 64;
const LEAST_SECONDS = 60;
const STEPS = [10, 15, 30, 60, 120, 300, 600, 900, 1200, 1800];
/** Pixels that a time on the axis takes at least, with and without its seconds. */
const TICK_WIDTH = [80, 60];

/** The next number of the form 1, 2 or 5 times a power of ten. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/** The times that the axis names: round ones, as many as there is room for. */
function ticks(start, end, width, tick) {
  const most = Math.max(1, Math.floor(width / tick));
  const step = STEPS.find((one) => (end - start) / one <= most) ?? STEPS.at(-1);
  const edge = ((end - start) * tick) / 3 / Math.max(width, 1);
  const found = [];
  for (let at = Math.ceil((start + edge) / step) * step; at <= end - edge; at += step) found.push(at);
  return found;
}

/** Curves that share both axes. A value that is null interrupts its curve. */
export class Plot {
  /** `least` is the smallest upper end of the axis, `format` makes a text of a value. */
  constructor({ least, format, filled = false, height = HEIGHT }) {
    Object.assign(this, { least, format, filled, height });
    this.curves = new Map();
    this.lines = [];
    this.svg = makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", role: "img" });
    this.group = makeSvg("g");
    this.marks = makeSvg("g");
    this.cursor = makeSvg("line", { class: "cursor", y1: 0, y2: height });
    const base = makeSvg("line", { class: "base", x1: 0, x2: WIDTH, y1: height, y2: height });
    this.area = makeSvg("path", { class: "area" });
    this.svg.append(base, this.area, this.group, this.marks, this.cursor);
    this.top = make("span", { class: "top" });
    this.axis = make("div", { class: "axis", "aria-hidden": "true" });
    this.note = make("p", { class: "note" });
    this.element = make("div", { class: "plot" }, this.top, this.svg, this.axis, this.note);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
  }

  /** `lines` have a key, a label, a class and values, which belong to `times`. */
  update(times, lines, end, range, marks, summary) {
    const span = Math.min(range, Math.max(LEAST_SECONDS, end - (times[0] ?? end)));
    Object.assign(this, { times, lines, span, start: end - span, summary });
    const from = times.findIndex((time) => time >= this.start);
    this.from = from < 0 ? times.length : from;
    let most = this.least;
    for (const { values } of lines) {
      for (let at = this.from; at < times.length; at += 1) most = Math.max(most, values[at] ?? 0);
    }
    const top = roundUp(most);
    say(this.top, this.format(top));
    this.x = (time) => ((time - this.start) / span) * WIDTH;
    this.y = (value) => this.height - (value / top) * (this.height - 4);
    this.draw();
    this.drawMarks(marks);
    const long = range > 600;
    const labels = ticks(this.start, end, this.svg.clientWidth || WIDTH, TICK_WIDTH[Number(long)]).map((time) => {
      const label = make("span", {}, long ? minutes(time) : clock(time));
      label.style.left = `${(this.x(time) / WIDTH) * 100}%`;
      return label;
    });
    this.axis.replaceChildren(...labels);
    if (!this.pointed) say(this.note, summary);
  }

  draw() {
    const known = new Set();
    for (const { key, tint, values } of this.lines) {
      known.add(key);
      let curve = this.curves.get(key);
      if (!curve) {
        curve = makeSvg("path");
        this.curves.set(key, curve);
        this.group.append(curve);
      }
      attribute(curve, "class", `curve ${tint}`);
      curve.setAttribute("d", this.path(values));
    }
    for (const [key, curve] of this.curves) {
      if (!known.has(key)) {
        curve.remove();
        this.curves.delete(key);
      }
    }
    const last = this.times.length - 1;
    const [left, right] = [this.times[this.from], this.times[last]].map((time) => this.x(time).toFixed(1));
    this.area.setAttribute("d", this.filled && this.from <= last
      ? `${this.path(this.lines[0].values)}L${right} ${this.height}L${left} ${this.height}Z` : "");
  }

  path(values) {
    let path = "";
    let broken = true;
    for (let at = this.from; at < this.times.length; at += 1) {
      const value = values[at];
      if (value === null || value === undefined) {
        broken = true;
      } else {
        path += `${broken ? "M" : "L"}${this.x(this.times[at]).toFixed(1)} ${this.y(value).toFixed(1)}`;
        broken = false;
      }
    }
    return path;
  }

  drawMarks(marks) {
    this.marks.replaceChildren(...marks.filter(({ time }) => time >= this.start).map((event) => {
      const x = this.x(event.time);
      const mark = makeSvg("line", { class: "mark", "data-kind": event.kind, x1: x, x2: x, y1: 0, y2: this.height });
      const title = makeSvg("title");
      title.textContent = `${clock(event.time)} ${event.kind}: ${event.text}`;
      mark.append(title);
      return mark;
    }));
  }

  point(event) {
    if (this.from >= (this.times?.length ?? 0)) return;
    const box = this.svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    let near = this.from;
    for (let at = this.from; at < this.times.length; at += 1) {
      if (Math.abs(this.x(this.times[at]) - x) < Math.abs(this.x(this.times[near]) - x)) near = at;
    }
    this.pointed = true;
    const at = this.x(this.times[near]);
    this.cursor.setAttribute("x1", at);
    this.cursor.setAttribute("x2", at);
    this.cursor.style.visibility = "visible";
    const told = this.lines.filter(({ values }) => values[near] !== null && values[near] !== undefined)
      .map(({ label, values }) => `${label ? `${label} ` : ""}${this.format(values[near])}`);
    say(this.note, `${clock(this.times[near])}: ${told.join(", ") || "nothing"}`);
  }

  leave() {
    this.pointed = false;
    this.cursor.style.visibility = "hidden";
    say(this.note, this.summary ?? "");
  }
}

/** One figure: what it is now, and one or two curves. */
export class CurveChart {
  constructor({ title, unit = "", tint, columns, labels = [""], least = 1, format = brief, empty = "" }) {
    Object.assign(this, { title, unit, columns, labels, format, empty });
    this.now = make("p", { class: "now" }, "", make("small"));
    this.plot = new Plot({ least, format, filled: columns.length === 1 });
    this.bar = make("div", { class: "bar" }, make("h2", {}, title), make("p", { class: "quiet" }));
    this.element = make("div", { class: "card chart" }, this.bar, this.now, this.plot.element);
    this.element.style.setProperty("--tint", `var(--${tint})`);
  }

  update(history, end, range, marks) {
    const lines = this.columns.map((column, at) => ({
      key: column, label: this.labels[at], tint: at ? "second" : "", values: history[column],
    }));
    const known = lines.map(({ values }) => values.filter((value) => value !== null));
    const nothing = known.every((values) => !values.length);
    fold(this.element, nothing && this.empty !== "");
    say(this.bar.lastChild, nothing ? this.empty : "");
    const last = known[0].at(-1) ?? 0;
    const peak = known[0].reduce((most, value) => Math.max(most, value), 0);
    const text = this.format(last);
    if (this.now.firstChild.data !== text) this.now.firstChild.data = text;
    const others = lines.slice(1).map(({ label }, at) => `, ${label} ${this.format(known[at + 1].at(-1) ?? 0)}`);
    say(this.now.lastChild, `${this.labels[0] || this.unit ? " " : ""}${this.labels[0] || this.unit}${others.join("")}`);
    const span = Math.min(range, Math.max(LEAST_SECONDS, end - (history.time[0] ?? end)));
    this.plot.update(history.time, lines, end, range, marks, `peak ${this.format(peak)} in ${duration(span)}`);
    attribute(this.plot.svg, "aria-label",
      `${this.title}: ${text} ${this.unit} now, at most ${this.format(peak)} in the last ${duration(span)}`);
  }
}

const BARS = 60;

/** Bars of the rows of the newest batches; one that followed a rollback has another colour. */
export function drawBatches(svg, batches) {
  const top = Math.max(1, ...batches.map((batch) => batch.rows));
  const step = WIDTH / BARS;
  const offset = BARS - batches.length;
  svg.replaceChildren(...batches.map((batch, at) => {
    const height = Math.max(1, (batch.rows / top) * (HEIGHT - 2));
    const bar = makeSvg("rect", {
      x: (offset + at) * step + 0.5, y: HEIGHT - height, width: step - 1, height,
      "data-rollback": batch.rollbacks > 0,
    });
    const title = makeSvg("title");
    title.textContent = `batch ${batch.batch}: ${brief(batch.rows)} rows in ${batch.seconds.toFixed(2)} s`;
    bar.append(title);
    return bar;
  }));
  const last = batches.at(-1);
  attribute(svg, "aria-label", last
    ? `Rows of the last ${batches.length} batches; the newest has ${brief(last.rows)}` : "No batch yet");
}

export const BATCH_BOX = `0 0 ${WIDTH} ${HEIGHT}`;

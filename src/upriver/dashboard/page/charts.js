// Small charts as SVG: a curve of the last five minutes with marks, and bars of batches.

import { attribute, brief, clock, duration, make, makeSvg, say } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 64;
const MOST_SECONDS = 300;
const LEAST_SECONDS = 60;

/** The next number of the form 1, 2 or 5 times a power of ten. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

export class CurveChart {
  constructor(title, unit, tint) {
    this.title = title;
    this.unit = unit;
    this.points = [];
    this.now = make("p", { class: "now" });
    this.note = make("p", { class: "note" });
    this.svg = makeSvg("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
    });
    this.area = makeSvg("path", { class: "area" });
    this.curve = makeSvg("path", { class: "curve" });
    this.marks = makeSvg("g");
    this.cursor = makeSvg("line", { class: "cursor", y1: 0, y2: HEIGHT });
    const base = makeSvg("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT });
    this.svg.append(base, this.area, this.curve, this.marks, this.cursor);
    this.element = make("div", { class: "card chart" },
      make("h2", {}, title), this.now, this.svg, this.note);
    this.element.style.setProperty("--tint", `var(--${tint})`);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
  }

  update(times, values, end, events) {
    const span = Math.min(MOST_SECONDS, Math.max(LEAST_SECONDS, end - (times[0] ?? end)));
    const start = end - span;
    const top = roundUp(Math.max(...values, 1));
    this.points = [];
    for (let at = 0; at < times.length; at += 1) {
      if (times[at] >= start) {
        const x = ((times[at] - start) / span) * WIDTH;
        this.points.push({ x, y: HEIGHT - (values[at] / top) * (HEIGHT - 4), time: times[at], value: values[at] });
      }
    }
    const line = this.points.map(({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
    this.curve.setAttribute("d", line && `M${line}`);
    const [first, last] = [this.points[0], this.points.at(-1)];
    this.area.setAttribute("d",
      line && `M${first.x.toFixed(1)} ${HEIGHT}L${line}L${last.x.toFixed(1)} ${HEIGHT}Z`);
    this.marks.replaceChildren(...events.filter(({ time }) => time >= start).map((event) => {
      const x = ((event.time - start) / span) * WIDTH;
      const mark = makeSvg("line", { class: "mark", "data-kind": event.kind, x1: x, x2: x, y1: 0, y2: HEIGHT });
      const title = makeSvg("title");
      title.textContent = `${clock(event.time)} ${event.kind}: ${event.text}`;
      mark.append(title);
      return mark;
    }));
    const value = last ? last.value : 0;
    if (!this.now.firstChild) this.now.append("", make("small"));
    const text = brief(value);
    if (this.now.firstChild.data !== text) this.now.firstChild.data = text;
    say(this.now.lastChild, ` ${this.unit}`);
    this.peak = Math.max(0, ...this.points.map((point) => point.value));
    attribute(this.svg, "aria-label",
      `${this.title}: ${text} ${this.unit} now, at most ${brief(this.peak)} in the last ${duration(span)}`);
    this.summary = `peak ${brief(this.peak)} in ${duration(span)}`;
    if (!this.pointed) say(this.note, this.summary);
  }

  point(event) {
    if (!this.points.length) return;
    const box = this.svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    const near = this.points.reduce((best, one) => (Math.abs(one.x - x) < Math.abs(best.x - x) ? one : best));
    this.pointed = true;
    this.cursor.setAttribute("x1", near.x);
    this.cursor.setAttribute("x2", near.x);
    this.cursor.style.visibility = "visible";
    say(this.note, `${clock(near.time)}: ${brief(near.value)} ${this.unit}`);
  }

  leave() {
    this.pointed = false;
    this.cursor.style.visibility = "hidden";
    say(this.note, this.summary ?? "");
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

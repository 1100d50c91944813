// How far readers and pipelines are behind, over time: in changes or in seconds.

import { Plot } from "./charts.js";
import { attribute, brief, byId, duration, fold, make, plural, say, sync } from "./dom.js";

const TINTS = 8;

export class LagChart {
  constructor() {
    this.unit = "changes";
    this.plots = {
      changes: new Plot({ least: 10, format: brief, height: 110 }),
      seconds: new Plot({ least: 1, format: duration, height: 110 }),
    };
    this.legend = make("ul", { class: "legend" });
    this.place = make("div");
    byId("lags-body").append(this.place, this.legend);
    for (const input of document.querySelectorAll("input[name=lag-unit]")) {
      input.addEventListener("change", () => {
        this.unit = input.value;
        this.update(...this.shown);
      });
    }
  }

  update(history, end, range, marks) {
    this.shown = [history, end, range, marks];
    const { lags } = history;
    fold(byId("lags-card"), !lags.length);
    say(byId("lags-count"), lags.length ? "" : "nobody reads changes");
    const lines = lags.map((lag, at) => ({
      key: `${lag.kind} ${lag.name}`, label: lag.name, tint: `line${at % TINTS}${at >= TINTS ? " dashed" : ""}`,
      values: lag[this.unit], kind: lag.kind,
    }));
    const plot = this.plots[this.unit];
    if (this.place.firstChild !== plot.element) this.place.replaceChildren(plot.element);
    const worst = lines.reduce((most, { values }) => Math.max(most, values.at(-1) ?? 0), 0);
    plot.update(history.time, lines, end, range, marks, `furthest behind now: ${plot.format(worst)}`);
    attribute(plot.svg, "aria-label", `Lag in ${this.unit} of ${plural(lines.length, "reader or pipeline")}`);
    sync(this.legend, lines, ({ key }) => key,
      () => make("li", {}, make("span"), make("span")),
      (element, { label, tint, values, kind }) => {
        attribute(element.firstChild, "class", `swatch ${tint}`);
        const now = values.at(-1);
        const behind = now === null || now === undefined ? "gone" : plot.format(now);
        say(element.lastChild, `${label}${kind === "pipeline" ? " (pipeline)" : ""}: ${behind}`);
      });
  }
}

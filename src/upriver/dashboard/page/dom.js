// Small helpers to build and update the page. Data becomes text and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element with attributes and children; children that are no nodes become text. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function makeSvg(tag, attributes = {}) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** Sets text only if it changed, so that nothing is drawn or read out again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function attribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** Makes the children of a list those of `items`, and keeps the elements of those that stay. */
export function sync(parent, items, keyOf, create, update) {
  const known = parent.known ?? (parent.known = new Map());
  const keys = new Set();
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    keys.add(key);
    let element = known.get(key);
    if (!element) {
      element = create(item);
      known.set(key, element);
    }
    update(element, item);
    if (element === at) at = at.nextElementSibling;
    else parent.insertBefore(element, at);
  }
  for (const [key, element] of known) {
    if (!keys.has(key)) {
      element.remove();
      known.delete(key);
    }
  }
}

/** Folds a card that has nothing to show: only its bar stays, which says so. */
export const fold = (card, folded) => card.classList.toggle("folded", folded);

/** Fills a description list: pairs of a name and a text. */
export function describe(list, pairs) {
  sync(list, pairs, ([name]) => name,
    ([name]) => make("div", {}, make("dt", {}, name), make("dd")),
    (element, [, text]) => say(element.lastElementChild, text));
}

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => whole.format(Math.round(value));
/** A number that must fit: 12,345 or 1.2M. */
export const brief = (value) => (Math.abs(value) < 100000 ? count(value) : short.format(value));

export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (bytes >= 1024 && at < units.length - 1) {
    bytes /= 1024;
    at += 1;
  }
  return `${at && bytes < 100 ? bytes.toFixed(1) : count(bytes)} ${units[at]}`;
}

export function duration(seconds) {
  if (seconds === 0) return "0 s";
  if (seconds < 0.1) return `${+(seconds * 1000).toPrecision(2)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

/** A part of one: 12% or 0.4%. */
export const share = (value) => `${(value * 100).toFixed(value < 0.1 ? 1 : 0)}%`;

export const minutes = (seconds) => clock(seconds).slice(0, 5);
export const day = (seconds) => new Date(seconds * 1000).toLocaleDateString("en-CA");
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

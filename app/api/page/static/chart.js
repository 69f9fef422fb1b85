// A chart over time, drawn by uPlot: a title, the values now or under the pointer, and lines.

import { colour, fill, h } from "./dom.js";

const HEIGHT = 130;
const COLOURS = 6; // --c1 to --c6 of the theme
const DASHES = [[], [6, 3], [2, 3]];
const STEPS_S = [5, 10, 15, 30, 60, 120, 180, 300]; // between times on the axis
const SHORTEST_S = 60; // shortest time shown
let library = null;

/** Load uPlot before a chart is shown: a classic script, which sets a global name. */
export function load() {
  library ??= new Promise((done, failed) => {
    const folder = new URL(".", import.meta.url);
    const script = h("script", { src: new URL("vendor/uPlot.iife.min.js", folder) });
    script.addEventListener("load", done);
    script.addEventListener("error", () => {
      library = null;
      script.remove();
      failed(new Error("uPlot could not be loaded. Select another view, then this one again."));
    });
    document.head.append(script);
  });
  return library;
}

/**
 * @typedef {{label: string, values: (number | null)[], tone?: string}} Line
 *   `tone`: "bad" or "warn", for lines with the colour of what they mean; else each has its own
 */

/** One chart; `element` belongs in the page. Lines may be added and removed. */
export class Chart {
  #plot = null;
  #labels = "";
  /** @type {number[]} */
  #times = [];
  /** @type {Line[]} */
  #lines = [];
  #held = null; // the time chosen by keyboard
  #values = h("ul.values");
  #when; // the unit; in its place the time of the values, if they are not the newest
  #canvas = h("div.plot", { role: "img", tabindex: 0 });
  #spoken = h("p.visually-hidden", { "aria-live": "polite" });

  /**
   * @param {string} title
   * @param {string} unit  of its values, such as "ms"
   * @param {(value: number) => string} format
   */
  constructor(title, unit, format) {
    this.title = title;
    this.unit = unit;
    this.format = format;
    this.#when = h("span.note", { text: unit });
    const heading = h("figcaption", null, h("h3", { text: title }), this.#when);
    this.element = h("figure.card.chart", null, heading, this.#values, this.#canvas, this.#spoken);
    this.#canvas.addEventListener("keydown", (event) => this.#step(event));
    this.#canvas.addEventListener("pointermove", () => (this.#held = null));
    this.#canvas.addEventListener("blur", () => this.#hold(null));
    new ResizeObserver(() => this.#resize()).observe(this.#canvas);
  }

  /**
   * Show these lines; the times are in seconds.
   * @param {number[]} times
   * @param {Line[]} lines
   */
  show(times, lines) {
    this.#times = times;
    this.#lines = lines;
    const labels = JSON.stringify(lines.map(({ label, tone }) => [label, tone]));
    if (labels !== this.#labels || !this.#plot) {
      this.#plot?.destroy();
      this.#plot = new window["uPlot"](this.#options(), this.#data(), this.#canvas);
      this.#labels = labels;
    } else {
      this.#plot.setData(this.#data());
    }
    // The time has moved to the left, and uPlot knows its position after drawing.
    if (this.#held !== null) queueMicrotask(() => this.#hold(this.#held));
    this.#tell();
  }

  #data() {
    return [this.#times, ...this.#lines.map((each) => each.values)];
  }

  #options() {
    const looks = looksOf(this.#lines);
    const axis = { stroke: () => colour("--quiet"), ticks: { show: false } };
    const grid = { stroke: () => colour("--line"), width: 1 };
    return {
      width: this.#canvas.clientWidth || 300,
      height: HEIGHT,
      padding: [6, 32, 0, 0], // half of a label of the time below the right edge
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: "watch" } },
      scales: {
        x: { range: (_, from, to) => [Math.min(from, to - SHORTEST_S), to] },
        y: { range: (_, from, to) => [Math.min(0, from), to > 0 ? to * 1.1 : 1] },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 24, space: 64, incrs: STEPS_S,
          values: (_, times) => times.map(clock) },
        { ...axis, grid, size: 46, values: (_, values) => values.map(this.format) },
      ],
      series: [
        {},
        ...this.#lines.map((each, index) => ({
          label: each.label,
          stroke: () => colour(`--${looks[index].name}`),
          dash: DASHES[looks[index].dash],
          width: 1.5,
          points: { show: false },
        })),
      ],
      hooks: { setCursor: [() => this.#tell()] },
    };
  }

  #resize() {
    const width = this.#canvas.clientWidth;
    if (width && this.#plot && width !== this.#plot.width) {
      this.#plot.setSize({ width, height: HEIGHT });
    }
  }

  /** The sample chosen by keyboard, else the one under the pointer, else the newest. */
  #index() {
    if (this.#held !== null) return Math.max(0, this.#times.findLastIndex((each) => each <= this.#held));
    return this.#plot?.cursor.idx ?? this.#times.length - 1;
  }

  /** Write the values as text. */
  #tell() {
    const at = this.#index();
    const looks = looksOf(this.#lines);
    const said = this.#lines.map(({ label, values }, index) =>
      h("li", null, h(`span.swatch.${looks[index].name}.dash-${looks[index].dash}`), `${label} `,
        h("b", { text: this.#said(values[at]) })));
    const past = this.#held !== null || this.#plot?.cursor.idx != null;
    fill(this.#values, ...said);
    this.#when.textContent = past && this.#times.length ? clock(this.#times[at]) : this.unit;
    // Not while it has the focus: some screen readers would announce each change.
    if (document.activeElement !== this.#canvas) {
      this.#canvas.setAttribute("aria-label", `${this.title}. ${this.#sentence(at)}`);
    }
  }

  #said(value) {
    return value == null ? "–" : this.format(value);
  }

  #sentence(at) {
    const parts = this.#lines.map(({ label, values }) => {
      const known = values.filter((each) => each !== null);
      if (!known.length) return `${label}: no data`;
      const [low, high] = [Math.min(...known), Math.max(...known)].map(this.format);
      return `${label}: ${this.#said(values[at])} ${this.unit}, between ${low} and ${high}`;
    });
    return `${parts.join("; ")}. Arrow keys show earlier values.`;
  }

  #step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (!this.#plot || (!by && event.key !== "Escape")) return;
    event.preventDefault();
    const to = Math.max(0, Math.min(this.#times.length - 1, this.#index() + (by ?? 0)));
    this.#hold(by ? this.#times[to] : null);
    const values = this.#lines.map(({ label, values }) => `${label} ${this.#said(values[to])}`);
    this.#spoken.textContent = `${clock(this.#times[to])}: ${values.join(", ")} ${this.unit}`;
  }

  /** Keep the cursor at a time; null removes it. */
  #hold(time) {
    if (time === null && this.#held === null) return;
    this.#held = time;
    const left = time === null ? -10 : this.#plot.valToPos(time, "x");
    this.#plot.setCursor({ left, top: time === null ? -10 : 0 });
  }
}

/** The colour of each line, and which dashes; lines of one tone differ by their dashes. */
function looksOf(lines) {
  const before = (index, tone) => lines.slice(0, index).filter((each) => each.tone === tone).length;
  return lines.map(({ tone }, index) =>
    tone
      ? { name: tone, dash: before(index, tone) % DASHES.length }
      : { name: `c${(index % COLOURS) + 1}`, dash: 0 });
}

/** @param {number} seconds */
function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

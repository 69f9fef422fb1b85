// One version of a model: its state, its traffic, what it takes, and its buttons.

import { bytes, fill, h, withShortHashes } from "./dom.js";
import { stateOf } from "./loading.js";
import { errorsOf, toneOfErrors } from "./means.js";
import { number } from "./series.js";

const TONES = { ready: "good", failed: "bad", loading: "warn" };
const UNITS = [["s", 60], ["min", 60], ["h", 24], ["days", Infinity]];

/** Whether requests may reach a version, now or once it is loaded. */
export const isServed = ({ state }) => ["ready", "cold", "loading"].includes(state);

/**
 * The share of each version in the requests that name none, if several are served.
 * @param {{version: number | null, versions: any[], weights?: {versions: any[]} | null}} model
 * @returns {Map<number, number>}
 */
export function sharesOf({ version, versions, weights }) {
  const served = versions.filter(isServed).map((each) => each.version);
  if (served.length < 2 || version === null) return new Map();
  const shares = (weights?.versions ?? []).filter((each) => each.share > 0);
  const of = new Map(shares.map((each) => [each.version, each.share]));
  return new Map(served.map((each) => [each, of.get(each) ?? Number(!of.size && each === version)]));
}

/** What is known of a version besides its state. */
function wordsOf(status, share) {
  const { state, problem, step, seconds, left_s: left, memory_bytes: memory, idle_s: idle } = status;
  return [
    problem && withShortHashes(problem),
    share !== undefined && `${number(share * 100)} % of requests`,
    state === "loading" && step,
    state === "loading" && seconds != null && `${number(seconds)} s`,
    left != null && (state === "loading" ? `about ${number(left)} s left` : `loaded in about ${number(left)} s`),
    state === "cold" && left == null && "the next request loads it",
    memory != null && bytes(memory),
    idle != null && `used ${ago(idle)}`,
  ].filter(Boolean).join(", ");
}

/** A time in the past, such as "5 min ago". */
function ago(seconds) {
  let amount = seconds;
  for (const [unit, size] of UNITS) {
    if (amount < size) return `${Math.floor(amount)} ${unit} ago`;
    amount /= size;
  }
}

/** One version: a row of its model's table. On a narrow screen its figures are in words. */
export class Version {
  #state = h("td");
  #slowest = h("span.tag.warn", { text: "slowest", hidden: true });
  #figures = ["requests", "errors", "p50", "p99"].map(() => h("td.number.wide", { text: "–" }));
  #words = h("span.narrow");
  #detail = h("span");
  #reason = h("td.reason", null, this.#detail, this.#words);
  #shown = "";
  #switch;

  constructor(card, number) {
    const name = `${card.name}/${number}`;
    const path = `${card.path}/versions/${number}`;
    const report = h("a.button.small", { href: `./${path}/report`, target: "_blank", rel: "noopener",
      text: "Report", "aria-label": `Report of ${name}`,
      onclick: (event) => {
        if (!card.models.api.keyed) return;
        event.preventDefault();
        card.models.report(`./${path}/report`, `${card.name}-${number}-report.html`);
      } });
    this.name = name;
    this.#switch = new Switch(card.models, name, path);
    this.element = h("tr", null, h("th", { scope: "row", text: String(number) }), this.#state,
      ...this.#figures, this.#reason, h("td", null, h("span.actions", null, report, this.#switch.element)));
  }

  /**
   * @param {Record<string, any>} status
   * @param {number | undefined} share  of the requests that name no version; undefined: no choice
   * @param {string} now  see `loadedNow`
   */
  show(status, share, now) {
    const shown = JSON.stringify([status, share, now]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.#switch.show(isServed(status));
    const { state, problem, step } = status;
    fill(this.#state, h(`span.tag.${TONES[state] ?? "none"}`, { text: stateOf(status, now) }), " ",
      this.#slowest);
    this.#reason.removeAttribute("title");
    if (problem) this.#reason.title = problem;
    const words = wordsOf(status, share).replace(`${this.name}: `, "");
    if (state === "loading" && (step || !now)) {
      const bar = h("progress", { max: 1, "aria-label": `${this.name} is loading` });
      if (status.progress != null) bar.value = status.progress;
      fill(this.#detail, bar, ` ${words}`);
    } else {
      this.#detail.textContent = words;
    }
  }

  /**
   * @param {import("./means.js").Figures | null} figures  null: not known, or no request yet
   * @param {boolean} isSlowest
   */
  figures(figures, isSlowest) {
    this.#slowest.hidden = !isSlowest;
    const tone = figures && toneOfErrors(figures);
    const ms = (value) => (value == null ? "–" : `${number(value)} ms`);
    const known = figures
      ? [number(figures.requests), errorsOf(figures), ms(figures.p50), ms(figures.p99)]
      : ["–", "–", "–", "–"];
    for (const [index, text] of known.entries()) this.#figures[index].textContent = text;
    this.#figures[1].className = tone ? `number wide ${tone}` : "number wide";
    const [requests, errors, p50, p99] = known;
    fill(this.#words, ...(figures ? [
      `${requests} requests, p50 ${p50}, p99 ${p99}, `,
      h(tone ? `span.${tone}` : "span", { text: `errors ${errors}` }),
    ] : []));
  }
}

/** The button that loads or unloads a model or a version. */
export class Switch {
  #verb = "load";

  constructor(models, name, path) {
    this.name = name;
    this.element = h("button.admin.small", { type: "button", onclick: () =>
      models.change(`${this.#verb} ${name}`, `./admin/${path}/${this.#verb}`, this.element) });
  }

  /** @param {boolean} loaded */
  show(loaded) {
    this.#verb = loaded ? "unload" : "load";
    this.element.textContent = loaded ? "Unload" : "Load";
    this.element.setAttribute("aria-label", `${this.element.textContent} ${this.name}`);
  }
}

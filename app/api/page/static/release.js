// A model's release in steps with an administrator's buttons, and its shadow.

import { h } from "./dom.js";
import { number } from "./series.js";

// What the first button does in each state, and what it is called.
const TURNS = {
  running: ["pause", "Pause"],
  paused: ["resume", "Resume"],
  rolled_back: ["resume", "Begin again"],
};
const CAN_GO_BACK = ["running", "paused", "waiting", "completed"];  // once it has begun

/** How far a release is, and why it went back or waits. */
export function releaseOf({ to, state, step, steps, percent, reason, problem }) {
  const at = step ? `, step ${step} of ${steps.length}: ${number(percent)} %` : "";
  const why = reason ?? problem;
  return `Release of version ${to}: ${state.replace("_", " ")}${at}${why ? `; ${why}` : ""}`;
}

/** What a shadow computes, and how its answers compare. */
export function shadowOf({ version, share, problem, compared, agreement }) {
  const what = `Shadow: version ${version} computes ${number(share * 100)} % of the items`;
  if (problem) return `${what}; ${problem}`;
  if (!compared) return `${what}; none was compared yet`;
  return `${what}; it agrees on ${number(agreement * 100)} % of ${number(compared)} items`;
}

/** The release of a model; its elements stay when it changes, so the focus stays too. */
export class Release {
  #text = h("p.note");
  #action = "";
  #turn;
  #back;

  /**
   * @param {{change: Function}} models  sends what a button asks for
   * @param {string} name  of the model
   * @param {string} path  of the model, such as "models/digits"
   */
  constructor(models, name, path) {
    this.name = name;
    const sends = (button, action) => models.change(button.getAttribute("aria-label").toLowerCase(),
      `./admin/${path}/release/${action}`, button);
    this.#turn = h("button.admin.small", { type: "button",
      onclick: () => sends(this.#turn, this.#action) });
    this.#back = h("button.admin.small", { type: "button", text: "Roll back",
      "aria-label": `Roll back the release of ${name}`,
      onclick: () => sends(this.#back, "rollback") });
    this.element = h("div.row", { hidden: true }, this.#text,
      h("span.row", null, this.#turn, this.#back));
  }

  /** @param {Record<string, any> | null | undefined} release */
  show(release) {
    this.element.hidden = !release;
    this.#text.textContent = release ? releaseOf(release) : "";
    const [action, words] = TURNS[release?.state] ?? ["", ""];
    this.#action = action;
    this.#turn.hidden = !action;
    this.#turn.textContent = words;
    this.#turn.setAttribute("aria-label", `${words} the release of ${this.name}`);
    this.#back.hidden = !(release?.step && CAN_GO_BACK.includes(release.state));
  }
}

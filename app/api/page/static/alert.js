// The place of a view where errors are shown, with the time to wait if the server sends one.

import { fill, h, withShortHashes } from "./dom.js";

const MOST_CHARACTERS = 500; // of the details

/** One alert of a view; `element` belongs in its panel. */
export class Alert {
  #timer = 0;

  constructor() {
    this.said = h("div", { role: "alert" });
    this.wait = h("p.wait", { hidden: true });
    this.element = h("div.alert", { hidden: true }, this.said, this.wait);
  }

  /** Hide it. */
  clear() {
    clearInterval(this.#timer);
    this.element.hidden = true;
    fill(this.said);
  }

  /**
   * Show an error; a cancelled call is not an error.
   * @param {any} error
   */
  show(error) {
    if (error?.name === "AbortError") return;
    clearInterval(this.#timer);
    const details = error.details?.length ? JSON.stringify(error.details) : "";
    const facts = [error.status && `status ${error.status}`, error.code, error.requestId];
    fill(
      this.said,
      h("p", { text: withShortHashes(error.message), title: error.message }),
      facts.some(Boolean) && h("p.facts", { text: facts.filter(Boolean).join(" · ") }),
      details && h("p.facts", { text: details.slice(0, MOST_CHARACTERS) }),
    );
    this.element.hidden = false;
    this.wait.hidden = !error.retryAfterMs;
    if (error.retryAfterMs) this.#countDown(Date.now() + error.retryAfterMs);
  }

  #countDown(until) {
    const tick = () => {
      const left = Math.ceil((until - Date.now()) / 1000);
      this.wait.textContent = left > 0 ? `Retry in ${left} s.` : "You can retry now.";
      if (left <= 0) clearInterval(this.#timer);
    };
    this.#timer = setInterval(tick, 1000);
    tick();
  }
}

/** A place next to an administrator's buttons, for the reason why they are disabled. */
export const deniedNote = () => h("p.note", { role: "status", hidden: true });

/**
 * Show the reason; "" hides it. Unchanged text is not written, so it is not announced again.
 * @param {HTMLElement} note
 * @param {string} reason
 */
export function tellDenied(note, reason) {
  note.hidden = !reason;
  if (note.dataset.reason === reason) return;
  note.dataset.reason = reason;
  fill(note, reason, " ", h("a", { href: "#keys", text: "How to set keys" }));
}

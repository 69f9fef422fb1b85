// The place of a view where errors are shown, with the time to wait where the server says one.

import { h, fill } from "./dom.js";

/** One alert of a view; `element` belongs into its panel. */
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
   * Show an error; a cancelled call is none.
   * @param {any} error
   */
  show(error) {
    if (error?.name === "AbortError") return;
    clearInterval(this.#timer);
    const facts = [error.status && `status ${error.status}`, error.code, error.requestId];
    fill(
      this.said,
      h("p", { text: error.message }),
      facts.some(Boolean) && h("p.facts", { text: facts.filter(Boolean).join(" · ") }),
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

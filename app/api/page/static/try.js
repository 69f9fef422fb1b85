// The view Try: choose a model, give it an input, read the answer.

import { Alert } from "./alert.js";
import { h, fill, freshId } from "./dom.js";

const alert = new Alert();
const form = h("form.card.stack", { "aria-label": "Input", novalidate: true });
const side = h("div.stack");
let started = false;

/**
 * Show the view.
 * @param {HTMLElement} panel
 * @param {import("./api.js").Api} api
 */
export async function start(panel, api) {
  if (started) return;
  started = true;
  const id = freshId();
  const models = h("select", { id });
  fill(form, h("h2", { text: "Input" }), h("div.field", null, h("label", { for: id, text: "Model" }), models));
  fill(panel, alert.element, h("div.try", null, form, side));
  try {
    const { models: found } = await api.json("./models");
    fill(models, ...found.map((each) => h("option", { value: each.name, text: each.name })));
    models.value = found.find((each) => each.default)?.name ?? found[0]?.name ?? "";
  } catch (error) {
    started = false;
    alert.show(error);
  }
}

/** Leave the view: what it shows stays. */
export function stop() {}

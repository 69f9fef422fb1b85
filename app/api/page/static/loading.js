// What is said of models that are not served: waiting for another one, failed, or none at all.

import { h } from "./dom.js";

const EXPORT = "torchlane export digits";
const ADOPT = "torchlane adopt model.pt2 --name NAME";

/**
 * The model that is being loaded, which others wait for: one is loaded at a time.
 * @param {Record<string, any>[]} models of GET /models
 * @returns {string} "" if there is none
 */
export function loadedNow(models) {
  const isNow = (each) => each.state === "loading" && each.step;
  return models.find(({ versions }) => versions.some(isNow))?.name ?? "";
}

/**
 * The state of a version in a word or two.
 * @param {{state: string, step: string | null}} version
 * @param {string} now see `loadedNow`
 */
export function stateOf({ state, step }, now) {
  if (state !== "loading" || step || !now) return state;
  return `waiting for ${now}`;
}

/** How to get a first model into an empty repository. */
export function emptyView() {
  return h(
    "div.stack",
    null,
    h("p", { text: "The repository has no models." }),
    h("p.note", { text: "Export one that Torchlane knows, or adopt a file of yours:" }),
    h("pre", { tabindex: "0", "aria-label": "Commands", text: `${EXPORT}\n${ADOPT}` }),
    h("p.note", {
      text: "With --out FOLDER for another repository than artifacts/. The server notices it.",
    }),
  );
}

// What Watch says of error codes: how often each occurred, why, and what to do.

import { h } from "./dom.js";
import { CODES, reasonOf, remedyOf, toneOf } from "./reasons.js";
import { number } from "./series.js";

const codeTag = (code) => h(`span.tag.${toneOf(code)}`, { text: code });

/** An error code: how often it occurred, why, and what to do. */
export function reasonRow(code, count, ever, minutes) {
  const counts = [
    `${number(Math.round(count))} in ${minutes} min`,
    ever !== undefined && `${number(ever)} since the start`,
  ];
  return h("tr", null,
    h("th", { scope: "row" }, codeTag(code), ...counts.map((text) => text && h("div.note", { text }))),
    h("td", null, reasonOf(code), h("div.note", { text: remedyOf(code) })));
}

/** Every error code that a caller may get. */
export function allCodes() {
  const terms = CODES.flatMap((code) => [h("dt", null, codeTag(code)),
    h("dd", null, reasonOf(code), h("div.note", { text: remedyOf(code) }))]);
  return h("details", null, h("summary", { text: "All error codes" }),
    h("dl.spec.codes.card", null, ...terms));
}

// Scores with labels as bars, and labelled spans in their text.

import { fill, freshId, h, short } from "./dom.js";

const LONG_LABEL = 20; // characters: longer labels may take several lines
const MAX_SPANS = 200;
const TOP = 5; // bars that are shown at first
const COLOURS = 6; // classes span-1 to span-6 of try.css

/**
 * The highest scores as bars, and a button that shows all.
 * @param {{label: string, score: number, scores: number[], labels?: string[]}} prediction
 * @param {string[]} labels of the manifest, in the order of `scores` if the answer has none
 */
export function bars(prediction, labels) {
  const names = prediction.labels?.length ? prediction.labels : labels;
  const ranked = prediction.scores
    .map((score, index) => ({ score, label: names[index] ?? `index ${index}` }))
    .sort((one, other) => other.score - one.score);
  if (ranked.length) ranked[0].label = prediction.label; // even if the labels are not known
  const most = ranked.reduce((high, { score }) => Math.max(high, Math.abs(score)), Number.MIN_VALUE);
  const isShare = ranked.every(({ score }) => score >= 0 && score <= 1);
  const row = ({ label, score }, index) => {
    const bar = h("span.fill");
    bar.style.width = `${(100 * Math.max(0, score)) / (isShare ? 1 : most)}%`;
    return h(
      index ? "tr" : "tr.best",
      null,
      h("th", { scope: "row", text: label }),
      h("td.track", { "aria-hidden": "true" }, h("span.rail", null, bar)),
      h("td.number", { text: isShare ? share(score) : short(score) }),
    );
  };
  const body = h("tbody", { id: freshId() });
  const words = { true: `Show the first ${TOP}`, false: `Show all ${ranked.length}` };
  const show = (isAll) => {
    fill(body, ...(isAll ? ranked : ranked.slice(0, TOP)).map(row));
    more.textContent = words[isAll];
    more.setAttribute("aria-expanded", String(isAll));
  };
  const more = h("button.small", {
    type: "button",
    "aria-controls": body.id,
    onclick: () => show(more.getAttribute("aria-expanded") === "false"),
  });
  show(false);
  const isLong = ranked.slice(0, TOP).some(({ label }) => label.length > LONG_LABEL);
  return h(
    "div.stack",
    null,
    h(
      isLong ? "table.bars.long" : "table.bars",
      null,
      h("caption.visually-hidden", { text: "Labels by score" }),
      body,
    ),
    ranked.length > TOP && h("div", null, more),
  );
}

/** A score from 0 to 1 with four decimals. */
export function share(score) {
  return score > 0 && score < 0.00005 ? "< 0.0001" : score.toFixed(4);
}

/**
 * A text with its spans marked, and the spans as a table.
 * @param {{label: string, score: number, start: number, end: number, text: string}[]} spans
 * @param {string | undefined} text as it was sent
 */
export function spansIn(spans, text) {
  const names = [...new Set(spans.map((span) => span.label))];
  const characters = Array.from(text ?? ""); // places count characters, as the server does
  const pieces = [];
  let at = 0;
  for (const span of text === undefined ? [] : spans.slice(0, MAX_SPANS)) {
    if (span.start < at) continue;
    pieces.push(characters.slice(at, span.start).join(""));
    const kind = (names.indexOf(span.label) % COLOURS) + 1;
    pieces.push(
      h(
        `mark.span-${kind}`,
        null,
        characters.slice(span.start, span.end).join(""),
        h("small", { text: span.label }),
      ),
    );
    at = span.end;
  }
  pieces.push(characters.slice(at).join(""));
  const rows = spans
    .slice(0, MAX_SPANS)
    .map((span) =>
      h(
        "tr",
        null,
        h("th", { scope: "row", text: span.label }),
        h("td", { text: span.text }),
        h("td.number", { text: short(span.score) }),
        h("td.number", { text: `${span.start} to ${span.end}` }),
      ),
    );
  if (!rows.length) return h("p.note", { text: "No spans were found." });
  return h(
    "div.stack",
    null,
    h("p.spans", null, ...pieces),
    h(
      "div.scroll",
      { tabindex: "0", role: "group", "aria-label": "Labels" },
      h(
        "table",
        null,
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            ...["Label", "Text", "Score", "Characters"].map((name) =>
              h("th", { scope: "col", text: name }),
            ),
          ),
        ),
        h("tbody", null, ...rows),
      ),
    ),
    spans.length > MAX_SPANS &&
      h("p.note", { text: `The first ${MAX_SPANS} of ${spans.length} spans are shown.` }),
  );
}

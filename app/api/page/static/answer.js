// An answer for people: a card for each item, and the JSON as received.

import { arrayView, heatMap } from "./arrays.js";
import { h } from "./dom.js";
import { bars, share, spansIn } from "./labels.js";
import { hasLongNumber } from "./quoting.js";
import { rowsView } from "./rows.js";

const MAX_CARDS = 50;
const MAX_JSON = 20_000; // characters shown
const MAX_COMPARED = 40; // embeddings

/**
 * The answer in a line, such as "3 in 1.3 ms".
 * @param {Record<string, any>} answer the parsed body
 * @param {Record<string, any>} model of GET /models/NAME?full=true
 * @param {number | null} spent milliseconds in the server; null if it did not say
 */
export function headline(answer, model, spent) {
  const took = spent === null ? "" : ` in ${spent.toFixed(1)} ms`;
  const { prediction } = answer;
  const said = prediction ? essence(prediction, model) : `${answer.predictions.length} items`;
  const isScore = prediction?.scores && prediction.score !== undefined;
  return h(
    "p.top",
    null,
    h("strong", { text: said }),
    took,
    isScore && h("span.note", { text: ` score ${share(prediction.score)}` }),
  );
}

/** What a prediction says, in a word or two. */
function essence(prediction, model) {
  if (prediction.scores) return prediction.label;
  if (prediction.spans) return counted(prediction.spans.length, "span");
  const rows = rowsOf(prediction, model);
  if (rows.length && prediction.labels) return tally(prediction.labels) || "Nothing";
  if (rows.length) return counted(prediction.outputs[rows[0].name].length, "row");
  return "Answered";
}

/** Labels with their numbers, such as "2 circle, 1 square". */
function tally(labels) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const label of labels) counts.set(label, (counts.get(label) ?? 0) + 1);
  return [...counts].map(([label, count]) => `${count} ${label}`).join(", ");
}

function counted(count, noun) {
  return `${count} ${count === 1 ? noun : `${noun}s`}`;
}

/** The outputs of a prediction that have a number of rows. */
function rowsOf(prediction, model) {
  return model.outputs.filter((spec) => spec.count && prediction.outputs?.[spec.name]);
}

/**
 * The predictions of an answer.
 * @param {Record<string, any>} answer the parsed body
 * @param {Record<string, any>} model of GET /models/NAME?full=true
 * @param {import("./inputs.js").Shown[]} shown the items that were sent
 * @returns {HTMLElement[]}
 */
export function predictionsOf(answer, model, shown) {
  const labels = answer.version === model.version ? (model.labels ?? []) : []; // of this version
  if (answer.prediction !== undefined) {
    return [predictionView(answer.prediction, model, shown[0], labels)];
  }
  /** @type {Map<string, number>} */
  const first = new Map();
  for (const [index, { key }] of shown.entries()) if (!first.has(key)) first.set(key, index);
  const cards = answer.predictions.slice(0, MAX_CARDS).map((prediction, index) => {
    const item = shown[index];
    const equal = item ? first.get(item.key) : index;
    return h(
      "section.result.stack",
      { "aria-label": `Item ${index + 1}` },
      h(
        "div.row",
        null,
        item?.picture && thumbnail(item.picture),
        h("h3", { text: `Item ${index + 1}` }),
        item?.title && h("span.note", { text: item.title }),
        equal !== index && h("span.tag", { text: `same as item ${equal + 1}` }),
      ),
      item?.text !== undefined && !prediction.spans && h("p.note.quoted", { text: item.text }),
      prediction.scores && headline({ prediction }, model, null),
      predictionView(prediction, model, item, labels),
    );
  });
  const more = answer.predictions.length - cards.length;
  return [
    compared(answer.predictions, model),
    ...cards,
    more > 0 && h("p.note", { text: `${more} more items are in the JSON.` }),
  ].filter(Boolean);
}

/** A small picture, as it was sent. */
export function thumbnail(blob) {
  const url = URL.createObjectURL(blob);
  const done = () => URL.revokeObjectURL(url);
  return h("img.thumb", { src: url, alt: "", onload: done, onerror: done });
}

/** An output that is a picture, a PNG file in base64. */
function pictureView(name, file) {
  return h(
    "figure.stack",
    null,
    h("figcaption.note", { text: name }),
    h("img.picture", { src: `data:image/png;base64,${file}`, alt: name }),
  );
}

function predictionView(prediction, model, item, labels) {
  if (prediction.error !== undefined) {
    const details = prediction.details?.length ? JSON.stringify(prediction.details) : "";
    return h(
      "div.alert",
      null,
      h("p", { text: prediction.error }),
      h("p.facts", { text: [prediction.code, details].filter(Boolean).join(" · ") }),
    );
  }
  const view = h("div.stack");
  if (prediction.spans) view.append(spansIn(prediction.spans, item?.text));
  if (prediction.scores) view.append(bars(prediction, labels));
  const rows = rowsOf(prediction, model);
  if (rows.length)
    view.append(rowsView(prediction, rows, model.manifest.codec, labels, item?.picture));
  const rowNames = new Set(rows.map((spec) => spec.name));
  for (const [name, value] of Object.entries(prediction.outputs ?? {})) {
    if (typeof value === "string") view.append(pictureView(name, value));
    else if (!rowNames.has(name)) view.append(arrayView(name, value));
  }
  if (prediction.indices && !prediction.scores) {
    view.append(arrayView("indices", prediction.indices));
  }
  if (prediction.details?.cut) {
    const { tokens, cut } = prediction.details;
    view.append(h("p.note", { text: `${tokens} tokens were used, ${cut} were cut off.` }));
  }
  return view;
}

/** Cosine similarities of a batch of embeddings; null for other tasks. */
function compared(predictions, model) {
  if (model.manifest.codec.task !== "embed" || predictions.length > MAX_COMPARED) return null;
  const name = model.outputs[0].name;
  const vectors = predictions.map((each) => each.outputs?.[name]).filter(Boolean);
  if (vectors.length !== predictions.length) return null;
  const dot = (one, other) => one.reduce((sum, value, index) => sum + value * other[index], 0);
  const norms = vectors.map((each) => Math.sqrt(dot(each, each)) || 1);
  const cosines = vectors.map((one, row) =>
    vectors.map((other, column) => dot(one, other) / norms[row] / norms[column]),
  );
  if (vectors.length > 8)
    return h(
      "section.result",
      null,
      h("h3", { text: "Cosine similarity" }),
      heatMap("cosine similarity", cosines),
    );
  if (vectors.length === 2)
    return h("p", null, "Cosine similarity: ", h("strong", { text: cosines[0][1].toFixed(3) }));
  const heads = vectors.map((_, index) =>
    h("th.number", { scope: "col", text: String(index + 1) }),
  );
  const rows = cosines.map((row, index) =>
    h(
      "tr",
      null,
      h("th", { scope: "row", text: `Item ${index + 1}` }),
      ...row.map((each) => h("td.number", { text: each.toFixed(3) })),
    ),
  );
  return h(
    "section.result",
    null,
    h("h3", { text: "Cosine similarity" }),
    h(
      "div.scroll",
      { tabindex: "0", role: "group", "aria-label": "Similarities" },
      h(
        "table",
        null,
        h("thead", null, h("tr", null, h("td"), ...heads)),
        h("tbody", null, ...rows),
      ),
    ),
  );
}

/**
 * The JSON of an answer, folded.
 * @param {string} text as received
 */
export function jsonView(text) {
  const pretty = text.length <= MAX_JSON ? indented(text) : `${text.slice(0, MAX_JSON)} …`;
  const rounded =
    "Whole numbers with more than 15 digits are rounded above; the JSON has them as received.";
  return h(
    "div.stack",
    null,
    hasLongNumber(text) && h("p.note", { text: rounded }),
    h(
      "details",
      null,
      h("summary", { text: "JSON" }),
      h("pre", { tabindex: "0", "aria-label": "JSON", text: pretty }),
      text.length > MAX_JSON &&
        h("p.note", { text: `The first ${MAX_JSON} of ${text.length} characters.` }),
    ),
  );
}

/** Indent JSON, with every number as received and each list of numbers on one line. */
function indented(text) {
  let depth = 0;
  const line = (by) => `\n${"  ".repeat((depth += by))}`;
  return text.replace(/"(?:[^"\\]|\\.)*"|\{\}|\[[^[\]{}"]*\]|[{}[\],:]/g, (token) => {
    if (token === "{" || token === "[") return token + line(1);
    if (token === "}" || token === "]") return line(-1) + token;
    if (token === ",") return token + line(0);
    return token === ":" ? ": " : token;
  });
}

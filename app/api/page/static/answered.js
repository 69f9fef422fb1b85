// A call and its answer as the view Try shows them: the predictions, the time, and the same call.

import { headline, jsonView, predictionsOf, thumbnail } from "./answer.js";
import { h } from "./dom.js";
import { snippetsView } from "./snippets.js";
import { spentBy, timingView } from "./timing.js";

/**
 * @typedef {{response: Response, text: string, total: number}} Answer  `total` milliseconds
 *   measured by the browser
 */

/**
 * The answer to a call; if an output cannot be drawn, with its numbers, and the call says so.
 * @param {import("./api.js").Api} api
 * @param {import("./calls.js").Call} call
 * @param {AbortSignal} signal
 * @returns {Promise<Answer>}
 */
export async function answerTo(api, call, signal) {
  const options = { method: "POST", headers: call.headers, body: call.body, signal };
  let response;
  try {
    response = await api.request(call.path, options);
  } catch (error) {
    const [path, query] = call.path.split("?", 2);
    if (error.status !== 406 || !query) throw error;
    call.path = path; // for example, a PNG mask has no class above 255
    response = await api.request(path, options);
  }
  const text = await response.text();
  const total = performance.now() - response.sentAt;
  signal.throwIfAborted();
  return { response, text, total };
}

/**
 * What is shown of an answer, and its first line as text.
 * @param {Answer} answer
 * @param {import("./calls.js").Call} call
 * @param {import("./api.js").Api} api
 * @param {boolean} isExample whether the page has sent it by itself
 * @returns {{line: string, elements: Element[]}}
 */
export function answerView({ response, text, total }, call, api, isExample) {
  const answer = JSON.parse(text);
  const line = headline(answer, call.model, spentBy(response));
  const picture = isExample && call.input.shown[0].picture;
  const card = h(
    "section.card.stack",
    { "aria-label": isExample ? "Example" : "Answer" },
    h(
      "div.row",
      null,
      h("h2", { text: isExample ? "The model's example" : "Answer" }),
      h("span.tag", { text: `${answer.model} ${answer.version}` }),
      ...cacheTags(response),
    ),
    isExample && h("p.note", { text: "Sent by this page. Predict shows the answer to your input." }),
    h("div.row", null, picture && thumbnail(picture), line),
    ...predictionsOf(answer, call.model, call.input.shown),
    jsonView(text),
  );
  const elements = [card, timingView(response, total), snippetsView(call, api)];
  return { line: line.textContent, elements };
}

/** The cache results in words: "cache hit", or "2 computed" and "1 joined" for a batch. */
function cacheTags(response) {
  const words = { hit: "from the cache", miss: "computed", joined: "joined" };
  const said = response.headers.get("X-Torchlane-Cache") ?? "";
  if (said in words) return [h("span.tag", { text: said === "joined" ? said : `cache ${said}` })];
  return said
    .split(",")
    .map((part) => part.trim().split("="))
    .filter(([name, count]) => name in words && count !== "0")
    .map(([name, count]) => h("span.tag", { text: `${count} ${words[name]}` }));
}

// The view Try: choose a model, give it an input, read the answer.

import { Alert } from "./alert.js";
import { answerTo, answerView } from "./answered.js";
import { callOf } from "./calls.js";
import { fill, freshId, h, withShortHashes } from "./dom.js";
import { inputFor } from "./inputs.js";
import { emptyView, loadedNow, stateOf } from "./loading.js";
import { snippetsView } from "./snippets.js";

const LOOK_AGAIN_MS = 2000;
const NEWEST = ""; // the version of a call that names no version

const alert = new Alert();
const unread = new Alert(); // why the models could not be read
const status = h("p.note", { role: "status" });
const models = h("select", { id: freshId(), onchange: chooseModel });
const versions = h("select", {
  id: freshId(),
  onchange: () => chosen(models.value, versions.value),
});
const about = h("p.note");
const place = h("div");
const send = h("button.main", { type: "submit", text: "Predict", hidden: true });
const cancel = h("button", {
  type: "button",
  text: "Cancel",
  hidden: true,
  onclick: () => running?.abort(),
});
const result = h("div.stack");
const form = h(
  "form.card.stack",
  { "aria-label": "Input", novalidate: true, onsubmit: submit, onkeydown: submitByKey },
  h(
    "div.choice",
    null,
    h("div.field", null, h("label", { for: models.id, text: "Model" }), models),
    h("div.field", null, h("label", { for: versions.id, text: "Version" }), versions),
  ),
  about,
  place,
  h("div.row", null, send, cancel, status),
);

let api = null;
let input = null; // the form of the chosen model
let model = null; // as GET /models/NAME?full=true describes it
let running = null; // aborts the call in flight
let showing = null; // aborts the call of the example
let waiting = 0; // the timer that checks again for a model that is not ready
let now = ""; // the model that is being loaded
let isShown = false;
let isByHand = false; // whether the user has chosen the model
let asked = 0; // requests for descriptions of models: only the last one counts

/**
 * Show the view.
 * @param {HTMLElement} panel
 * @param {import("./api.js").Api} given
 */
export async function start(panel, given) {
  api = given;
  isShown = true;
  if (!form.isConnected) {
    fill(
      panel,
      h(
        "div.try",
        null,
        h("div.stack", null, h("h2.visually-hidden", { text: "Try a model" }), form),
        h("div.stack", null, unread.element, alert.element, result),
      ),
    );
  }
  await list();
}

/** Leave the view, which keeps its contents. */
export function stop() {
  isShown = false;
  clearTimeout(waiting);
}

/** Offer the models that are served now; keep the user's choice. */
async function list() {
  clearTimeout(waiting);
  let found;
  try {
    ({ models: found } = await api.json("./models"));
  } catch (error) {
    unread.show(error);
    if (error.status !== 401) lookAgain(); // after 401 the user entered no key
    return;
  }
  const before = models.value;
  now = loadedNow(found);
  fill(
    models,
    ...found.map((each) =>
      h("option", {
        value: each.name,
        text: each.state === "ready" ? each.name : `${each.name} (${whatOf(each)})`,
      }),
    ),
  );
  const isKept = (input || isByHand) && found.some((each) => each.name === before);
  models.value = isKept ? before : usual(found);
  if (found.length) {
    await chosen(models.value, isKept ? versions.value : NEWEST);
  } else {
    unread.clear();
    about.textContent = "";
    fill(place, emptyView());
    send.hidden = true;
    lookAgain();
  }
}

/** The name of the model to begin with: the default, or the first that can answer. */
function usual(found) {
  const of = (state) => found.find((each) => each.state === state);
  const first = found.find((each) => each.default) ?? of("ready") ?? of("cold") ?? of("loading") ?? found[0];
  return first?.name ?? "";
}

function lookAgain() {
  clearTimeout(waiting);
  if (isShown) waiting = setTimeout(list, LOOK_AGAIN_MS);
}

function chooseModel() {
  isByHand = true;
  takeAway(); // prevents typing into another model's form
  chosen(models.value, NEWEST);
}

/** Show the form of a model, unless it is already shown. */
async function chosen(name, version) {
  const turn = ++asked;
  const path = `./models/${encodeURIComponent(name)}?full=true`;
  let served, found;
  try {
    served = found = await api.json(path);
    if (isReady(served, version)) found = await api.json(`${path}&version=${version}`);
  } catch (error) {
    if (turn !== asked) return;
    unread.show(error);
    if (error.status !== 401) lookAgain();
    return;
  }
  if (turn !== asked) return; // the user has chosen another one
  unread.clear();
  const ready = served.versions
    .map((each) => String(each.version))
    .filter((each) => isReady(served, each));
  fill(
    versions,
    h("option", {
      value: NEWEST,
      text: served.version === null ? "none"
        : served.weights ? "by weights" : `served (${served.version})`,
    }),
    ...ready.map((each) => h("option", { value: each, text: each })),
  );
  versions.value = ready.includes(version) ? version : NEWEST;
  clearTimeout(waiting);
  const isSame = model !== null && found.name === model.name && found.version === model.version;
  model = found;
  if (isSame && input) return;
  takeAway();
  alert.clear();
  const isHandler = found.kind === "handler"; // which takes whatever its author chose
  const shows = found.manifest && !isHandler;
  about.textContent = found.manifest ? (found.description ?? "") : whyNot(found);
  if (isHandler) about.textContent += ` A handler: call POST /models/${name}/predict.`;
  send.hidden = !shows;
  status.textContent = "";
  if (shows) {
    input = inputFor(found);
    fill(place, input.element);
    showExample();
  } else if (!isHandler) lookAgain();
}

/** Show what the model answers to its example, until the user sends something. */
async function showExample() {
  const calls = (showing = new AbortController());
  try {
    const example = await input.example();
    if (example) await predict(callOf(model, versions.value, example), calls.signal, true);
  } catch (error) {
    if (calls.signal.aborted) return;
    fill(result, h("p.note", { text: `The example has no answer: ${error.message}` }));
  }
}

function isReady(model, version) {
  return model.versions.some(
    (each) => ["ready", "cold"].includes(each.state) && String(each.version) === version,
  );
}

/** Remove the form and the answer to its input. */
function takeAway() {
  running?.abort();
  showing?.abort();
  input?.close();
  input = null;
  send.hidden = true; // without a form there is nothing to send
  fill(place);
  fill(result);
}

/** The state of a model that is not ready, such as "waiting for minilm". */
function whatOf({ name, state, versions: known }) {
  const version = known.find((each) => each.state === state);
  return version && name !== now ? stateOf(version, now) : state;
}

/** The reason why a model does not answer. */
function whyNot(model) {
  const { state, versions: known } = model;
  const step = known.find((each) => each.step)?.step;
  if (state === "loading" && step) return `The model is loading: ${step}.`;
  const problem = known.find((each) => each.problem)?.problem;
  return problem ? withShortHashes(problem) : `The model is ${whatOf(model)}.`;
}

function submitByKey(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
}

async function submit(event) {
  event.preventDefault();
  if (running || !input) return;
  running = new AbortController();
  busy(true);
  try {
    const read = await input.read();
    if (read) {
      showing?.abort();
      await predict(callOf(model, versions.value, read), running.signal);
    } else status.textContent = "There is nothing to send yet: draw, choose or paste a picture.";
  } catch (error) {
    status.textContent = error.name === "AbortError" ? "Cancelled." : "";
    alert.show(error);
  } finally {
    running = null;
    busy(false);
  }
}

function busy(isBusy) {
  send.setAttribute("aria-disabled", String(isBusy));
  if (!isBusy && document.activeElement === cancel) send.focus();
  cancel.hidden = !isBusy;
  if (isBusy) status.textContent = "Waiting for the answer.";
  result.classList.toggle("stale", isBusy);
}

/**
 * Make a call and show its result.
 * @param {import("./calls.js").Call} call
 * @param {AbortSignal} signal
 * @param {boolean} [isExample] whether the page sends it by itself
 */
async function predict(call, signal, isExample = false) {
  if (!isExample) alert.clear();
  try {
    const answer = await answerTo(api, call, signal);
    const { line, elements } = answerView(answer, call, api, isExample);
    fill(result, ...elements);
    if (isExample) return;
    status.textContent = line;
    bringIntoView();
  } catch (error) {
    if (error.name !== "AbortError" && !isExample) fill(result, snippetsView(call, api));
    throw error;
  }
}

/** Scroll to the answer: on a narrow screen it is below the form. */
function bringIntoView() {
  if (result.getBoundingClientRect().top > innerHeight * 0.8) result.scrollIntoView();
}

// The shell: tabs, the key dialog, and the views, which are loaded when they are first shown.
//
// A view is a module with `start(panel, api)`, called whenever its tab is selected, and `stop()`,
// called when another tab is selected. The panel keeps the view's elements.

import { Alert } from "./alert.js";
import { Api } from "./api.js";
import { fill } from "./dom.js";

const VIEWS = ["try", "watch", "models"];
const tabs = VIEWS.map((name) => document.getElementById(`tab-${name}`));
const panels = VIEWS.map((name) => document.getElementById(`panel-${name}`));
const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("key-dialog"));
const field = /** @type {HTMLInputElement} */ (document.getElementById("key-value"));
const help = /** @type {HTMLDetailsElement} */ (document.getElementById("key-help"));
const problem = document.getElementById("key-problem");
const api = new Api(askForKey);

let shown = -1;
let running = null; // the module of the shown view
let asking = null; // the answer of the dialog while it is open

/**
 * Ask for a key.
 * @param {string} why what was wrong with the last key, "" if there was none
 * @returns {Promise<string | null>} null if the dialog was cancelled
 */
function askForKey(why) {
  if (dialog.open) return asking;
  problem.textContent = why;
  field.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  field.focus();
  asking = new Promise((resolve) => {
    const closed = () => {
      const given = field.value.trim();
      field.value = "";
      resolve(dialog.returnValue === "use" ? given : null);
    };
    dialog.addEventListener("close", closed, { once: true });
  });
  return asking;
}

/** Show a view; the latest selection wins while another view is loading. */
async function show(index) {
  if (index === shown) return;
  running?.stop();
  running = null;
  shown = index;
  for (const [at, tab] of tabs.entries()) {
    tab.setAttribute("aria-selected", String(at === index));
    tab.tabIndex = at === index ? 0 : -1;
    panels[at].hidden = at !== index;
  }
  document.title = `${tabs[index].textContent} · Torchlane`;
  try {
    const view = await import(`./${VIEWS[index]}.js`);
    if (shown !== index) return;
    running = view;
    await view.start(panels[index], api);
  } catch (error) {
    const alert = new Alert();
    alert.show(error);
    fill(panels[index], alert.element);
  }
}

/** Show the key dialog with its explanation, then the address of the view again. */
async function explainKeys() {
  help.open = true;
  const key = await askForKey("");
  help.open = false;
  history.replaceState(null, "", `#${VIEWS[shown]}`);
  if (key !== null) useKey(key);
}

function useKey(key) {
  api.setKey(key);
  const again = shown;
  shown = -1;
  show(again); // with the data that this key may see
}

function fromAddress() {
  const index = VIEWS.indexOf(location.hash.slice(1).split("/")[0]);
  if (index >= 0 || shown < 0) show(Math.max(index, 0));
  if (location.hash === "#keys") explainKeys();
}

for (const [index, tab] of tabs.entries()) {
  tab.addEventListener("click", () => {
    history.replaceState(null, "", `#${VIEWS[index]}`);
    show(index);
  });
  tab.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: tabs.length - 1 };
    const to = moves[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const target = tabs[(to + tabs.length) % tabs.length];
    target.focus();
    target.click();
  });
}

document.getElementById("key").addEventListener("click", async () => {
  const key = await askForKey("");
  if (key !== null) useKey(key);
});
dialog.addEventListener("submit", (event) => {
  if (/^[\x21-\x7e]*$/.test(field.value.trim())) return;
  event.preventDefault(); // a header cannot hold it
  problem.textContent = "A key may have only ASCII characters and no spaces.";
});
document.getElementById("key-cancel").addEventListener("click", () => dialog.close(""));
addEventListener("hashchange", fromAddress);
fromAddress();

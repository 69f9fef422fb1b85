// Models: the state of every version, and the form for each batch size; load and unload.

import { Alert, deniedNote, tellDenied } from "./alert.js";
import { fill, h, withShortHashes } from "./dom.js";
import { save } from "./download.js";
import { emptyView, loadedNow, stateOf } from "./loading.js";
import { Plan } from "./plan.js";
import { number } from "./series.js";

const IDLE_MS = 5000;
const LOADING_MS = 1000;
const SERVED = ["ready", "cold", "loading"];
// A file has no headers, so it includes the report's policy.
const SANDBOX = '<!doctype html><meta http-equiv="Content-Security-Policy" '
  + "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">";
const TONES = { ready: "good", failed: "bad", loading: "warn" };
let view = null;

/**
 * Show the view, and poll the models.
 * @param {HTMLElement} panel
 * @param {import("./api.js").Api} api
 */
export function start(panel, api) {
  view ??= new Models(panel, api);
  view.shown = true;
  return view.refresh();
}

/** Stop polling. */
export function stop() {
  view.shown = false;
  clearTimeout(view.timer);
}

class Models {
  shown = false;
  timer = 0;
  /** @type {Map<string, Card>} */
  #cards = new Map();
  #alert = new Alert(); // the result of the user's last action
  #unread = new Alert(); // why the models could not be read
  #denied = deniedNote();
  #busy = new Set(); // the buttons whose changes are in progress
  #said = h("p.note", { role: "status" });
  #list = h("div.stack");
  #reload = h("button.admin", { type: "button", text: "Reload repository",
    title: "Look for new versions, and retry versions that failed to load",
    onclick: () => this.change("reload", "./admin/reload", this.#reload) });
  #again = h("button", { type: "button", text: "Try again", hidden: true,
    onclick: () => this.refresh() });
  #dialog = new Confirmation();

  constructor(panel, api) {
    this.api = api;
    this.panel = panel;
    fill(panel, h("div.stack", null,
      h("div.row", null, h("h2", { text: "Models" }), this.#reload, this.#again, this.#denied,
        this.#said),
      this.#unread.element, this.#alert.element, this.#list, this.#dialog.element));
  }

  /** Show the models, and refresh later, unless the server refuses to list them. */
  async refresh() {
    clearTimeout(this.timer);
    this.#again.hidden = true;
    try {
      const { models } = await this.api.json("./models");
      this.#unread.clear();
      this.#show(models);
      this.api.learn().then(() => this.#permit(), () => null);
      const loading = models.some((each) => each.versions.some((one) => one.state === "loading"));
      this.#later(loading ? LOADING_MS : IDLE_MS);
    } catch (error) {
      this.#unread.show(error);
      const refused = error.status === 401 || error.status === 403;
      this.#again.hidden = !refused;
      if (!refused) this.#later(IDLE_MS);
    }
  }

  #later(ms) {
    clearTimeout(this.timer);
    if (this.shown) this.timer = setTimeout(() => this.refresh(), ms);
  }

  #show(models) {
    const before = [...this.#cards.keys()].join();
    const names = models.map((each) => each.name);
    const now = loadedNow(models);
    for (const each of models) {
      if (!this.#cards.has(each.name)) this.#cards.set(each.name, new Card(each.name, this));
      this.#cards.get(each.name).show(each, now);
    }
    for (const name of this.#cards.keys()) if (!names.includes(name)) this.#cards.delete(name);
    if (before !== [...this.#cards.keys()].join()) {
      fill(this.#list, ...[...this.#cards.values()].map((each) => each.element));
    }
    this.#permit();
    if (!models.length) fill(this.#list, h("section.card", null, emptyView()));
  }

  /**
   * Request a change from the server, and show its result.
   * @param {string} what  for people, such as "unload digits"
   * @param {string} path
   * @param {HTMLButtonElement} button
   */
  async change(what, path, button) {
    if (what.startsWith("unload") && !(await this.#dialog.ask(what))) return;
    this.#alert.clear();
    this.#busy.add(button);
    this.#permit();
    this.#said.textContent = `${what} …`;
    this.#later(LOADING_MS);
    try {
      const changes = await this.api.json(path, { method: "POST" });
      this.#said.textContent = `${what}: ${sentence(changes)}`;
    } catch (error) {
      this.#said.textContent = "";
      if (error.body?.failed) error.message = `${what}: ${sentence(error.body)}`;
      if (!this.api.denied) this.#alert.show(error);
    } finally {
      this.#busy.delete(button);
      this.#permit();
    }
    await this.refresh();
  }

  /** Disable buttons that are in progress or not allowed. */
  #permit() {
    tellDenied(this.#denied, this.api.denied);
    for (const each of this.panel.querySelectorAll("button.admin")) {
      each.disabled = this.api.denied !== "" || this.#busy.has(each);
    }
  }

  /** Save a version's report, because a link has no key. */
  async report(path, name) {
    this.#alert.clear();
    try {
      await save(await this.api.request(path), name, SANDBOX);
    } catch (error) {
      this.#alert.show(error);
    }
  }
}

/** An answer about changes, in words. */
function sentence({ loaded, retired, failed }) {
  const name = (each) => `${each.model}/${each.version}`;
  const names = (list) => list.map(name).join(", ");
  const failures = failed.map((each) =>
    `${name(each)} failed: ${each.problem.replace(`${name(each)}: `, "")}`);
  return [
    loaded.length && `loaded ${names(loaded)}`,
    retired.length && `retired ${names(retired)}`,
    ...failures,
  ].filter(Boolean).join("; ") || "nothing changed";
}

/** Which versions answer requests that name none, and how many of them. */
function servesOf(version, weights) {
  const shares = (weights?.versions ?? []).filter((each) => each.share > 0);
  if (shares.length < 2) return `serves version ${version}`;
  const parts = shares.map((each) => `${each.version} (${number(each.share * 100)} %)`);
  return `serves versions ${parts.join(", ")}`;
}

/** How far a release is, and why it went back or waits. */
function releaseOf({ to, state, step, steps, percent, reason, problem }) {
  const at = step ? `, step ${step} of ${steps.length}: ${number(percent)} %` : "";
  const why = reason ?? problem;
  return `Release of version ${to}: ${state.replace("_", " ")}${at}${why ? `; ${why}` : ""}`;
}

/** One model. Its elements stay when it changes, so the focus stays too. */
class Card {
  /** @type {Map<number, Version>} */
  #versions = new Map();
  #tags = h("span.row");
  #switch;
  #idle = h("p.note", { hidden: true }); // which weights have no effect
  #release = h("p.note", { hidden: true });
  #body = h("tbody");

  constructor(name, models) {
    this.name = name;
    this.models = models;
    this.path = `models/${encodeURIComponent(name)}`;
    this.plan = new Plan(models.api, this.path);
    this.#switch = new Switch(models, name, this.path);
    const columns = ["Version", "State", "", "Actions"].map((text) =>
      h("th", { scope: "col" }, text || h("span.visually-hidden", { text: "Details" })));
    this.element = h("section.card.stack", { "aria-label": `Model ${name}` },
      h("div.row", null, h("h3", { text: name }), this.#tags,
        h("span.actions", null, this.#switch.element)),
      this.#idle,
      this.#release,
      h("div.scroll", { tabindex: 0, role: "region", "aria-label": `Versions of ${name}` },
        h("table.versions", null, h("thead", null, h("tr", null, ...columns)), this.#body)),
      this.plan.element);
  }

  show({ default: isDefault, version, versions, weights, release }, now) {
    fill(this.#tags, isDefault && h("span.tag", { text: "default" }),
      version !== null && h("span.note", { text: servesOf(version, weights) }));
    this.#idle.hidden = !weights?.problem;
    this.#idle.textContent = weights?.problem ?? "";
    this.#release.hidden = !release;
    this.#release.textContent = release ? releaseOf(release) : "";
    this.#switch.show(versions.some((each) => SERVED.includes(each.state)));
    this.plan.changed(JSON.stringify(versions.map((each) => [each.version, each.state])));
    const before = [...this.#versions.keys()].join();
    const numbers = versions.map((each) => each.version);
    for (const each of versions) {
      const known = this.#versions.get(each.version) ?? new Version(this, each.version);
      this.#versions.set(each.version, known);
      known.show(each, now);
    }
    for (const each of this.#versions.keys()) if (!numbers.includes(each)) this.#versions.delete(each);
    if (before !== numbers.join()) {
      fill(this.#body, ...numbers.map((each) => this.#versions.get(each).element));
    }
  }
}

/** One version: a row of its model's table. */
class Version {
  #state = h("td");
  #detail = h("td.reason");
  #shown = "";
  #switch;

  constructor(card, number) {
    const name = `${card.name}/${number}`;
    const path = `${card.path}/versions/${number}`;
    const report = h("a.button.small", { href: `./${path}/report`, target: "_blank", rel: "noopener",
      text: "Report", "aria-label": `Report of ${name}`,
      onclick: (event) => {
        if (!card.models.api.keyed) return;
        event.preventDefault();
        card.models.report(`./${path}/report`, `${card.name}-${number}-report.html`);
      } });
    this.name = name;
    this.#switch = new Switch(card.models, name, path);
    this.element = h("tr", null, h("th", { scope: "row", text: String(number) }), this.#state,
      this.#detail, h("td", null, h("span.actions", null, report, this.#switch.element)));
  }

  show(status, now) {
    const shown = JSON.stringify([status, now]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.#switch.show(SERVED.includes(status.state));
    const { state, problem, step, seconds, progress } = status;
    fill(this.#state, h(`span.tag.${TONES[state] ?? "none"}`, { text: stateOf(status, now) }));
    this.#detail.removeAttribute("title");
    if (state === "loading" && (step || !now)) {
      const bar = h("progress", { max: 1, "aria-label": `${this.name} is loading` });
      if (progress != null) bar.value = progress;
      const words = [step, seconds != null && `${number(seconds)} s`].filter(Boolean).join(", ");
      fill(this.#detail, bar, ` ${words}`);
    } else {
      this.#detail.textContent = withShortHashes(problem ?? "");
      if (problem) this.#detail.title = problem;
    }
  }
}

/** The button that loads or unloads a model or a version. */
class Switch {
  #verb = "load";

  constructor(models, name, path) {
    this.name = name;
    this.element = h("button.admin.small", { type: "button", onclick: () =>
      models.change(`${this.#verb} ${name}`, `./admin/${path}/${this.#verb}`, this.element) });
  }

  /** @param {boolean} loaded */
  show(loaded) {
    this.#verb = loaded ? "unload" : "load";
    this.element.textContent = loaded ? "Unload" : "Load";
    this.element.setAttribute("aria-label", `${this.element.textContent} ${this.name}`);
  }
}

/** A dialog that asks before something is unloaded. */
class Confirmation {
  #title = h("h2", { id: "confirm-title" });
  #yes = h("button.main", { type: "submit", value: "yes", text: "Unload" });
  element = h("dialog", { "aria-labelledby": "confirm-title" },
    h("form.stack", { method: "dialog" }, this.#title,
      h("p", { text: "Requests that name it are rejected until it is loaded again." }),
      h("div.row.end", null,
        h("button.quiet", { type: "submit", value: "no", text: "Cancel" }), this.#yes)));

  /** @param {string} what */
  ask(what) {
    this.#title.textContent = `${what[0].toUpperCase()}${what.slice(1)}?`;
    this.element.returnValue = "";
    this.element.showModal();
    return new Promise((resolve) => {
      const closed = () => resolve(this.element.returnValue === "yes");
      this.element.addEventListener("close", closed, { once: true });
    });
  }
}

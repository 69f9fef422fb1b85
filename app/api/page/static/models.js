// Models: the state of every version, and the form for each batch size; load and unload.

import { Alert, deniedNote, tellDenied } from "./alert.js";
import { fill, h } from "./dom.js";
import { save } from "./download.js";
import { feedOf } from "./live.js";
import { emptyView, loadedNow } from "./loading.js";
import { figuresOf } from "./means.js";
import { Plan } from "./plan.js";
import { Release, releaseOf, shadowOf } from "./release.js";
import { nameOf } from "./series.js";
import { isServed, sharesOf, Switch, Version } from "./version.js";

const FIGURES = ["Requests", "Errors", "p50", "p99"];
const IDLE_MS = 5000;
const LOADING_MS = 1000;
// A file has no headers, so it includes the report's policy.
const SANDBOX = '<!doctype html><meta http-equiv="Content-Security-Policy" '
  + "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">";
let view = null;

/**
 * Show the view, and poll the models.
 * @param {HTMLElement} panel
 * @param {import("./api.js").Api} api
 */
export function start(panel, api) {
  view ??= new Models(panel, api);
  view.shown = true;
  view.feed.run();
  view.figures();
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
    this.feed = feedOf(api);
    this.feed.listen(() => this.figures());
    fill(panel, h("div.stack", null,
      h("div.row", null, h("h2", { text: "Models" }), this.#reload, this.#again, this.#denied,
        this.#said),
      h("p.note", { text: "Requests, errors and latencies are those since the server started." }),
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
      const loads = (one) => one.state === "loading" || one.left_s != null;
      const loading = models.some((each) => each.versions.some(loads));
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
    this.figures();
    if (!models.length) fill(this.#list, h("section.card", null, emptyView()));
  }

  /** Show what each version did since the server started, and which is the slowest. */
  figures() {
    if (!this.shown) return;
    const newest = this.feed.history.samples.findLast((each) => each.snapshot)?.snapshot;
    const figures = new Map((newest?.totals ?? []).map((each) => [nameOf(each), figuresOf(each)]));
    const served = new Set((newest?.models ?? []).map(nameOf));
    const timed = [...figures].filter(([name, each]) => served.has(name) && each.p99 !== null)
      .sort(([, one], [, other]) => other.p99 - one.p99);
    const slowest = timed.length > 1 ? timed[0][0] : "";
    for (const card of this.#cards.values()) card.figures(figures, slowest);
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
function sentence(changes) {
  if (changes.steps) return releaseOf(changes);
  const { loaded, retired, failed } = changes;
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

/** One model. Its elements stay when it changes, so the focus stays too. */
class Card {
  /** @type {Map<number, Version>} */
  #versions = new Map();
  #tags = h("span.row");
  #switch;
  #idle = h("p.note", { hidden: true }); // which weights have no effect
  #release;
  #shadow = h("p.note", { hidden: true });
  #body = h("tbody");

  constructor(name, models) {
    this.name = name;
    this.models = models;
    this.path = `models/${encodeURIComponent(name)}`;
    this.plan = new Plan(models.api, this.path);
    this.#switch = new Switch(models, name, this.path);
    this.#release = new Release(models, name, this.path);
    const columns = ["Version", "State", ...FIGURES, "Details", "Actions"].map((text) =>
      h(FIGURES.includes(text) ? "th.number.wide" : "th", { scope: "col", text }));
    this.element = h("section.card.stack", { "aria-label": `Model ${name}` },
      h("div.row", null, h("h3", { text: name }), this.#tags,
        h("span.actions", null, this.#switch.element)),
      this.#idle,
      this.#release.element,
      this.#shadow,
      h("div.scroll", { tabindex: 0, role: "region", "aria-label": `Versions of ${name}` },
        h("table.versions", null, h("thead", null, h("tr", null, ...columns)), this.#body)),
      this.plan.element);
  }

  show(model, now) {
    const { default: isDefault, versions, weights, release, shadow } = model;
    fill(this.#tags, isDefault && h("span.tag", { text: "default" }));
    this.#idle.hidden = !weights?.problem;
    this.#idle.textContent = weights?.problem ?? "";
    this.#release.show(release);
    this.#shadow.hidden = !shadow;
    this.#shadow.textContent = shadow ? shadowOf(shadow) : "";
    const shares = sharesOf(model);
    this.#switch.show(versions.some(isServed));
    this.plan.changed(JSON.stringify(versions.map((each) => [each.version, each.state])));
    const before = [...this.#versions.keys()].join();
    const numbers = versions.map((each) => each.version);
    for (const each of versions) {
      const known = this.#versions.get(each.version) ?? new Version(this, each.version);
      this.#versions.set(each.version, known);
      known.show(each, shares.get(each.version), now);
    }
    for (const each of this.#versions.keys()) if (!numbers.includes(each)) this.#versions.delete(each);
    if (before !== numbers.join()) {
      fill(this.#body, ...numbers.map((each) => this.#versions.get(each).element));
    }
  }

  /**
   * @param {Map<string, import("./means.js").Figures>} figures  by the name of a version
   * @param {string} slowest  the name of one
   */
  figures(figures, slowest) {
    for (const each of this.#versions.values()) {
      each.figures(figures.get(each.name) ?? null, each.name === slowest);
    }
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

// Watch: charts of the server's live data, its replicas and devices, and the profiler.

import { Alert, deniedNote, tellDenied } from "./alert.js";
import { Chart, load } from "./chart.js";
import { allCodes, reasonRow } from "./codes.js";
import { bytes, fill, h } from "./dom.js";
import { save } from "./download.js";
import { feedOf } from "./live.js";
import { errorsOf, failuresIn, failuresSinceStart, isIdle, modelsIn, statesOf, toneOfErrors }
  from "./means.js";
import { FAILURES } from "./reasons.js";
import { nameOf, number, OF_DEVICES, OF_MODEL, OF_SERVER } from "./series.js";

const PROFILE_S = 5;
const SPANS = [1, 5, 10]; // minutes
const WIDE = ["In the queue", "Compute", "Batch", "Cache"]; // columns of a wide screen
let view = null;
let shown = false;

/**
 * Show the view. Once started, it collects data even while other views are shown.
 * @param {HTMLElement} panel
 * @param {import("./api.js").Api} api
 */
export async function start(panel, api) {
  shown = true;
  await load();
  if (!shown) return; // the user has selected another view
  view ??= new Watch(panel, api);
  view.feed.run();
  view.draw();
  api.learn().then(() => view.draw(), () => null); // the connection says what is wrong
}

/** Stop drawing. */
export function stop() {
  shown = false;
}

class Watch {
  /** @type {import("./live.js").Sample[] | null} */
  #paused = null;
  #status = h("p.live", { role: "status" });
  #connect = h("button", { type: "button", text: "Connect", onclick: () => this.feed.run() });
  #pause = h("button", { type: "button", "aria-pressed": "false", text: "Pause",
    onclick: () => this.#toggle() });
  #model = h("select", { id: "watch-model", onchange: () => this.draw() },
    h("option", { value: "", text: "All models" }));
  #span = h("select", { id: "watch-span", onchange: () => this.draw() },
    ...SPANS.map((each) => h("option", { value: String(each), text: `${each} min` })));
  #facts = h("p.note");
  #tiles = h("dl.tiles");
  #idle = h("p.note", { hidden: true }, "No requests in this time: send one in Try, or run ",
    h("code", { text: "torchlane load run --rate 10 --seconds 60" }), ".");
  #models = h("tbody");
  #versions; // the region of its table
  #reasons = h("tbody");
  #refused = h("section.stack", { hidden: true });
  #now = h("section.stack"); // hidden while the numbers are not known
  #replicas = h("tbody");
  #devices = h("tbody");
  #ofDevices = h("section.stack", { hidden: true });
  #known = h("div.stack", { hidden: true }); // shown once there is data

  constructor(panel, api) {
    this.profiler = new Profiler(api);
    this.feed = feedOf(api);
    this.feed.listen(() => this.draw());
    this.charts = [OF_SERVER, OF_MODEL, OF_DEVICES].map((group) =>
      group.map(({ title, unit, lines }) => ({ chart: new Chart(title, unit, number), lines })),
    );
    const [server, model, devices] = this.charts.map((group) =>
      h(`div.charts.of-${group.length}`, null, ...group.map(({ chart }) => chart.element)),
    );
    fill(
      this.#ofDevices,
      h("h2", { text: "Devices" }),
      table("Devices", ["Device", "Memory", "Utilization", "Temperature#"], this.#devices),
      devices,
    );
    fill(this.#refused, h("h2", { text: "Rejections and failures" }),
      table("Reasons", ["Requests", "Why, and what to do"], this.#reasons));
    this.#versions = table("Versions",
      ["Version", "p99#", "Errors#", "Items/s#", ...WIDE.map((each) => `${each}#wide`)],
      this.#models);
    fill(
      this.#now,
      h("h2", { text: "Replicas" }),
      table("Replicas", ["Replica", "Device", "State", "Busy", "Items/s#"], this.#replicas),
      this.#ofDevices,
    );
    fill(
      this.#known,
      this.#tiles, this.#idle,
      h("div.row", null, h("h2", { text: "Server" }), this.#facts), server, this.#refused, allCodes(),
      h("div.row", null, h("h2", { text: "Models" }),
        h("label.visually-hidden", { for: "watch-model", text: "Model" }), this.#model),
      this.#versions,
      model,
      this.#now,
    );
    this.#span.value = "5";
    fill(
      panel,
      h("div.stack", null,
        h("div.row", null, this.#status, this.#connect, this.#pause,
          h("label.visually-hidden", { for: "watch-span", text: "Time shown" }), this.#span,
          this.profiler.element),
        this.profiler.alert.element, this.#known),
    );
  }

  #toggle() {
    this.#paused = this.#paused ? null : [...this.feed.history.samples];
    this.#pause.setAttribute("aria-pressed", String(this.#paused !== null));
    this.draw();
  }

  /** Show the current data, or the data when it was paused. */
  draw() {
    if (!shown) return;
    this.#tellState();
    this.profiler.permit();
    const all = this.#paused ?? this.feed.history.samples;
    const newest = all.findLast((each) => each.snapshot)?.snapshot;
    if (!newest) return;
    const since = newest.at - 60 * Number(this.#span.value);
    const samples = all.slice(all.findIndex((each) => each.at >= since));
    const isOnline = this.#paused !== null || this.feed.state.kind === "live";
    this.#known.hidden = false;
    this.#choices(newest.models.map(nameOf));
    fill(this.#tiles, ...tilesOf(isOnline ? newest : null, this.feed.history.versions));
    this.#idle.hidden = !isOnline || !isIdle(samples);
    this.#now.hidden = !isOnline;
    this.#facts.textContent = isOnline ? factsOf(newest) : "";
    fill(this.#models, ...modelsIn(samples).map(modelRow));
    const failures = new Map(failuresIn(samples));
    const ever = new Map(Object.entries(failuresSinceStart(samples))
      .sort(([, one], [, other]) => other - one));
    const codes = new Set([...failures.keys(), ...ever.keys()]);
    fill(this.#reasons, ...[...codes].map((code) =>
      reasonRow(code, failures.get(code) ?? 0, ever.get(code), Number(this.#span.value))));
    this.#refused.hidden = codes.size === 0 || !isOnline;
    this.#versions.hidden = !isOnline;
    fill(this.#replicas, ...newest.replicas.map(replicaRow));
    fill(this.#devices, ...newest.devices.map(deviceRow));
    this.#ofDevices.hidden = newest.devices.length === 0;
    const times = samples.map((each) => each.at);
    for (const { chart, lines } of this.charts.flat()) {
      const drawn = lines.flatMap((each) => each(samples, this.#model.value));
      chart.element.hidden = drawn.length === 0;
      if (drawn.length) chart.show(times, drawn);
    }
  }

  /** The state in words; unchanged text is not written, so it is not announced again. */
  #tellState() {
    const { kind, since, reason } = this.feed.state;
    const at = since.toLocaleTimeString("en-GB");
    const paused = this.#paused && "Paused; data is still collected";
    const words = {
      connecting: "Connecting",
      live: paused ?? "Live",
      lost: `Disconnected since ${at}, reconnecting: ${reason}`,
      refused: `Not connected: ${reason}`,
    }[kind];
    if (this.#status.textContent !== words) this.#status.textContent = words;
    this.#status.dataset.state = this.#paused && kind === "live" ? "paused" : kind;
    this.#connect.hidden = kind !== "refused";
  }

  #choices(names) {
    const chosen = this.#model.value;
    const known = [...this.#model.options].map((each) => each.value).slice(1);
    if (JSON.stringify(known) === JSON.stringify(names)) return;
    const options = names.map((name) => h("option", { value: name, text: name }));
    fill(this.#model, this.#model.options[0], ...options);
    this.#model.value = names.includes(chosen) ? chosen : "";
  }
}

/** The button for a profile, and its result. */
class Profiler {
  #button = h("button", { type: "button", text: `Profile ${PROFILE_S} s`,
    onclick: () => this.#profile() });
  #said = h("span", { role: "status" });
  #denied = deniedNote();
  #busy = false;
  alert = new Alert();
  element = h("div.row.profiler", null, h("span.note", null, this.#said), this.#denied,
    this.#button);

  constructor(api) {
    this.api = api;
  }

  /** Disable the button while a profile is in progress or not allowed. */
  permit() {
    tellDenied(this.#denied, this.api.denied);
    this.#button.disabled = this.#busy || this.api.denied !== "";
  }

  async #profile() {
    this.alert.clear();
    this.#busy = true;
    this.permit();
    this.#said.textContent = `Profiling for ${PROFILE_S} s …`;
    try {
      const path = `./admin/profile?seconds=${PROFILE_S}`;
      const response = await this.api.request(path, { method: "POST" });
      await save(response, "torchlane-profile.json");
      const recorded = response.headers.get("X-Torchlane-Profile");
      const what = recorded ? ` (${recorded})` : "";
      this.#said.textContent = `Downloaded${what}. Open the trace in Perfetto: ui.perfetto.dev.`;
    } catch (error) {
      this.#said.textContent = "";
      if (!this.api.denied) this.alert.show(error);
    } finally {
      this.#busy = false;
      this.permit();
    }
  }
}

/** A table; after `#` of a column: it has numbers, and may be of a wide screen only. */
function table(name, columns, body) {
  const heads = columns.map((column) => {
    const [text, kind] = column.split("#");
    return h(["th", kind !== undefined && "number", kind].filter(Boolean).join("."),
      { scope: "col", text });
  });
  return h("div.scroll.card", { tabindex: 0, role: "region", "aria-label": name },
    h("table", null, h("thead", null, h("tr", null, ...heads)), body));
}

function factsOf({ ready, requests, cache }) {
  const of = cache?.limit_bytes ? ` of ${bytes(cache.limit_bytes)}` : "";
  return [
    ready ? "ready" : "not ready",
    `${requests.in_flight} in flight`,
    cache && `cache: ${bytes(cache.bytes)}${of} (entries: ${number(cache.entries)})`,
  ].filter(Boolean).join(" · ");
}

/**
 * The figures that say how the server does.
 * @param {any} snapshot  null: not known
 * @param {{state: string}[]} versions
 */
function tilesOf(snapshot, versions) {
  const failed = Object.entries(snapshot?.requests.failed_per_s ?? {}).filter(([, rate]) => rate);
  const errors = failed.reduce((sum, [, rate]) => sum + rate, 0);
  const isBad = failed.some(([code]) => FAILURES.includes(code));
  const shares = (snapshot?.replicas ?? []).map((each) => each.busy_share)
    .filter((each) => each != null);
  const busy = shares.length && shares.reduce((sum, each) => sum + each, 0) / shares.length;
  const states = statesOf(versions);
  const tile = (name, value, tone = "") => h("div", null, h("dt", { text: name }),
    h(tone ? `dd.${tone}` : "dd", { text: snapshot && value !== null ? value : "–" }));
  const p99 = snapshot?.requests.p99_ms ?? null;
  return [
    tile("Requests/s", snapshot && number(snapshot.requests.per_s)),
    tile("p99", p99 === null ? null : `${number(p99)} ms`),
    tile("Errors/s", number(errors), errors && snapshot ? (isBad ? "bad" : "warn") : ""),
    tile("Busy", shares.length ? `${Math.round(100 * busy)} %` : null),
    tile("Models", states.join(", "), snapshot && states.length > 1 ? "warn" : ""),
  ];
}

function modelRow({ name, items, batch, queue, compute, hits, figures, isSlowest }) {
  const cell = (value, unit = "", kind = "td.number") =>
    h(kind, { text: value == null ? "–" : `${number(value)}${unit}` });
  const wide = (value, unit) => cell(value, unit, "td.number.wide");
  const tone = figures && toneOfErrors(figures);
  return h("tr", null, h("th", { scope: "row" }, `${name} `, isSlowest && h("span.tag.warn", { text: "slowest" })),
    cell(figures?.p99, " ms"),
    h(tone ? `td.number.${tone}` : "td.number", { text: figures ? errorsOf(figures) : "–" }),
    cell(items), wide(queue, " ms"), wide(compute, " ms"), wide(batch),
    wide(hits === null ? null : 100 * hits, " %"));
}

/** A share as a bar with its percentage. */
function bar(share, name) {
  if (share == null) return h("td", { text: "–" });
  const text = `${Math.round(100 * share)} %`;
  return h("td", null, h("meter", { value: share, min: 0, max: 1, "aria-label": name }), ` ${text}`);
}

function replicaRow({ name, device, ready, busy_share: busy, items_per_s: items }) {
  return h("tr", null, h("th", { scope: "row", text: name }), h("td", { text: device }),
    h("td", null, h(ready ? "span.tag.good" : "span.tag.bad", { text: ready ? "ready" : "not ready" })),
    bar(busy, `${name} is busy`), h("td.number", { text: items == null ? "–" : number(items) }));
}

function deviceRow(device) {
  const { name, memory_used_bytes: used, memory_bytes: all, temperature_celsius: heat } = device;
  const memory = all ? `${bytes(used)} of ${bytes(all)}` : "–";
  return h("tr", null, h("th", { scope: "row", text: name }), h("td", { text: memory }),
    bar(device.utilization_ratio, `${name} is used`),
    h("td.number", { text: heat == null ? "–" : `${number(heat)} °C` }));
}

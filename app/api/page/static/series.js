// The lines of Watch's charts, from snapshots of GET /live.

import { FAILURES, toneOf } from "./reasons.js";

/** @typedef {import("./live.js").Sample} Sample */
/** @typedef {import("./chart.js").Line} Line */

const MOST_FAILURES = 6;
const MOST_DEVICES = 16;
const RATES = ["items_per_s", "computed_per_s", "batches_per_s", "hit_per_s", "miss_per_s",
  "joined_per_s", "queue_items"];
const MEANS = ["batch_items", "queue_ms", "compute_ms"];

/** A number for people: three digits. */
export function number(value) {
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return Number(value.toFixed(digits)).toLocaleString("en");
}

/** The name of a snapshot's model in the selection. */
export const nameOf = (model) => `${model.name}/${model.version}`;

/**
 * A model of a snapshot; all models together if none is chosen, null if it is missing.
 * @param {any} snapshot
 * @param {string} chosen
 */
export function modelOf(snapshot, chosen) {
  const models = snapshot.models.filter((each) => !chosen || nameOf(each) === chosen);
  if (!models.length) return null;
  const sum = (name) => models.reduce((total, each) => total + (each[name] ?? 0), 0);
  const all = Object.fromEntries(RATES.map((name) => [name, sum(name)]));
  for (const name of MEANS) {
    const known = models.filter((each) => each[name] != null);
    const weights = known.reduce((total, each) => total + each.batches_per_s, 0);
    const weighed = known.reduce((total, each) => total + each[name] * each.batches_per_s, 0);
    all[name] = weights ? weighed / weights : null;
  }
  const waits = models.map((each) => each.predicted_wait_ms).filter((each) => each != null);
  all.predicted_wait_ms = waits.length ? Math.max(...waits) : null;
  return all;
}

/** The share of answers, in percent, that were not computed for the item: a name and a rate. */
function share(model, rate) {
  const all = model.hit_per_s + model.miss_per_s + model.joined_per_s;
  return all ? (100 * model[rate]) / all : null;
}

/** @type {(label: string, of: (snapshot: any) => any) => (samples: Sample[]) => Line[]} */
const server = (label, of) => (samples) => [
  { label, values: samples.map(({ snapshot }) => (snapshot && of(snapshot)) ?? null) },
];

/** @type {(label: string, of: (model: any) => any) => (samples: Sample[], chosen: string) => Line[]} */
const model = (label, of) => (samples, chosen) =>
  server(label, (snapshot) => {
    const found = modelOf(snapshot, chosen);
    return found && of(found);
  })(samples);

/**
 * A line for each name with a value in a sample; if there are too many, those with the largest sums.
 * @param {Sample[]} samples
 * @param {(snapshot: any) => [string, number | null][]} pairs
 * @param {number | null} absent  the value where a snapshot lacks the name
 * @param {number} most  lines
 * @param {string} [others]  the label of a last line with the sum of those left out
 * @param {string[]} [first]  names that are never left out for those with larger sums
 * @returns {Line[]}
 */
function named(samples, pairs, absent, most, others, first = []) {
  const found = samples.map(({ snapshot }) => snapshot && new Map(pairs(snapshot)));
  const sums = new Map();
  for (const [name, value] of found.flatMap((each) => (each ? [...each] : []))) {
    sums.set(name, (sums.get(name) ?? 0) + (value ?? 0));
  }
  const rank = (name) => (first.includes(name) ? Infinity : sums.get(name));
  const names = [...sums.keys()].sort((one, other) => rank(other) - rank(one) || 0);
  const kept = names.splice(0, others && names.length > most ? most - 1 : most);
  // Sorted by name, so each keeps its colour while the sums change.
  const lines = kept.sort().map((label) => ({
    label,
    values: found.map((each) => each && (each.get(label) ?? absent)),
  }));
  if (!others || !names.length) return lines;
  const rest = (each) => names.reduce((sum, name) => sum + (each.get(name) ?? 0), 0);
  return [...lines, { label: others, values: found.map((each) => each && rest(each)) }];
}

function failures(samples) {
  const pairs = (snapshot) => Object.entries(snapshot.requests.failed_per_s);
  const lines = named(samples, pairs, 0, MOST_FAILURES, "others", FAILURES).map((line) => {
    return { ...line, tone: toneOf(line.label) };
  });
  return lines.length ? lines : server("none", () => 0)(samples);
}

const device = (of) => (samples) =>
  named(samples, (snapshot) => snapshot.devices.map((each) => [each.name, of(each)]), null,
    MOST_DEVICES).filter((line) => line.values.some((each) => each !== null));

/** @type {{title: string, unit: string, lines: ((samples: Sample[], chosen: string) => Line[])[]}[]} */
export const OF_SERVER = [
  {
    title: "Requests",
    unit: "per second",
    lines: [server("answered", (snapshot) => snapshot.requests.per_s)],
  },
  {
    title: "Latency, p50",
    unit: "ms",
    lines: [server("p50", (snapshot) => snapshot.requests.p50_ms)],
  },
  {
    title: "Latency, p99",
    unit: "ms",
    lines: [server("p99", (snapshot) => snapshot.requests.p99_ms)],
  },
  { title: "Rejections and failures", unit: "per second", lines: [failures] },
];

export const OF_MODEL = [
  {
    title: "Items",
    unit: "per second",
    lines: [
      model("answered", (found) => found.items_per_s),
      model("computed", (found) => found.computed_per_s),
    ],
  },
  {
    title: "Batch size",
    unit: "items, mean",
    lines: [model("batch", (found) => found.batch_items)],
  },
  { title: "Queue", unit: "items", lines: [model("queued", (found) => found.queue_items)] },
  {
    title: "Time of an item",
    unit: "ms",
    lines: [
      model("predicted wait", (found) => found.predicted_wait_ms),
      model("in the queue", (found) => found.queue_ms),
      model("compute", (found) => found.compute_ms),
    ],
  },
  {
    title: "Cache",
    unit: "% of items",
    lines: [
      model("hits", (found) => share(found, "hit_per_s")),
      model("joined", (found) => share(found, "joined_per_s")),
    ],
  },
];

export const OF_DEVICES = [
  {
    title: "GPU memory",
    unit: "% used",
    lines: [
      device((each) =>
        each.memory_bytes ? (100 * each.memory_used_bytes) / each.memory_bytes : null,
      ),
    ],
  },
  {
    title: "GPU temperature",
    unit: "°C",
    lines: [device((each) => each.temperature_celsius ?? null)],
  },
];

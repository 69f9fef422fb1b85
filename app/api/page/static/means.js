// Sums and means of the shown time, for Watch's headline and tables.

import { FAILURES } from "./reasons.js";
import { nameOf, number } from "./series.js";

/** @typedef {import("./live.js").Sample} Sample */

const seconds = (snapshot) => snapshot.interval_s ?? 1;
const known = (samples) => samples.flatMap(({ snapshot }) => (snapshot ? [snapshot] : []));

/**
 * How often each error code occurred, the most frequent first.
 * @param {Sample[]} samples
 * @returns {[string, number][]}
 */
export function failuresIn(samples) {
  const counts = new Map();
  for (const snapshot of known(samples)) {
    for (const [code, rate] of Object.entries(snapshot.requests.failed_per_s)) {
      counts.set(code, (counts.get(code) ?? 0) + rate * seconds(snapshot));
    }
  }
  return [...counts].filter(([, count]) => count > 0).sort((one, other) => other[1] - one[1]);
}

/**
 * How often each error code occurred since the server started.
 * @param {Sample[]} samples
 * @returns {Record<string, number>}
 */
export const failuresSinceStart = (samples) =>
  known(samples).at(-1)?.requests.failed_total ?? {};

const BUCKETS = 10 ** 0.2; // the bounds of latencies are ten to the fifths

/**
 * A quantile of latencies, interpolated within its bucket; null without any.
 * @param {number} share  such as 0.99
 * @param {Map<number, number>} counts  upper bound of a bucket in ms -> number in it
 */
export function quantile(share, counts) {
  const buckets = [...counts].sort(([one], [other]) => one - other);
  let wanted = share * buckets.reduce((sum, [, count]) => sum + count, 0);
  for (const [index, [bound, count]] of buckets.entries()) {
    if (wanted > count && index < buckets.length - 1) {
      wanted -= count;
      continue;
    }
    if (!Number.isFinite(bound)) return buckets[index - 1]?.[0] ?? null; // how far is unknown
    const lower = bound / BUCKETS;
    return lower + ((bound - lower) * Math.min(wanted, count)) / count;
  }
  return null;
}

/**
 * @typedef {{requests: number, failed: number, isFault: boolean, p50: number | null,
 *   p99: number | null}} Figures  `isFault`: items failed by the fault of the model
 */

/**
 * What a version did.
 * @param {any} now  its entry in `totals`
 * @param {any} [before]  an earlier one; without it, since the server started
 * @returns {Figures}
 */
export function figuresOf(now, before) {
  const past = before && before.requests <= now.requests ? before : null; // else it has restarted
  const gained = (name) => now[name] - (past?.[name] ?? 0);
  const counts = new Map(Object.entries(now.latency_ms).map(([bound, count]) =>
    [bound === "inf" ? Infinity : Number(bound), count - (past?.latency_ms[bound] ?? 0)]));
  for (const [bound, count] of counts) if (count <= 0) counts.delete(bound);
  const faults = (of) =>
    FAILURES.reduce((sum, code) => sum + (of?.failed_items[code] ?? 0), 0);
  return {
    requests: gained("requests"),
    failed: gained("failed"),
    isFault: faults(now) > faults(past),
    p50: quantile(0.5, counts),
    p99: quantile(0.99, counts),
  };
}

/** Errors in words, such as "12 (0.6 %)". */
export function errorsOf({ requests, failed }) {
  if (!requests) return "–";
  const share = (100 * failed) / requests;
  return failed ? `${number(failed)} (${share < 0.01 ? "< 0.01" : number(share)} %)` : "0";
}

/** The tone of errors: of what the model got wrong, of rejections, or none. */
export const toneOfErrors = ({ failed, isFault }) => (failed ? (isFault ? "bad" : "warn") : "");

/** Whether no request ended. */
export const isIdle = (samples) => known(samples).every(({ requests }) => !requests.per_s);

/**
 * What each version did.
 * @param {Sample[]} samples
 * @returns {{name: string, items: number, batch: number | null, queue: number | null,
 *   compute: number | null, hits: number | null, figures: Figures | null, isSlowest: boolean}[]}
 *   items per second, items of a batch, milliseconds, and a share; `isSlowest` of several
 */
export function modelsIn(samples) {
  const snapshots = known(samples);
  const lasted = snapshots.reduce((sum, each) => sum + seconds(each), 0);
  const newest = snapshots.at(-1)?.models ?? [];
  const sums = new Map(newest.map((served) => [nameOf(served), { ...NONE }]));
  for (const snapshot of snapshots) {
    for (const model of snapshot.models) {
      const sum = sums.get(nameOf(model));
      if (sum) add(sum, model, seconds(snapshot));
    }
  }
  const [first, last] = [snapshots[0], snapshots.at(-1)].map(totalsOf);
  const rows = [...sums].map(([name, sum]) => ({
    name,
    figures: last.has(name) ? figuresOf(last.get(name), first.get(name) ?? NOTHING) : null,
    items: lasted ? sum.items / lasted : 0,
    batch: sum.batches ? sum.batch / sum.batches : null,
    queue: sum.batches ? sum.queue / sum.batches : null,
    compute: sum.batches ? sum.compute / sum.batches : null,
    hits: sum.asked ? sum.hits / sum.asked : null,
    isSlowest: false,
  }));
  const busy = rows.filter((row) => row.compute !== null);
  const slowest = busy.toSorted((one, other) => total(other) - total(one))[0];
  if (slowest && busy.length > 1) slowest.isSlowest = true;
  return rows;
}

const totalsOf = (snapshot) =>
  new Map((snapshot?.totals ?? []).map((each) => [nameOf(each), each]));

const NOTHING = { requests: 0, failed: 0, failed_items: {}, latency_ms: {} };
const NONE = { items: 0, batches: 0, batch: 0, queue: 0, compute: 0, asked: 0, hits: 0 };

/** Add what a model did in a snapshot; means of batches are weighed by their number. */
function add(sum, model, lasts) {
  const batches = (model.batches_per_s ?? 0) * lasts;
  sum.items += (model.items_per_s ?? 0) * lasts;
  sum.batches += batches;
  sum.batch += (model.batch_items ?? 0) * batches;
  sum.queue += (model.queue_ms ?? 0) * batches;
  sum.compute += (model.compute_ms ?? 0) * batches;
  sum.asked += (model.hit_per_s + model.miss_per_s + model.joined_per_s) * lasts;
  sum.hits += model.hit_per_s * lasts;
}

const total = (row) => row.queue + row.compute;

/**
 * The models in words, such as "2 ready, 1 failed".
 * @param {{state: string}[]} versions of GET /live
 */
export function statesOf(versions) {
  const states = ["ready", "cold", "loading", "failed"];
  const counts = states.map((state) => versions.filter((each) => each.state === state).length);
  return states.flatMap((state, index) =>
    counts[index] || !index ? [`${number(counts[index])} ${state}`] : [],
  );
}

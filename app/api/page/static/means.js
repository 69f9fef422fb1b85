// Sums and means of the shown time, for Watch's headline and tables.

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

/** Whether no request ended. */
export const isIdle = (samples) => known(samples).every(({ requests }) => !requests.per_s);

/**
 * What each version did.
 * @param {Sample[]} samples
 * @returns {{name: string, items: number, batch: number | null, queue: number | null,
 *   compute: number | null, hits: number | null, isSlowest: boolean}[]} items per second, items of
 *   a batch, milliseconds, and a share; `isSlowest` of several
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
  const rows = [...sums].map(([name, sum]) => ({
    name,
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

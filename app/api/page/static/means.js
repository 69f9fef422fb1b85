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

/** Whether any request was answered. */
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
  const rows = newest.map((served) => {
    const name = nameOf(served);
    const each = snapshots.flatMap((snapshot) =>
      snapshot.models
        .filter((model) => nameOf(model) === name)
        .map((model) => ({ ...model, lasts: seconds(snapshot) })),
    );
    const sum = (of) => each.reduce((total, model) => total + (of(model) ?? 0) * model.lasts, 0);
    const batches = sum((model) => model.batches_per_s);
    const perBatch = (field) =>
      batches ? sum((model) => (model[field] ?? 0) * model.batches_per_s) / batches : null;
    const asked = sum((model) => model.hit_per_s + model.miss_per_s + model.joined_per_s);
    return {
      name,
      items: lasted ? sum((model) => model.items_per_s) / lasted : 0,
      batch: perBatch("batch_items"),
      queue: perBatch("queue_ms"),
      compute: perBatch("compute_ms"),
      hits: asked ? sum((model) => model.hit_per_s) / asked : null,
      isSlowest: false,
    };
  });
  const busy = rows.filter((row) => row.compute !== null);
  const slowest = busy.toSorted((one, other) => total(other) - total(one))[0];
  if (slowest && busy.length > 1) slowest.isSlowest = true;
  return rows;
}

const total = (row) => row.queue + row.compute;

/**
 * The models in words, such as "2 ready, 1 failed".
 * @param {{state: string}[]} versions of GET /live
 */
export function statesOf(versions) {
  const states = ["ready", "loading", "failed"];
  const counts = states.map((state) => versions.filter((each) => each.state === state).length);
  return states.flatMap((state, index) =>
    counts[index] || !index ? [`${number(counts[index])} ${state}`] : [],
  );
}

// How the time of a call was spent, from Server-Timing and the browser's clock.

import { facts, h } from "./dom.js";

const STAGES = {
  decode: "Decode",
  queue: "Queue",
  compute: "Compute",
  encode: "Encode",
};

/**
 * The figures of a Server-Timing header.
 * @param {string} header such as "decode;dur=0.1, batch;desc=8"
 * @returns {{stages: [string, number][], batch: string | null}} milliseconds of each stage
 */
export function parsed(header) {
  const stages = [];
  let batch = null;
  for (const part of header.split(",")) {
    const [name, ...parameters] = part.split(";").map((each) => each.trim());
    const found = Object.fromEntries(parameters.map((each) => each.split("=")));
    if (name === "batch") batch = found.desc?.replaceAll('"', "") ?? null;
    else if (name in STAGES) stages.push([name, Number(found.dur) || 0]);
  }
  return { stages, batch };
}

/**
 * The time that the server spent on a call.
 * @param {Response} response
 * @returns {number | null} milliseconds; null without a Server-Timing header
 */
export function spentBy(response) {
  const { stages } = parsed(response.headers.get("Server-Timing") ?? "");
  return stages.length ? stages.reduce((sum, [, each]) => sum + each, 0) : null;
}

/**
 * A waterfall of the server's stages, one after the other; the network is apart.
 * @param {Response} response
 * @param {number} total milliseconds, measured by the browser
 */
export function timingView(response, total) {
  const { stages, batch } = parsed(response.headers.get("Server-Timing") ?? "");
  const inside = spentBy(response) ?? 0;
  let begin = 0;
  const row = (name, from, length, kind = "span.fill") => {
    const bar = h(kind);
    bar.style.marginLeft = `${(100 * from) / (inside || 1)}%`;
    bar.style.width = `${Math.max(0.5, (100 * length) / (inside || 1))}%`;
    return h(
      "tr",
      null,
      h("th", { scope: "row", text: name }),
      h("td.track", { "aria-hidden": "true" }, h("span.rail", null, bar)),
      h("td.number", { text: `${length.toFixed(2)} ms` }),
    );
  };
  const rows = stages.map(([name, length]) => {
    const made = row(STAGES[name], begin, length);
    begin += length;
    return made;
  });
  if (stages.length) rows.push(row("Server", 0, inside, "span.fill.outside"));
  const ran = batch === null ? "none ran" : `${batch} ${batch === "1" ? "item" : "items"}`;
  return h(
    "section.card.stack",
    { "aria-label": "Time" },
    h("h2", { text: "Time" }),
    h(
      "table.bars",
      null,
      h("caption.visually-hidden", { text: "Time by stage" }),
      h("tbody", null, ...rows),
    ),
    facts({
      "Network and browser": `${Math.max(0, total - inside).toFixed(2)} ms`,
      Cache: response.headers.get("X-Torchlane-Cache") ?? "not used",
      "Largest batch": ran,
      "Request ID": response.headers.get("X-Request-ID") ?? "",
    }),
  );
}

// A model in detail: its inputs, and the form for each batch size on each replica.

import { Alert } from "./alert.js";
import { fill, h, withShortHashes } from "./dom.js";
import { number } from "./series.js";

/** Details of a model, read when they are opened. */
export class Plan {
  #alert = new Alert();
  #content = h("div.stack");
  #read = "";
  #now = "";
  element = h("details", { ontoggle: () => this.#toggled() },
    h("summary", { text: "Inputs, limits and plan" }), this.#alert.element, this.#content);

  constructor(api, path) {
    this.api = api;
    this.path = path;
  }

  /** Read them again if the versions have changed. */
  changed(versions) {
    this.#now = versions;
    this.#toggled();
  }

  async #toggled() {
    if (!this.element.open || this.#read === this.#now) return;
    this.#read = this.#now;
    this.#alert.clear();
    try {
      this.#show(await this.api.json(`./${this.path}?full=true`));
    } catch (error) {
      this.#read = "";
      this.#alert.show(error);
    }
  }

  #show(model) {
    const tensor = ({ name, dtype, shape }) => `${name}: ${dtype}[${shape.join(", ")}]`;
    const settings = model.settings;
    const facts = [
      ["Description", model.description],
      ["Calls", (model.calls ?? []).join(", ")],
      ["Items", model.codec && `${model.codec}, as ${model.media_types.join(" or ")}`],
      ["Sounds", model.codec === "audio" && sounds(model.manifest.codec)],
      ["Pictures", model.codec === "image" && preparation(model.manifest.codec.preprocess)],
      ["Inputs", model.inputs.map(tensor).join("; ")],
      ["Outputs", model.outputs.map(tensor).join("; ")],
      ["Precision", model.precision],
      ["Largest batch", settings && `${settings.max_batch_size} items`],
      ["Queue limit", settings && `${number(settings.queue_limit_items)} items`],
      ["Timeout", settings && `${number(settings.timeout_ms)} ms`],
      ["Cache", settings && (settings.cache ? "on" : "off")],
      ["Signed by", model.signed_by && withShortHashes(model.signed_by)],
    ].filter(([, value]) => value);
    fill(this.#content,
      h("dl.spec", null, ...facts.flatMap(([name, value]) =>
        [h("dt", { text: name }), h("dd", { text: value })])),
      ...plansOf(model.replicas).map(([plan, replicas]) => planTable(plan, replicas, model.name)));
  }
}

/** How sounds are prepared, in words. */
function sounds({ rate, resampling }) {
  const others = resampling === "none" ? "other rates are refused" : `resampled by ${resampling}`;
  return `one channel of ${rate} samples per second; ${others}`;
}

/** How pictures are prepared, in words; the report says more. */
function preparation(how) {
  const { width, height, interpolation, fit, fill, resize_shorter: shorter } = how;
  const rest = { border: "the median of the outermost pixels", mean: "the mean" }[fill];
  if (how.fit === "none") return `not scaled; up to ${width} x ${height}`;
  const shapes = {
    pad: `scaled to fit inside, the rest filled with ${rest ?? `level ${fill}`}`,
    crop: `shorter side scaled to ${shorter}, middle cut out`,
    stretch: shorter ? `stretched to ${shorter} x ${shorter}, middle cut out` : "stretched",
  };
  return `${shapes[fit]}; ${width} x ${height}, ${interpolation}`;
}

/** The plans, each with its replicas. */
function plansOf(replicas) {
  const found = new Map();
  for (const { name, device, plan } of replicas) {
    if (!plan) continue;
    const key = JSON.stringify(plan);
    if (!found.has(key)) found.set(key, [plan, []]);
    found.get(key)[1].push(`${name} (${device})`);
  }
  return [...found.values()];
}

function planTable({ steps, measured_on: processor, measured_by: by, median_us: medians }, replicas, of) {
  const timed = Object.keys(medians).length > 0; // if the server measured
  const rows = steps.map(({ up_to: most, form }, index) => {
    const least = index ? steps[index - 1].up_to + 1 : 1;
    const sizes = most === null ? `${least} and more` : least === most ? `${most}` : `${least} to ${most}`;
    const times = Object.entries(medians[form] ?? {})
      .map(([size, us]) => `${size}: ${number(us / 1000)} ms`).join(", ");
    return h("tr", null, h("td", { text: sizes }), h("td", null, h("code", { text: form })),
      timed && h("td", { text: times }));
  });
  const heads = ["Batch size", "Form", timed && "Median time by batch size"].filter(Boolean)
    .map((text) => h("th", { scope: "col", text }));
  const measured = processor && by
    ? `Measured by ${by === "server" ? "this server" : "the export"} on ${processor}.` : "";
  return h("div.scroll", { tabindex: 0, role: "region", "aria-label": `Plan of ${of}` },
    h("p.note", { text: `Plan on ${replicas.join(", ")}. ${measured}` }),
    h("table", null, h("thead", null, h("tr", null, ...heads)), h("tbody", null, ...rows)));
}

// The form for a model's input, by its manifest: pictures, sounds, texts or tensors.

import { h } from "./dom.js";
import { FieldItems } from "./fields.js";
import { headerOf } from "./npy.js";
import { filePicker } from "./picker.js";
import { PictureInput } from "./pictures.js";
import { SoundInput } from "./sounds.js";

const NPY = "application/x-npy";
const MAX_SHOWN = 1024; // items of an array, whose header may claim any number

const MAX_NAMES = 8; // of categories that are shown
const COMPARED = "Another text, to see how similar both are."; // embeddings are for comparison

/**
 * The input that is sent, and what the page shows of it.
 * @typedef {{name?: string, blob?: Blob, type?: string, made?: boolean}} SentFile
 *   `made`: whether the page made it, and it is not on the user's disk
 * @typedef {SentFile & {kind: string, text?: string, files?: SentFile[]}} Body
 *   kind `json` has the text, `files` has the files of a form, and `file` is one file
 * @typedef {{title: string, key: string, text?: string, picture?: Blob}} Shown
 *   of an item; `key` is equal for equal items
 * @typedef {{many: boolean, shown: Shown[], body: Body}} Input
 */

/**
 * The form for a model.
 * @param {Record<string, any>} model of GET /models/NAME?full=true
 * @returns {{element: Element, read: () => Promise<Input | null>,
 *   example: () => Promise<Input | null>, close: () => void}} `example` is the model's, if any
 */
export function inputFor(model) {
  const isPicture = model.codec === "image" && model.inputs.length === 1; // else as base64 by name
  if (isPicture) return new PictureInput(model);
  if (model.codec === "audio") return new SoundInput(model);
  return model.codec === "text" ? textInput(model) : new TensorInput(model);
}

/** Texts, or pairs of texts. */
function textInput(model) {
  const { pairs, max_tokens: most } = model.manifest.codec;
  const names = pairs ? ["Text", "Second text"] : ["Text"];
  const fields = names.map((label, index) => ({
    label,
    name: label,
    value: exampleText(model.example, index),
    rows: pairs ? 2 : 4,
  }));
  const isCompared = model.manifest.codec.task === "embed" && !pairs && fields[0].value;
  const items = new FieldItems(fields, isCompared ? [[COMPARED]] : []);
  const read = async () => {
    const texts = items.values();
    const values = texts.map((each) => JSON.stringify(pairs ? each : each[0]));
    const shown = texts.map((each, index) => ({ title: "", key: values[index], text: each[0] }));
    return { many: values.length > 1, shown, body: jsonBody(values) };
  };
  return {
    element: h(
      "div.stack",
      null,
      items.element,
      h("p.note", { text: `The model reads up to ${most} tokens per item.` }),
    ),
    read,
    example: async () => (fields.every((each) => each.value) ? read() : null),
    close() {},
  };
}

function exampleText(example, index) {
  if (typeof example === "string") return index ? "" : example;
  if (Array.isArray(example)) return typeof example[index] === "string" ? example[index] : "";
  return example?.[index ? "text_pair" : "text"] ?? "";
}

/** Numbers as JSON, or an array's file if there is only one input. */
class TensorInput {
  #model;
  #items;
  #picker = null;
  #file = h("p.note", { role: "status" });
  #typed;

  constructor(model) {
    this.#model = model;
    const inputs = model.inputs;
    const example = model.example;
    const values = inputs.map((spec) =>
      inputs.length > 1 || isNamed(example, spec) ? example?.[spec.name] : example,
    );
    this.#items = new FieldItems(
      inputs.map((spec, index) => ({
        name: spec.name,
        label: `${described(spec)}${namesOf(model, spec)}`,
        value:
          values[index] === undefined || values[index] === null
            ? ""
            : JSON.stringify(values[index]),
        rows: inputs.length > 1 ? 3 : 6,
        mono: true,
      })),
    );
    this.#typed = h("div", null, this.#items.element);
    this.element = h("div.stack", null, this.#typed);
    if (model.media_types.includes(NPY)) this.#addPicker();
  }

  /** See `inputFor`. */
  async read() {
    const file = this.#picker?.files[0];
    if (file) return this.#readFile(file);
    const inputs = this.#model.inputs;
    // Sent as typed: the server reads every digit, and reports what is wrong.
    const values = this.#items.values().map((texts) => {
      for (const [index, { name }] of inputs.entries()) requireJson(name, texts[index]);
      if (inputs.length === 1) return texts[0].trim() || "null";
      const pairs = inputs.map(
        ({ name }, index) => `${JSON.stringify(name)}: ${texts[index].trim() || "null"}`,
      );
      return `{${pairs.join(", ")}}`;
    });
    const shown = values.map((key) => ({ title: "", key }));
    return { many: values.length > 1, shown, body: jsonBody(values) };
  }

  /** The example, which fills the fields at first; null: there is none. */
  async example() {
    const texts = this.#items.values()[0];
    return texts.every((each) => each) ? this.read() : null;
  }

  close() {}

  #addPicker() {
    const clear = h("button.quiet", {
      type: "button",
      text: "Remove the file",
      hidden: true,
      onclick: () => {
        this.#picker.value = "";
        this.#picker.dispatchEvent(new Event("change"));
        this.#picker.focus();
      },
    });
    const picker = filePicker("Choose an .npy file", {
      accept: ".npy",
      onchange: async ([file]) => {
        this.#typed.hidden = Boolean(file);
        clear.hidden = !file;
        this.#file.textContent = file ? await this.#describe(file) : "";
      },
    });
    this.#picker = picker.input;
    this.element.append(
      h("div.row", null, h("span.note", { text: "Or" }), picker.element, clear),
      this.#file,
    );
  }

  async #describe(file) {
    const header = await headerOf(file);
    if (!header) return `${file.name} has no .npy header.`;
    const count = this.#countOf(header);
    const items = count === null ? "one item" : `a batch of ${count}`;
    return `${file.name}: ${header.dtype} [${header.shape.join(", ")}], ${items}.`;
  }

  /** The number of items in an array; null if it is one item, without an axis for items. */
  #countOf(header) {
    const isBatch = header && header.shape.length === this.#model.inputs[0].shape.length;
    return isBatch ? header.shape[0] : null;
  }

  async #readFile(file) {
    const count = this.#countOf(await headerOf(file));
    const many = count !== null;
    const shown = Array.from({ length: Math.min(count ?? 1, MAX_SHOWN) || 0 }, (_, index) => ({
      title: many ? `${file.name}[${index}]` : file.name,
      key: String(index),
    }));
    return { many, shown, body: { kind: "file", name: file.name, blob: file, type: NPY } };
  }
}

/** Reject invalid JSON here: the server would report its position in a body that the page wrote. */
function requireJson(name, text) {
  try {
    JSON.parse(text.trim() || "null");
  } catch (error) {
    throw new Error(`'${name}' is not JSON: ${error.message}`);
  }
}

/** @param {string[]} values items as JSON */
function jsonBody(values) {
  const text = values.length > 1 ? `{"inputs": [${values.join(", ")}]}` : `{"input": ${values[0]}}`;
  return { kind: "json", text };
}

function isNamed(example, spec) {
  return (
    example !== null &&
    typeof example === "object" &&
    !Array.isArray(example) &&
    spec.name in example
  );
}

/** What an input that is a category takes, for people. */
function namesOf(model, spec) {
  const found = model.manifest.codec.categories?.find((each) => each.input === spec.name);
  if (!found) return "";
  const shown = found.names.slice(0, MAX_NAMES).map((name) => JSON.stringify(name));
  const more = found.names.length > MAX_NAMES ? ", …" : "";
  const other = found.unknown === null ? "" : "; or any other, or null";
  return `; ${shown.join(", ")}${more}${other}`;
}

/** An input for people, such as "a: float32 [p: 1 to 256, 2]". */
export function described(spec) {
  let free = 0;
  const sizes = spec.shape.slice(1).map((size) => {
    if (size !== -1) return size;
    const { name, least, most } = spec.dimensions[free++] ?? {};
    return most === undefined ? "any" : `${name ?? "any"}: ${least} to ${most}`;
  });
  const range =
    spec.minimum === null && spec.maximum === null
      ? ""
      : `, ${spec.minimum ?? "…"} to ${spec.maximum ?? "…"}`;
  const missing = spec.nan ? ", null if missing" : "";
  return `${spec.name}: ${spec.dtype} [${sizes.join(", ")}]${range}${missing}`;
}

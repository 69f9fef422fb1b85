// Sounds as input: WAV and FLAC files; several form a batch.

import { bytes, h } from "./dom.js";
import { filePicker } from "./picker.js";

/** The input of an audio model. */
export class SoundInput {
  #model;
  #files = [];
  #list = h("ul.thumbs", { "aria-label": "Sounds to send" });
  #picker;

  /** @param {Record<string, any>} model of GET /models/NAME?full=true */
  constructor(model) {
    this.#model = model;
    const picker = filePicker("Choose WAV or FLAC files", {
      multiple: true,
      accept: ".wav,.flac,audio/wav,audio/flac",
      onchange: (files) => {
        for (const blob of files) this.#add(blob, false);
        this.#picker.value = ""; // so that the same file can be chosen again
      },
    });
    this.#picker = picker.input;
    this.element = h(
      "div.stack",
      null,
      h(
        "div.row",
        null,
        picker.element,
        typeof model.example === "string" &&
          h("button", {
            type: "button",
            text: "Use the example",
            onclick: () => this.#add(exampleOf(model.example), true),
          }),
      ),
      this.#list,
      h("p.note", {
        text: `Mixed to one channel of ${model.manifest.codec.rate} samples per second.`,
      }),
    );
  }

  /**
   * The input to send.
   * @returns {Promise<import("./inputs.js").Input | null>} null: there is none
   */
  async read() {
    return this.#files.length ? inputOf(this.#files) : null;
  }

  /** The model's example as an input; null: there is none. */
  async example() {
    if (typeof this.#model.example !== "string") return null;
    return inputOf([{ blob: exampleOf(this.#model.example), made: true }]);
  }

  close() {}

  #add(blob, made) {
    const file = { blob, made };
    this.#files.push(file);
    const item = h(
      "li",
      null,
      h("span.name", { text: blob.name, title: blob.name }),
      h("span.note", { text: bytes(blob.size) }),
      h("button.quiet", {
        type: "button",
        text: "Remove",
        "aria-label": `Remove ${blob.name}`,
        onclick: () => {
          this.#files.splice(this.#files.indexOf(file), 1);
          item.remove();
          this.#picker.focus();
        },
      }),
    );
    this.#list.append(item);
  }
}

/** @param {{blob: File, made: boolean}[]} sounds */
function inputOf(sounds) {
  const files = sounds.map(({ blob, made }) => {
    return { name: blob.name, blob, made, type: blob.type || "application/octet-stream" };
  });
  const shown = files.map(({ name, blob }) => ({ title: name, key: `${name}:${blob.size}` }));
  const many = files.length > 1;
  return { many, shown, body: many ? { kind: "files", files } : { kind: "file", ...files[0] } };
}

/** The model's example, a WAV file in base64. */
function exampleOf(text) {
  const octets = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  return new File([octets], "example.wav", { type: "audio/wav" });
}

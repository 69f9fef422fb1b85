// Pictures as input: chosen, dropped, pasted or drawn; several form a batch.

import { DrawingPad } from "./canvas.js";
import { bytes, freshId, h } from "./dom.js";
import { filePicker } from "./picker.js";

const SMALL_SIDE = 64; // pixels: larger grey pictures are rarely drawn by hand
const DRAWN_SCALE = 2; // pixels of a drawing for each pixel of the model's input
const INLINE_BYTES = 6144; // a picture up to this size is sent as text, so copied calls need no file

/** The input of a picture model. */
export class PictureInput {
  #model;
  #pictures = [];
  #list = h("ul.thumbs", { "aria-label": "Pictures to send" });
  #picker;
  #pad = null;
  #centre = null; // of a classifier: elsewhere the answer depends on the place
  #adding = Promise.resolve();
  #made = 0;
  #drop;
  #closed = new AbortController();
  #said = h("p.note", { role: "status" });

  /** @param {Record<string, any>} model of GET /models/NAME?full=true */
  constructor(model) {
    this.#model = model;
    const how = model.manifest.codec.preprocess;
    const picker = filePicker("Choose pictures", {
      multiple: true,
      accept: "image/png,image/jpeg,image/webp,image/gif",
      onchange: (files) => this.#take(files),
    });
    this.#picker = picker.input;
    this.#drop = h(
      "div.drop",
      null,
      h("span.note", { text: "Drop pictures on the page, paste them, or" }),
      picker.element,
      typeof model.example === "string" &&
        h("button", { type: "button", text: "Use the example", onclick: () => this.#useExample() }),
    );
    this.element = h("div.stack");
    const isSmall = Math.max(how.width, how.height) <= SMALL_SIDE;
    if (how.channels === 1 && isSmall && how.fit !== "none") this.#addPad(how);
    this.element.append(this.#drop, this.#list, this.#said);
    const { signal } = this.#closed;
    document.addEventListener("paste", (event) => this.#paste(event), { signal });
    for (const type of ["dragover", "dragleave", "drop"]) {
      document.addEventListener(type, (event) => this.#drag(event), { signal });
    }
  }

  /** Release object URLs and listeners. */
  close() {
    this.#closed.abort();
    for (const each of this.#pictures) URL.revokeObjectURL(each.url);
  }

  /**
   * The input to send.
   * @returns {Promise<import("./inputs.js").Input | null>} null: there is none
   */
  async read() {
    await this.#adding;
    const pictures = [...this.#pictures];
    if (this.#pad && !this.#pad.isBlank) pictures.push(await this.#drawn(this.#made + 1));
    return pictures.length ? inputOf(pictures) : null;
  }

  /**
   * The model's example as an input.
   * @returns {Promise<import("./inputs.js").Input | null>} null: there is none
   */
  async example() {
    if (typeof this.#model.example !== "string") return null;
    return inputOf([await pictureOf(this.#exampleFile(), true)]);
  }

  #addPad(how) {
    const note = h("p.note", { text: "Several pictures form one batch." });
    this.#pad = new DrawingPad(
      how.polarity === "light-on-dark",
      () => (this.#said.textContent = ""),
    );
    if (isClassifier(this.#model)) {
      this.#centre = h("input", { type: "checkbox", id: freshId(), checked: true });
    }
    const add = () => {
      if (this.#pad.isBlank) {
        this.#said.textContent = "Draw something first.";
        return;
      }
      this.#made += 1;
      this.#inTurn(this.#drawn(this.#made));
      this.#pad.clear();
    };
    this.element.append(
      h(
        "div.draw",
        null,
        this.#pad.element,
        h(
          "div.stack",
          null,
          h(
            "div.row",
            null,
            h("button", { type: "button", text: "Clear", onclick: () => this.#pad.clear() }),
            h("button", { type: "button", text: "Add to batch", onclick: add }),
          ),
          this.#centre &&
            h(
              "div.check",
              null,
              this.#centre,
              h("label", { for: this.#centre.id, text: "Centre the drawing" }),
            ),
          note,
        ),
      ),
    );
  }

  async #drawn(number) {
    const { width, height } = this.#model.manifest.codec.preprocess;
    const isCentred = this.#centre?.checked ?? false;
    const blob = await this.#pad.file(isCentred, DRAWN_SCALE * Math.max(width, height));
    return { name: `drawing-${number}.png`, blob, made: true, key: await keyOf(blob) };
  }

  #paste(event) {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length || !this.element.checkVisibility()) return;
    event.preventDefault();
    const named = files.map((file) => {
      this.#made += 1;
      const suffix = { "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif" }[file.type] ?? "png";
      return new File([file], `pasted-${this.#made}.${suffix}`, { type: file.type });
    });
    this.#take(named, true);
  }

  /** Accept files dropped anywhere: otherwise the browser would open them instead of the page. */
  #drag(event) {
    if (!event.dataTransfer?.types.includes("Files") || !this.element.checkVisibility()) return;
    event.preventDefault();
    this.#drop.classList.toggle("over", event.type === "dragover");
    if (event.type === "drop") this.#take([...event.dataTransfer.files]);
  }

  #useExample() {
    this.#take([this.#exampleFile()], true);
  }

  #exampleFile() {
    const octets = Uint8Array.from(atob(this.#model.example.replace(/^data:[^,]*,/, "")), (each) =>
      each.charCodeAt(0),
    );
    const type = octets[0] === 0x89 ? "image/png" : "image/jpeg";
    return new File([octets], `example.${type.slice(6)}`, { type });
  }

  #take(files, made = false) {
    this.#said.textContent = "";
    for (const blob of files) this.#inTurn(pictureOf(blob, made));
    this.#picker.value = ""; // so that the same file can be chosen again
  }

  /** Add pictures in the order of arrival, whichever is read first. */
  #inTurn(reading) {
    const before = this.#adding;
    this.#adding = (async () => {
      const [picture] = await Promise.allSettled([reading, before]);
      if (picture.status === "fulfilled") this.#add(picture.value);
      else this.#said.textContent = `A picture cannot be read: ${picture.reason.message}`;
    })();
  }

  #add(picture) {
    picture.url = URL.createObjectURL(picture.blob);
    this.#pictures.push(picture);
    const remove = () => {
      this.#pictures.splice(this.#pictures.indexOf(picture), 1);
      URL.revokeObjectURL(picture.url);
      item.remove();
      this.#picker.focus();
    };
    const item = h(
      "li",
      null,
      h("img", { src: picture.url, alt: "" }),
      h("span.name", { text: picture.name, title: picture.name }),
      h("span.note", { text: bytes(picture.blob.size) }),
      h("button.quiet", {
        type: "button",
        text: "Remove",
        "aria-label": `Remove ${picture.name}`,
        onclick: remove,
      }),
    );
    this.#list.append(item);
  }
}

/** Whether the answer is a score for each label, which does not depend on the place of a drawing. */
function isClassifier(model) {
  const { shape } = model.manifest.outputs[0];
  return shape.length === 2 && shape[1] > 1 && shape[1] === model.labels?.length;
}

/** Pictures as an input: small ones as text, so that copied calls need no file. */
async function inputOf(pictures) {
  const shown = pictures.map((each) => ({
    title: each.name,
    key: each.key,
    picture: each.blob,
  }));
  const many = pictures.length > 1;
  if (pictures.every((each) => each.made && each.blob.size <= INLINE_BYTES)) {
    const items = await Promise.all(pictures.map((each) => base64Of(each.blob)));
    const json = many ? { inputs: items } : { input: items[0] };
    return { many, shown, body: { kind: "json", text: JSON.stringify(json) } };
  }
  const files = pictures.map(({ name, blob, made }) => ({ name, blob, made, type: blob.type }));
  return { many, shown, body: many ? { kind: "files", files } : { kind: "file", ...files[0] } };
}

/** @param {File} blob */
async function pictureOf(blob, made) {
  return { name: blob.name, blob, made, key: await keyOf(blob) };
}

/** A key that is equal for pictures with equal bytes. */
async function keyOf(blob) {
  let [low, high] = [0x811c9dc5, 0x1b873593];
  for (const octet of new Uint8Array(await blob.arrayBuffer())) {
    low = Math.imul(low ^ octet, 0x01000193);
    high = Math.imul(high ^ octet, 0x85ebca6b);
  }
  return `${blob.size}:${low}:${high}`;
}

/** @param {Blob} blob */
async function base64Of(blob) {
  const octets = new Uint8Array(await blob.arrayBuffer());
  return btoa(String.fromCharCode(...octets));
}

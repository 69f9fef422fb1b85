// A pad to draw on with a mouse, a pen or a finger; what it gives looks like the training pictures.

import { h } from "./dom.js";

const SIDE = 256; // pixels of the pad
const PEN = SIDE / 10;
const MARGIN = 0.12; // around a drawing that is centred, as a share of its longer side

/** A pad for pictures that one number per pixel describes. */
export class DrawingPad {
  #context;
  #last = null;
  #box = null; // of what was drawn: [left, top, right, bottom]
  #ink;
  #paper;
  #changed;

  /**
   * @param {boolean} isDark whether the model expects light strokes on a dark ground
   * @param {() => void} changed called after each stroke
   */
  constructor(isDark, changed) {
    this.#ink = isDark ? "#fff" : "#000";
    this.#paper = isDark ? "#000" : "#fff";
    this.#changed = changed;
    this.element = h("canvas.pad", {
      width: SIDE,
      height: SIDE,
      role: "img",
      "aria-label":
        "Drawing pad, for mouse, pen or touch. With a keyboard, choose a file or the example.",
      onpointerdown: (event) => this.#begin(event),
      onpointermove: (event) => this.#move(event),
      onpointerup: () => this.#end(),
      onpointercancel: () => this.#end(),
    });
    this.#context = this.element.getContext("2d");
    this.clear();
  }

  get isBlank() {
    return this.#box === null;
  }

  /** Remove what was drawn. */
  clear() {
    this.#context.fillStyle = this.#paper;
    this.#context.fillRect(0, 0, SIDE, SIDE);
    this.#box = null;
  }

  /**
   * The drawing as a PNG file.
   * @param {boolean} isCentred whether it is moved to the middle and scaled to fill the picture
   * @param {number} side pixels of the picture
   * @returns {Promise<Blob>}
   */
  file(isCentred, side) {
    const picture = h("canvas", { width: side, height: side });
    const context = picture.getContext("2d");
    context.fillStyle = this.#paper;
    context.fillRect(0, 0, side, side);
    context.imageSmoothingQuality = "high";
    const [left, top, right, bottom] = isCentred && this.#box ? this.#box : [0, 0, SIDE, SIDE];
    const [width, height] = [right - left, bottom - top];
    const longer = Math.max(width, height) * (isCentred ? 1 + 2 * MARGIN : 1);
    const scale = side / longer;
    context.drawImage(
      this.element,
      ...[left, top, width, height],
      ...[(side - width * scale) / 2, (side - height * scale) / 2, width * scale, height * scale],
    );
    return new Promise((resolve) => picture.toBlob(resolve, "image/png"));
  }

  #begin(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.element.setPointerCapture(event.pointerId);
    this.#last = this.#at(event);
    this.#line(this.#last);
  }

  #move(event) {
    if (!this.#last) return;
    const points = event.getCoalescedEvents?.() ?? [];
    for (const each of points.length ? points : [event]) this.#line(this.#at(each));
  }

  #end() {
    if (!this.#last) return;
    this.#last = null;
    this.#changed();
  }

  #at(event) {
    const box = this.element.getBoundingClientRect();
    const scale = SIDE / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  }

  #line(to) {
    const context = this.#context;
    context.strokeStyle = this.#ink;
    context.lineWidth = PEN;
    context.lineCap = context.lineJoin = "round";
    context.beginPath();
    context.moveTo(...this.#last);
    context.lineTo(...to);
    context.stroke();
    this.#last = to;
    const inside = (value) => Math.max(0, Math.min(SIDE, value));
    const [left, top] = to.map((value) => inside(value - PEN / 2));
    const [right, bottom] = to.map((value) => inside(value + PEN / 2));
    const box = this.#box ?? [left, top, right, bottom];
    this.#box = [
      ...[Math.min(box[0], left), Math.min(box[1], top)],
      ...[Math.max(box[2], right), Math.max(box[3], bottom)],
    ];
  }
}

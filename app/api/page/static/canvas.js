// A pad to draw on with a mouse, a pen or a finger; its pictures look like the training pictures.

import { h } from "./dom.js";

const SIDE = 640; // pixels of the pad, which is half as wide on an ordinary screen
const PEN = 1 / 7; // width of a stroke as a share of the side, as in small pictures of handwriting
const MARGIN = 0.08; // around a drawing that is centred, as a share of the side

/** A pad for pictures with one number per pixel. */
export class DrawingPad {
  #canvas;
  #strokes = []; // each is a list of points, as shares of the side
  #isDrawing = false;
  #ink;
  #paper;
  #changed;
  #hint = h("span.hint", { "aria-hidden": "true", text: "Draw here" });

  /**
   * @param {boolean} isDark whether the model expects light strokes on a dark background
   * @param {() => void} changed called after each stroke
   */
  constructor(isDark, changed) {
    this.#ink = isDark ? "#fff" : "#000";
    this.#paper = isDark ? "#000" : "#fff";
    this.#changed = changed;
    this.#canvas = h("canvas.pad", {
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
    this.element = h("div.pad-place", null, this.#canvas, this.#hint);
    this.clear();
  }

  get isBlank() {
    return this.#strokes.length === 0;
  }

  /** Remove the drawing. */
  clear() {
    this.#strokes = [];
    this.#paint();
  }

  /**
   * The drawing as a PNG file.
   * @param {boolean} isCentred whether to move it to the middle and scale it to fill the picture
   * @param {number} side pixels of the picture
   * @returns {Promise<Blob>}
   */
  file(isCentred, side) {
    const picture = h("canvas", { width: side, height: side });
    const strokes = isCentred ? centred(this.#strokes) : this.#strokes;
    paint(picture, strokes, this.#ink, this.#paper);
    return new Promise((resolve) => picture.toBlob(resolve, "image/png"));
  }

  #begin(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.#canvas.setPointerCapture(event.pointerId);
    this.#isDrawing = true;
    this.#strokes.push([]);
    this.#add(event);
  }

  #move(event) {
    if (this.#isDrawing) this.#add(event);
  }

  #end() {
    if (this.#isDrawing) this.#changed();
    this.#isDrawing = false;
  }

  #add(event) {
    const box = this.#canvas.getBoundingClientRect();
    const passed = event.getCoalescedEvents?.() ?? [];
    for (const each of passed.length ? passed : [event]) {
      const x = (each.clientX - box.left) / box.width;
      this.#strokes.at(-1).push([x, (each.clientY - box.top) / box.height]);
    }
    this.#paint();
  }

  #paint() {
    paint(this.#canvas, this.#strokes, this.#ink, this.#paper);
    this.#hint.hidden = !this.isBlank;
  }
}

function paint(canvas, strokes, ink, paper) {
  const context = canvas.getContext("2d");
  context.fillStyle = paper;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.strokeStyle = ink;
  context.lineWidth = PEN * canvas.width;
  context.lineCap = context.lineJoin = "round";
  for (const points of strokes) {
    context.beginPath();
    // A stroke of one point is a dot: a line back to its start.
    for (const [x, y] of [points[0], ...points])
      context.lineTo(x * canvas.width, y * canvas.height);
    context.stroke();
  }
}

/** Strokes in the middle of the picture, as large as possible, with unchanged width. */
function centred(strokes) {
  const points = strokes.flat();
  const room = 1 - 2 * MARGIN - PEN;
  const axes = [0, 1].map((axis) => {
    const places = points.map((point) => point[axis]);
    return [Math.min(...places), Math.max(...places)];
  });
  const longer = Math.max(...axes.map(([least, most]) => most - least));
  const scale = longer > PEN ? room / longer : 1; // a dot stays a dot
  const place = (value, axis) => 0.5 + (value - (axes[axis][0] + axes[axis][1]) / 2) * scale;
  return strokes.map((each) => each.map((point) => point.map(place)));
}

// Outputs as numbers, tables or heat maps, by their shape; large ones are truncated for display.

import { facts, fill, h, short } from "./dom.js";

const MAX_LISTED = 16; // a vector of up to this many numbers is shown whole
const FIRST = 8; // numbers shown of a longer vector
const MAX_TABLE = [12, 8]; // rows and columns of a table
const MAX_MAP = 256; // rows and columns of a heat map
// Dark to light, as in matplotlib's viridis: legible without colour vision and in both themes.
const STOPS = [
  [68, 1, 84],
  [59, 82, 139],
  [33, 145, 140],
  [94, 201, 98],
  [253, 231, 37],
];

/** The shape of nested lists. */
export function shapeOf(value) {
  const shape = [];
  for (let each = value; Array.isArray(each); each = each[0]) shape.push(each.length);
  return shape;
}

/**
 * A view of an output, by its shape.
 * @param {string} name
 * @param {any} value a number, or nested lists
 */
export function arrayView(name, value) {
  const shape = shapeOf(value);
  const title = h("h3", null, name, " ", h("span.note", { text: `[${shape.join(", ")}]` }));
  if (!shape.length) return h("p", null, h("strong", { text: `${name}: ` }), String(value));
  if (shape.includes(0)) return h("div", null, title, h("p.note", { text: "Empty array." }));
  if (shape.length === 1) return h("div", null, title, vector(value));
  const [rows, columns] = shape.slice(-2);
  const isSmall = rows <= MAX_TABLE[0] && columns <= MAX_TABLE[1];
  const matrix = (rows) => (isSmall ? table(rows) : heatMap(name, rows));
  if (shape.length === 2) return h("div", null, title, matrix(value));
  return h("div", null, title, ...slices(value, shape.slice(0, -2), matrix));
}

/** The matrix at an index of each leading axis, and fields to choose the indices. */
function slices(value, leading, matrix) {
  const place = h("div");
  const fields = leading.map((size, axis) =>
    h("input", {
      type: "number",
      min: 0,
      max: size - 1,
      value: 0,
      required: true,
      "aria-label": `Index on axis ${axis}, 0 to ${size - 1}`,
      oninput: () => fields.every((each) => each.checkValidity()) && show(),
    }),
  );
  const show = () =>
    fill(place, matrix(fields.reduce((slice, { value: index }) => slice[Number(index)], value)));
  show();
  return [h("p.row.note", null, "Slice", ...fields), place];
}

function vector(values) {
  const numbers = values.map(Number);
  if (values.length <= MAX_LISTED) return h("p.mono", { text: numbers.map(short).join("  ") });
  const norm = Math.sqrt(numbers.reduce((sum, each) => sum + each * each, 0));
  const { least, most, mean } = summary(numbers);
  return h(
    "div",
    null,
    h("p.mono", { text: `${numbers.slice(0, FIRST).map(short).join("  ")}  …` }),
    facts({ Norm: norm, Smallest: least, Largest: most, Mean: mean }),
    h("p.note", { text: `The first ${FIRST} of ${values.length} numbers.` }),
  );
}

function table(rows) {
  return h(
    "div.scroll",
    { tabindex: "0", role: "group", "aria-label": "Values" },
    h(
      "table",
      null,
      h(
        "tbody",
        null,
        ...rows.map((row) =>
          h("tr", null, ...row.map((each) => h("td.number", { text: short(Number(each)) }))),
        ),
      ),
    ),
  );
}

/**
 * Rows of numbers as colours; the value under the pointer is shown below.
 * @param {string} name
 * @param {number[][]} rows
 */
export function heatMap(name, rows) {
  const shown = rows.slice(0, MAX_MAP).map((row) => row.slice(0, MAX_MAP).map(Number));
  const { least, most, mean } = summary(shown.flat());
  const [height, width] = [shown.length, shown[0].length];
  const said = `Dark is ${short(least)}, bright is ${short(most)}, the mean is ${short(mean)}.`;
  const caption = h("figcaption.note", { text: said });
  const canvas = h("canvas.heat", {
    width,
    height,
    role: "img",
    "aria-label": `Heat map of ${name}, ${height} rows and ${width} columns. ${said}`,
  });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(width, height);
  for (const [row, numbers] of shown.entries()) {
    for (const [column, number] of numbers.entries()) {
      pixels.data.set(shade((number - least) / (most - least || 1)), 4 * (row * width + column));
    }
  }
  context.putImageData(pixels, 0, 0);
  canvas.style.aspectRatio = `${width} / ${height}`;
  canvas.style.width = `${Math.min(480, Math.max(160, 16 * width), (480 * width) / height)}px`;
  canvas.addEventListener("pointermove", (event) => {
    const row = Math.min(
      height - 1,
      Math.max(0, Math.floor((event.offsetY / canvas.clientHeight) * height)),
    );
    const column = Math.min(
      width - 1,
      Math.max(0, Math.floor((event.offsetX / canvas.clientWidth) * width)),
    );
    caption.textContent = `[${row}, ${column}] is ${short(shown[row][column])}. ${said}`;
  });
  canvas.addEventListener("pointerleave", () => (caption.textContent = said));
  const isCut = rows.length > height || rows[0].length > width;
  return h(
    "figure",
    null,
    canvas,
    caption,
    isCut &&
      h("p.note", {
        text: `The first ${height} x ${width} of ${rows.length} x ${rows[0].length} are shown.`,
      }),
  );
}

function summary(numbers) {
  let [least, most, sum] = [Infinity, -Infinity, 0];
  for (const each of numbers) {
    if (each < least) least = each;
    if (each > most) most = each;
    sum += each;
  }
  return { least, most, mean: sum / numbers.length };
}

/** The colour of a share of the range, as red, green, blue and alpha. */
function shade(share) {
  const at = share * (STOPS.length - 1);
  const low = Math.min(Math.floor(at), STOPS.length - 2);
  return [
    ...STOPS[low].map((from, channel) => from + (STOPS[low + 1][channel] - from) * (at - low)),
    255,
  ];
}

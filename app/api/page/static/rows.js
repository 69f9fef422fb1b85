// Outputs with a number of rows, such as detections: a table, and boxes drawn on the picture.

import { colour, h, short } from "./dom.js";
import { shapeOf } from "./arrays.js";

const MAX_ROWS = 50;
const COLOURS = 6; // --c1 to --c6 of the theme
const WIDTH = [320, 640]; // minimum and maximum width of the drawing in pixels

/**
 * Rows as a table, with the boxes on the picture if there are any.
 * @param {Record<string, any>} prediction
 * @param {Record<string, any>[]} specs of the outputs that have rows
 * @param {Record<string, any>} codec of the manifest
 * @param {string[]} known all labels of the model: a class keeps its colour in every picture
 * @param {Blob | undefined} picture as it was sent
 */
export function rowsView(prediction, specs, codec, known, picture) {
  const values = specs.map((spec) => prediction.outputs[spec.name]);
  const labels = prediction.labels;
  const count = values[0].length;
  const declared = codec.boxes?.find((each) => specs.some((spec) => spec.name === each.output));
  const boxes = specs.findIndex((spec) =>
    declared ? spec.name === declared.output : spec.shape.length === 3 && spec.shape[2] === 4,
  );
  const edgeNames = declared?.columns ? null : EDGE_NAMES[declared?.form ?? "xyxy"];
  const isSplit = (index) => index === boxes && edgeNames?.length === specs[index].shape[2];
  const columns = [
    ...(labels ? ["Label"] : []),
    ...specs.flatMap((spec, index) => (isSplit(index) ? edgeNames : [spec.name])),
  ];
  const names = labels ?? values[0].map((_, row) => String(row));
  const order = labels && known.length ? known : [...new Set(names)];
  const colours = names.map((name) => (order.indexOf(name) % COLOURS) + 1);
  const body = Array.from({ length: Math.min(count, MAX_ROWS) }, (_, row) =>
    h(
      "tr",
      null,
      labels &&
        h("th", { scope: "row" }, boxes >= 0 && h(`span.swatch.c${colours[row]}`), labels[row]),
      ...values
        .flatMap((each, index) => (isSplit(index) ? each[row] : [each[row]]))
        .map((each) => h("td.number", { text: cell(each) })),
    ),
  );
  const view = h(
    "div.stack",
    null,
    h(
      "div.scroll",
      { tabindex: "0", role: "group", "aria-label": "Rows" },
      h(
        "table.rows",
        null,
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            ...columns.map((name, index) =>
              h(labels && !index ? "th" : "th.number", { scope: "col", text: name }),
            ),
          ),
        ),
        h("tbody", null, ...body),
      ),
    ),
    count === 0 && h("p.note", { text: "No rows: nothing was found." }),
    count > MAX_ROWS && h("p.note", { text: `The first ${MAX_ROWS} of ${count} rows are shown.` }),
  );
  if (picture && boxes >= 0 && codec.preprocess && !declared?.columns && declared?.form !== "xy") {
    const shown = values[boxes].slice(0, MAX_ROWS);
    const numbers = shown.map((box) => box.map(Number));
    const edges = declared ? numbers.map(EDGES[declared.form]) : numbers;
    draw(picture, edges, names, colours, declared ? null : codec.preprocess).then(
      (canvas) =>
        view.prepend(
          h(
            "figure",
            null,
            canvas,
            !declared &&
              h("figcaption.note", {
                text: "Boxes are read as left, top, right and bottom, in pixels of the model's input.",
              }),
          ),
        ),
      () => view.append(h("p.note", { text: "The browser cannot show this picture." })),
    );
  }
  return view;
}

function cell(value) {
  return Array.isArray(value)
    ? value.flat(shapeOf(value).length).map(Number).map(short).join(", ")
    : short(Number(value));
}

/** Names of a box's numbers in each form. */
const EDGE_NAMES = {
  xyxy: ["x0", "y0", "x1", "y1"],
  xywh: ["x0", "y0", "width", "height"],
  cxcywh: ["centre x", "centre y", "width", "height"],
};

/** Left, top, right and bottom of a box in each form. */
const EDGES = {
  xyxy: (box) => box.slice(0, 4),
  xywh: ([left, top, width, height]) => [left, top, left + width, top + height],
  cxcywh: ([x, y, width, height]) => [
    x - width / 2,
    y - height / 2,
    x + width / 2,
    y + height / 2,
  ],
};

/** @param how the preprocessing, if the boxes are in the model's input; null: in the picture */
async function draw(picture, boxes, labels, colours, how) {
  const image = await createImageBitmap(picture);
  const width = Math.min(WIDTH[1], Math.max(WIDTH[0], image.width));
  const zoom = width / image.width;
  const canvas = h("canvas.boxes", {
    width,
    height: Math.max(1, Math.round(image.height * zoom)),
    role: "img",
    "aria-label": `The picture with ${boxes.length} boxes; the table lists them.`,
  });
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = zoom < 1;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  context.lineWidth = 2;
  context.font = "13px system-ui, sans-serif";
  context.textBaseline = "top";
  const onPicture = how ? placer(image, how) : (box) => box;
  for (const [index, box] of boxes.entries()) {
    const [left, top, right, bottom] = onPicture(box.map(Number)).map((value) => value * zoom);
    context.strokeStyle = context.fillStyle = colour(`--c${colours[index]}`);
    context.strokeRect(left, top, right - left, bottom - top);
    const above = Math.max(0, top - 17);
    context.fillRect(left - 1, above, context.measureText(labels[index]).width + 8, 17);
    context.fillStyle = colour("--surface");
    context.fillText(labels[index], left + 3, above + 2);
  }
  image.close();
  return canvas;
}

/** Maps places in the model's input to places in the picture, the inverse of `preprocess`. */
function placer(image, how) {
  if (how.fit === "none") return (box) => box;
  const across = (how.resize_shorter ?? how.width) / image.width;
  const down = (how.resize_shorter ?? how.height) / image.height;
  const scales = [across, down];
  if (how.fit === "crop") scales.fill(Math.max(across, down));
  if (how.fit === "pad") scales.fill(Math.min(across, down));
  const left = (how.width - image.width * scales[0]) / 2;
  const top = (how.height - image.height * scales[1]) / 2;
  return (box) => box.map((value, index) => (value - (index % 2 ? top : left)) / scales[index % 2]);
}

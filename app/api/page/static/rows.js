// Outputs with a number of rows, such as detections: a table, and boxes drawn on the picture.

import { colour, h, short } from "./dom.js";
import { shapeOf } from "./arrays.js";

const MAX_ROWS = 50;
const WIDTH = [320, 640]; // minimum and maximum width of the drawing in pixels

/**
 * Rows as a table, with the boxes on the picture if there are any.
 * @param {Record<string, any>} prediction
 * @param {Record<string, any>[]} specs of the outputs that have rows
 * @param {Record<string, any>} codec of the manifest
 * @param {Blob | undefined} picture as it was sent
 */
export function rowsView(prediction, specs, codec, picture) {
  const values = specs.map((spec) => prediction.outputs[spec.name]);
  const labels = prediction.labels;
  const count = values[0].length;
  const declared = codec.boxes?.find((each) => specs.some((spec) => spec.name === each.output));
  const boxes =
    picture &&
    specs.findIndex((spec) =>
      declared ? spec.name === declared.output : spec.shape.length === 3 && spec.shape[2] === 4,
    );
  const columns = [...(labels ? ["Label"] : []), ...specs.map((spec) => spec.name)];
  const body = Array.from({ length: Math.min(count, MAX_ROWS) }, (_, row) =>
    h(
      "tr",
      null,
      labels && h("th", { scope: "row", text: labels[row] }),
      ...values.map((each) => h("td.number", { text: cell(each[row]) })),
    ),
  );
  const view = h(
    "div.stack",
    null,
    h(
      "div.scroll",
      null,
      h(
        "table.rows",
        null,
        h(
          "thead",
          null,
          h("tr", null, ...columns.map((name) => h("th", { scope: "col", text: name }))),
        ),
        h("tbody", null, ...body),
      ),
    ),
    count === 0 && h("p.note", { text: "No rows: nothing was found." }),
    count > MAX_ROWS && h("p.note", { text: `The first ${MAX_ROWS} of ${count} rows are shown.` }),
  );
  if (boxes >= 0 && codec.preprocess && !declared?.columns && declared?.form !== "xy") {
    const names = labels ?? values[boxes].map((_, row) => String(row));
    const shown = values[boxes].slice(0, MAX_ROWS);
    const numbers = shown.map((box) => box.map(Number));
    const edges = declared ? numbers.map(EDGES[declared.form]) : numbers;
    draw(picture, edges, names, declared ? null : codec.preprocess).then(
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
async function draw(picture, boxes, labels, how) {
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
  const names = [...new Set(labels)];
  const onPicture = how ? placer(image, how) : (box) => box;
  for (const [index, box] of boxes.entries()) {
    const [left, top, right, bottom] = onPicture(box.map(Number)).map((value) => value * zoom);
    context.strokeStyle = context.fillStyle = colour(
      `--c${(names.indexOf(labels[index]) % 6) + 1}`,
    );
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

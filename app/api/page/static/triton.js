// The call as a program for Triton's client, if the Open Inference Protocol can carry it.

import { shapeOf } from "./arrays.js";
import { hasLongNumber, isJson, python, string } from "./quoting.js";

const DATATYPES = {
  ...{ float16: "FP16", float32: "FP32", float64: "FP64", uint8: "UINT8", bool: "BOOL" },
  ...{ int8: "INT8", int16: "INT16", int32: "INT32", int64: "INT64" },
};

/**
 * The program, or the reason why there is none.
 * @param {{model: Record<string, any>, version: string, input: import("./inputs.js").Input,
 *   body: import("./inputs.js").Body}} call
 * @param {string} root address of the server
 * @param {boolean} isKeyed whether the server asks for keys
 * @returns {{code?: string, why?: string}}
 */
export function triton({ model, version, input, body }, root, isKeyed) {
  if (model.codec === "text") {
    return { why: "The Open Inference Protocol accepts token ids for this model, not texts." };
  }
  if (model.codec === "image" && model.inputs.length > 1) {
    return { why: "The Open Inference Protocol accepts only arrays for this model, not pictures." };
  }
  const arrays =
    model.codec === "tensor" ? tensors(model, input, body) : filesOf(model, input, body);
  if (arrays.why) return arrays;
  const address = new URL(root);
  const server = `${address.host}${address.pathname.replace(/\/$/, "")}`;
  const given = [string(model.name), "inputs"];
  if (version) given.push(`model_version=${string(version)}`);
  if (isKeyed) given.push(`headers={"Authorization": f"Bearer {os.environ['TORCHLANE_KEY']}"}`);
  const outputs = model.outputs.map(({ name }) => name);
  const lines = [
    ...[...arrays.imports, ...(isKeyed ? ["import os"] : [])].sort(),
    ...(arrays.imports.length || isKeyed ? [""] : []),
    "import numpy as np",
    "import tritonclient.http as triton",
    "",
    `client = triton.InferenceServerClient(${string(server)}${address.protocol === "https:" ? ", ssl=True" : ""})`,
    "arrays = {",
    ...arrays.lines.map((line) => `    ${line},`),
    "}",
    "inputs = []",
    `for name, (datatype, array) in arrays.items():`,
    "    inputs.append(triton.InferInput(name, list(array.shape), datatype))",
    "    inputs[-1].set_data_from_numpy(array)",
    `answer = client.infer(${given.join(", ")})`,
    `for name in [${outputs.map(string).join(", ")}]:`,
    "    print(name, answer.as_numpy(name))",
  ];
  return { code: lines.join("\n") };
}

/**
 * Files as BYTES.
 * @returns {{imports?: string[], lines?: string[], why?: string}}
 */
function filesOf(model, input, body) {
  const name = string(model.inputs[0].name);
  if (body.kind === "json") {
    const given = JSON.parse(body.text);
    const texts = (input.many ? given.inputs : [given.input]).map(string).join(", ");
    return {
      imports: ["import base64"],
      lines: [
        `${name}: ("BYTES", np.array([base64.b64decode(each) for each in [${texts}]], dtype=object))`,
      ],
    };
  }
  const files = body.kind === "files" ? body.files : [body];
  const names = files.map((each) => string(each.name)).join(", ");
  return {
    imports: [],
    lines: [
      `${name}: ("BYTES", np.array([open(each, "rb").read() for each in [${names}]], dtype=object))`,
    ],
  };
}

/**
 * Numbers, with an axis for the items in front.
 * @returns {{imports?: string[], lines?: string[], why?: string}}
 */
function tensors(model, input, body) {
  if (body.kind === "file" && body.name.endsWith(".npy")) {
    const { name, dtype } = model.inputs[0];
    const row = input.many ? "" : "[np.newaxis]";
    const load = `np.load(${string(body.name)})${row}.astype(${string(dtype)})`;
    return { imports: [], lines: [`${string(name)}: (${string(DATATYPES[dtype])}, ${load})`] };
  }
  if (body.kind !== "json") return { why: "The input is too long to show here." };
  if (!isJson(body.text)) return { why: "The input is not JSON." };
  if (hasLongNumber(body.text))
    return { why: "A whole number has more digits than this page can rewrite." };
  if (model.manifest.codec.categories)
    return { why: "The Open Inference Protocol takes the indices of categories, not their names." };
  const given = JSON.parse(body.text);
  const items = input.many ? given.inputs : [given.input];
  const lines = [];
  for (const spec of model.inputs) {
    const of = (item) =>
      item !== null && typeof item === "object" && !Array.isArray(item) ? item[spec.name] : item;
    if (new Set(items.map((item) => String(shapeOf(of(item))))).size > 1) {
      return {
        why: "The items differ in shape; one call of the Open Inference Protocol cannot carry them.",
      };
    }
    const array = `np.array(${python(JSON.stringify(items.map(of)))}, dtype=${string(spec.dtype)})`;
    const shape = spec.shape.includes(-1, 1) ? "" : `.reshape(${spec.shape.join(", ")})`;
    lines.push(`${string(spec.name)}: (${string(DATATYPES[spec.dtype])}, ${array}${shape})`);
  }
  return { imports: [], lines };
}

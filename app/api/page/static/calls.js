// One prediction as an HTTP call, which the page and the copied calls send.

/**
 * @typedef {{path: string, model: Record<string, any>, version: string, input: import("./inputs.js").Input,
 *   headers: Record<string, string>, body: BodyInit}} Call
 */

/**
 * The call for an input.
 * @param {Record<string, any>} model of GET /models/NAME?full=true
 * @param {string} version "" for the newest served version
 * @param {import("./inputs.js").Input} input
 * @returns {Call}
 */
export function callOf(model, version, input) {
  const name = encodeURIComponent(model.name);
  let below = `./models/${name}/`;
  if (version) below += `versions/${version}/`;
  else if (model.default) below = "./";
  const isDescribed = !version || Number(version) === model.version; // by `model`
  const query = isDescribed && model.outputs.some((spec) => spec.picture) ? "?pictures=base64" : "";
  const path = `${below}${input.many ? "batch-predict" : "predict"}${query}`;
  return { path, model, version, input, ...encoded(input.body) };
}

function encoded(body) {
  if (body.kind === "json") {
    return { headers: { "Content-Type": "application/json" }, body: body.text };
  }
  if (body.kind === "file") {
    return { headers: body.type ? { "Content-Type": body.type } : {}, body: body.blob };
  }
  const form = new FormData();
  for (const { name, blob } of body.files) form.append("file", blob, name);
  return { headers: {}, body: form };
}

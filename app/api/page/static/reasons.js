// Why requests are rejected or fail, by error code: what Watch says, and how serious it is.

/** Of a request that the model, or the server itself, got wrong; the others were rejected. */
export const FAILURES = ["artifact_invalid", "backend_failed", "internal", "non_finite_output"];

const REASONS = {
  abandoned: "The caller disconnected before the answer.",
  backend_failed: "The model failed on the item; the server's log has the reason.",
  deadline_exceeded: "The request's time had passed.",
  forbidden: "The API key may not do this.",
  internal: "A bug in the server; its log has the request's ID.",
  invalid_input: "The input did not fit the model.",
  model_not_found: "There is no such model or version.",
  model_not_ready: "The model was loading, or none of its replicas worked.",
  non_finite_output: "The model returned NaN or infinity.",
  not_acceptable: "The answer has no form that the Accept header allows.",
  overloaded: "The deadline could not be met, or the queue was full.",
  payload_too_large: "The request or its answer was too large.",
  rate_limited: "The API key had used up its items.",
  shutting_down: "The server was stopping.",
  unauthorized: "There was no known API key.",
  unsupported_media_type: "The model does not read this Content-Type.",
};

/** The reason in a sentence; "" for codes that explain themselves. */
export const reasonOf = (code) => REASONS[code] ?? "";

/** The custom property of a code's colour, without its dashes. */
export const toneOf = (code) => (FAILURES.includes(code) ? "bad" : "warn");

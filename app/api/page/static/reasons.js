// Why requests are rejected or fail, by error code: what Watch says, and how serious it is.

/** Of a request that the model, or the server itself, got wrong; the others were rejected. */
export const FAILURES = ["artifact_invalid", "backend_failed", "handler_died", "handler_failed",
  "handler_memory", "handler_outputs", "handler_timeout", "internal", "non_finite_output"];

const FIX = "Correct the request: the answer says what is wrong.";
const LATER = "Send it again after the time in Retry-After.";
const OPERATOR = "The server's log has the reason, with the request's ID.";

// Why, and what to do. In the order of docs/errors.md, which says more.
const REASONS = {
  unauthorized: ["There was no known API key.", "Send one as Authorization: Bearer KEY."],
  forbidden: ["The API key may not do this.", "Use a key with the scope that the answer names."],
  rate_limited: ["The API key had used up its items for this period.", LATER],
  untrusted_host: ["The Host header was not one that this server answers to.",
    "Use its real name, or add this one to TORCHLANE_TRUSTED_HOSTS."],
  head_too_large: ["The headers were too large, or too many requests were sent ahead.", FIX],
  head_late: ["The head of the request did not arrive in time.", "Look at the network and the client."],
  unknown_parameter: ["The URL had a parameter that this call does not have.", FIX],
  invalid_input: ["The input did not fit the model.", "The answer says which value, and what would fit."],
  unsupported_media_type: ["The model does not read this Content-Type.",
    "Send one that the answer lists."],
  unsupported_content_coding: ["The body was compressed in a way that the server does not read.",
    "Use gzip or deflate, or no compression."],
  not_acceptable: ["The answer has no form that the Accept header allows.",
    "Allow one that the answer lists, such as application/json."],
  payload_too_large: ["The request, or its answer, was larger than allowed.",
    "Send fewer items at once; the answer has the limit."],
  model_not_found: ["There is no such model or version.", "Models lists those that are served."],
  bad_request: ["What arrived was no valid HTTP request.", "Look at the client, or a proxy on the way."],
  http_version_not_supported: ["The request was neither HTTP/1.0 nor HTTP/1.1.", FIX],
  not_implemented: ["The request used a method or transfer coding that the server lacks.", FIX],
  not_found: ["There is no such path.", "The API docs list all paths."],
  method_not_allowed: ["The path has no such method.", "The answer's Allow header lists those it has."],
  overloaded: ["The server was too busy to answer in time, or a queue was full.",
    `${LATER} If it happens often: more time for a request, more workers or replicas.`],
  not_saved: ["The state of a release could not be written.", OPERATOR],
  not_recorded: ["A profile could not be written to the temporary folder.",
    "Make room in it, or make it writable."],
  already_recording: ["The server was being profiled for another caller.", LATER],
  model_not_ready: ["The model was loading, could not be loaded, or had no working replica.",
    "Models says which, and why."],
  shutting_down: ["The server was stopping.", "Send it to another server, or again once it is back."],
  deadline_exceeded: ["The request's time had passed before it was answered.",
    "Allow more time: X-Torchlane-Timeout-Ms, or the server's setting."],
  backend_failed: ["The model failed on the item.", OPERATOR],
  non_finite_output: ["The model returned NaN or infinity.",
    "Look at the input; the model may not be made for it."],
  handler_failed: ["The code of the handler raised an exception.", OPERATOR],
  handler_outputs: ["What the handler returned does not fit the outputs that it declares.", OPERATOR],
  handler_died: ["The process of the handler ended before it answered.", OPERATOR],
  handler_memory: ["The process of the handler took more memory than its limit.", OPERATOR],
  handler_timeout: ["The code of the handler took too long.",
    "Allow more time, or look what it waits for."],
  artifact_invalid: ["The files of the version are damaged.", "Export it again: Models has the reason."],
  abandoned: ["The caller disconnected before the answer.",
    "Allow more time in the caller, or look why it gives up."],
  internal: ["A bug in the server.", "Its log has the request's ID: please report it."],
};

/** Every error code. */
export const CODES = Object.keys(REASONS);

/** The reason in a sentence; "" for codes that the page does not know. */
export const reasonOf = (code) => REASONS[code]?.[0] ?? "";

/** What a caller can do about it, in a sentence. */
export const remedyOf = (code) => REASONS[code]?.[1] ?? "";

/** The custom property of a code's colour, without its dashes. */
export const toneOf = (code) => (FAILURES.includes(code) ? "bad" : "warn");

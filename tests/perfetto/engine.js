// Perfetto's own trace processor (trace_processor.wasm of ui.perfetto.dev, in a Web Worker there), behind the HTTP
// calls of its Python API: node engine.js FOLDER prints the port of the loopback interface that it listens on.
"use strict";
const fs = require("node:fs");
const http = require("node:http");
const path = require("node:path");

const folder = process.argv[2];
const APPEND = 1, FINALIZE = 2, QUERY = 3; // TraceProcessorMethod
const REQUEST = 2, DATA = 101, QUERY_ARGS = 103, APPENDED = 201, RESULT = 203; // fields of TraceProcessorRpc

/** What the worker's script expects of a browser: it reads its program by a synchronous request. */
class XMLHttpRequest {
  open(method, url) { this.url = url; }
  send() {
    const data = fs.readFileSync(path.join(folder, path.basename(this.url)));
    this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength);
    this.status = 200;
  }
}

/** A varint of protobuf. */
function varint(number) {
  const bytes = [];
  for (; number > 127; number = Math.floor(number / 128)) bytes.push((number % 128) | 128);
  return Buffer.from([...bytes, number]);
}

const delimited = (field, data) => Buffer.concat([varint(field * 8 + 2), varint(data.length), data]);

/** The fields of a message, as pairs of number and bytes; numbers are left out. */
function fields(data) {
  const found = [];
  let at = 0;
  const number = () => {
    let value = 0, factor = 1, byte;
    do {
      byte = data[at++];
      value += (byte & 127) * factor;
      factor *= 128;
    } while (byte > 127);
    return value;
  };
  while (at < data.length) {
    const tag = number(), wire = tag % 8;
    if (wire === 0) number();
    else if (wire === 2) {
      const size = number();
      found.push([Math.floor(tag / 8), data.subarray(at, at + size)]);
      at += size;
    } else at += wire === 1 ? 8 : 4;
  }
  return found;
}

// As in a Web Worker: with these names, and without Node's `process`.
const worker = { location: { href: "http://engine/engine_bundle.js" } };
const script = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
new Function("self", "WorkerGlobalScope", "XMLHttpRequest", "process", script)(worker, class {}, XMLHttpRequest, undefined);

const answers = [];
const port = { postMessage: (data) => answers.push(Buffer.from(data)) };
worker.onmessage({ data: port });

/** The field of all answers to one request, one after the other: messages of protobuf are merged like that. */
function ask(method, field, data, wanted) {
  const message = Buffer.concat([varint(REQUEST * 8), varint(method), data === null ? Buffer.alloc(0) : delimited(field, data)]);
  answers.length = 0;
  port.onmessage({ data: delimited(1, message) });
  return Buffer.concat(fields(Buffer.concat(answers)).flatMap(([, each]) =>
    fields(each).filter(([number]) => number === wanted).map(([, inner]) => inner)));
}

const calls = {
  "/parse": (body) => ask(APPEND, DATA, body, APPENDED),
  "/notify_eof": () => ask(FINALIZE, 0, null, APPENDED),
  "/query": (body) => ask(QUERY, QUERY_ARGS, body, RESULT),
};
const server = http.createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => response.end(calls[request.url](Buffer.concat(parts))));
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));

// The live data of GET /live: one connection per page, and its last ten minutes of data.

import { ApiError } from "./api.js";

/** How many seconds of data are kept. */
export const KEPT_S = 600;
// Twice what the server sends in that time, in case it sends more.
const MOST_SAMPLES = 2 * KEPT_S;
const MOST_CHARACTERS = 4_000_000; // of one event
const SILENCE_MS = 10_000;
const SENT_AGAIN_S = 5; // a snapshot older by less than this does not mean a clock set back
const LONGEST_WAIT_MS = 15_000;

/**
 * @typedef {{at: number, snapshot: any}} Sample  snapshot null: no data for that time
 * @typedef {{kind: "connecting" | "live" | "lost" | "refused", since: Date, reason: string}} State
 */

/**
 * A reader of server-sent events: call the returned function with each piece of text.
 * @param {(data: string) => void} deliver  gets the data of each event
 */
export function eventReader(deliver) {
  let rest = "";
  let data = [];
  let length = 0;
  return (text) => {
    // A carriage return at the end may be the first half of a line end.
    const lines = (rest + text).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "" && data.length) {
        deliver(data.join("\n"));
        data = [];
        length = 0;
      } else if (line.startsWith("data:")) {
        data.push(line.slice(5).replace(/^ /, ""));
        length += line.length;
      }
    }
    if (rest.length + length > MOST_CHARACTERS) throw new Error("an event is too long");
  };
}

/** Samples of the last ten minutes, the oldest first; bounded. */
export class History {
  /** @type {Sample[]} */
  samples = [];
  /** @type {any[]} */
  versions = []; // of the newest snapshot

  /** @param {{at: number, versions: any[]}} snapshot */
  add(snapshot) {
    const last = this.samples.at(-1);
    if (last && snapshot.at <= last.at) {
      if (last.at - snapshot.at < SENT_AGAIN_S) return; // a new connection begins with the latest
      this.samples = []; // the server's clock was set back
    }
    this.samples.push({ at: snapshot.at, snapshot: { ...snapshot, versions: undefined } });
    this.versions = snapshot.versions;
    const fresh = this.samples.findIndex((each) => each.at > snapshot.at - KEPT_S);
    this.samples.splice(0, Math.max(fresh, this.samples.length - MOST_SAMPLES));
  }

  /** Draw no line from the last sample to the next. */
  interrupt() {
    const last = this.samples.at(-1);
    if (last?.snapshot) this.samples.push({ at: last.at + 0.001, snapshot: null });
  }
}

/** The connection, which reconnects when it is lost. */
export class Feed {
  history = new History();
  /** @type {State} */
  state = { kind: "connecting", since: new Date(), reason: "" };
  #open;
  /** @type {(() => void)[]} */
  #listeners = [];
  #running = false;

  /** @param {(signal: AbortSignal) => Promise<Response>} open  sends the request */
  constructor(open) {
    this.#open = open;
  }

  /** @param {() => void} changed  called after each snapshot and each change of the state */
  listen(changed) {
    this.#listeners.push(changed);
  }

  /** Stay connected until the server refuses; does nothing if already running. */
  async run() {
    if (this.#running) return;
    this.#running = true;
    try {
      this.#become("connecting", "");
      for (let failures = 0; this.state.kind !== "refused"; failures += 1) {
        const newest = this.history.samples.at(-1);
        const wait = await this.#connection();
        if (this.history.samples.at(-1) !== newest) failures = 0;
        const backoff = Math.min(LONGEST_WAIT_MS, 500 * 2 ** failures) * (0.75 + Math.random() / 2);
        if (this.state.kind !== "refused") await sleep(Math.max(wait, backoff));
      }
    } finally {
      this.#running = false;
    }
  }

  /** Read one connection to its end; returns how many ms the server requests to wait. */
  async #connection() {
    const silence = new AbortController();
    let alarm = 0;
    try {
      const response = await this.#open(silence.signal);
      const reader = response.body.getReader();
      const decoder = new TextDecoder();
      const read = eventReader((data) => {
        this.history.add(JSON.parse(data));
        this.#become("live", "");
      });
      for (;;) {
        alarm = setTimeout(() => silence.abort(), SILENCE_MS);
        const { value, done } = await reader.read();
        clearTimeout(alarm);
        if (done) throw new Error("the server closed the connection");
        read(decoder.decode(value, { stream: true }));
      }
    } catch (error) {
      const refused = error instanceof ApiError && error.status >= 400 && error.status < 429;
      const silent = silence.signal.aborted ? `no data for ${SILENCE_MS / 1000} s` : "";
      this.history.interrupt();
      this.#become(refused ? "refused" : "lost", silent || error.message);
      return error.retryAfterMs ?? 0;
    } finally {
      clearTimeout(alarm);
      silence.abort(); // also ends a response that is not read to its end
    }
  }

  #become(kind, reason) {
    const since = kind === this.state.kind ? this.state.since : new Date();
    this.state = { kind, since, reason };
    for (const changed of this.#listeners) {
      try {
        changed();
      } catch (error) {
        console.error(error); // an error in drawing does not end the connection
      }
    }
  }
}

let shared = null;

/**
 * The feed of this page, which its views share.
 * @param {import("./api.js").Api} api
 * @returns {Feed}
 */
export function feedOf(api) {
  shared ??= new Feed((signal) =>
    api.request("./live", { signal, headers: { Accept: "text/event-stream" } }));
  return shared;
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

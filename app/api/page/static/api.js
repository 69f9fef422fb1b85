// Calls of the server: sends the key, asks for one after 401, converts error answers to errors.

/** An error answer, or no answer at all. */
export class ApiError extends Error {
  /**
   * @param {string} message the server's sentence
   * @param {{status?: number, code?: string, requestId?: string, retryAfterMs?: number,
   *   details?: object[], body?: any}} [more] status 0: there was no answer
   */
  constructor(message, more = {}) {
    super(message);
    this.name = "ApiError";
    this.status = more.status ?? 0;
    this.code = more.code ?? "";
    this.requestId = more.requestId ?? "";
    this.retryAfterMs = more.retryAfterMs ?? 0;
    this.details = more.details ?? [];
    this.body = more.body ?? null; // the whole answer
  }
}

/** The server, as this page calls it. The key is stored only here. */
export class Api {
  #key = "";
  #asked = null;
  #learned = null; // the key whose scopes are known
  #ask;

  /** @param {(problem: string) => Promise<string | null>} ask asks for a key; null: none entered */
  constructor(ask) {
    this.#ask = ask;
    this.keyed = false; // whether the server has requested or received a key
    this.denied = ""; // why this key may not administer, once the server has reported it
  }

  /** The address of a call, for people to copy. */
  url(path) {
    return new URL(path, document.baseURI).href;
  }

  /** @param {string} key "" for none */
  setKey(key) {
    this.#key = key;
    this.keyed ||= key !== "";
    this.denied = "";
    this.learn().catch(() => null); // then the first call that needs a scope says so
  }

  /** Learn what the key may do, so that no call is needed to find out; once for each key. */
  async learn() {
    const sent = this.#key;
    if (this.#learned === sent) return;
    const response = await this.#send("./page/access", {});
    if (this.#key !== sent) return;
    this.#learned = sent;
    if (!response.ok) return; // an unknown key: the first call that needs one asks for another
    const { keys, scopes } = await response.json();
    if (this.#key !== sent) return;
    this.keyed ||= keys;
    if (scopes.includes("admin") || (keys && !scopes.length)) return; // without a key it is asked for
    this.denied = keys
      ? "This key lacks the scope admin."
      : "This needs a key with the scope admin, and the server has no keys.";
  }

  /**
   * Call the server; after 401 ask for a key and call again.
   * @param {string} path relative to the page, such as "./models"
   * @param {RequestInit} [options] of fetch; headers as an object
   * @returns {Promise<Response & {sentAt: number}>} with a status below 400; its body is not yet
   *   read; `sentAt` is the time of performance.now() when the request was sent
   * @throws {ApiError} with the server's sentence, or the reason why there is no answer
   */
  async request(path, options = {}) {
    for (;;) {
      const sent = this.#key;
      const response = await this.#send(path, options);
      if (response.ok) return response;
      const error = await errorOf(response);
      const isDenied = response.status === 403 && path.startsWith("./admin/");
      if (isDenied && this.#key === sent) this.denied = error.message;
      if (response.status !== 401) throw error;
      this.keyed = true;
      if (this.#key !== sent) continue; // another call has asked in the meantime
      this.#asked ??= this.#ask(sent ? error.message : "").finally(() => (this.#asked = null));
      const key = await this.#asked;
      if (key === null) throw error;
      this.setKey(key);
      options.signal?.throwIfAborted();
    }
  }

  /**
   * The JSON of an answer.
   * @param {string} path
   * @param {RequestInit} [options]
   */
  async json(path, options) {
    return (await this.request(path, options)).json();
  }

  async #send(path, options) {
    const headers = { ...options.headers };
    if (this.#key) headers.Authorization = `Bearer ${this.#key}`;
    try {
      const sentAt = performance.now();
      const url = new URL(path, document.baseURI);
      const response = await fetch(url, { cache: "no-store", ...options, headers });
      return Object.assign(response, { sentAt });
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      throw new ApiError("No answer: the server cannot be reached, or it closed the connection.");
    }
  }
}

/** The error of an answer, in any of the server's shapes. */
async function errorOf(response) {
  const text = await response.text().catch(() => "");
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // A proxy answers in its own format.
  }
  const said = typeof body?.error === "string" ? body.error : body?.error?.message;
  const seconds = Number(response.headers.get("Retry-After"));
  return new ApiError(said || `The server answered ${response.status} ${response.statusText}`, {
    status: response.status,
    code: body?.code,
    requestId: body?.request_id ?? response.headers.get("X-Request-ID") ?? "",
    retryAfterMs: body?.retry_after_ms || seconds * 1000 || 0,
    details: body?.details,
    body,
  });
}

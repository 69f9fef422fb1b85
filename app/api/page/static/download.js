// Answers as files for people to keep.

import { h } from "./dom.js";

/**
 * Offer the body of an answer as a download.
 * @param {Response} response
 * @param {string} name  of the file, where the server suggests none
 */
export async function save(response, name) {
  const suggested = /filename="?([\w.-]+)"?/.exec(response.headers.get("Content-Disposition") ?? "");
  const url = URL.createObjectURL(await response.blob());
  h("a", { href: url, download: suggested?.[1] ?? name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // the browser reads it meanwhile
}

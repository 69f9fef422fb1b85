// Answers saved as files.

import { h } from "./dom.js";

/**
 * Offer the body of an answer as a download.
 * @param {Response} response
 * @param {string} name  of the file, if the server suggests none
 * @param {string} [before]  the beginning of the file
 */
export async function save(response, name, before = "") {
  const suggested = /filename="?([\w.-]+)"?/.exec(response.headers.get("Content-Disposition") ?? "");
  const body = await response.blob();
  const url = URL.createObjectURL(new Blob([before, body], { type: body.type }));
  h("a", { href: url, download: suggested?.[1] ?? name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // until then the browser reads it
}

// The same call as programs to copy: curl, Python and JavaScript.

import { h } from "./dom.js";
import { formFile, hasLongNumber, isJson, javascript, python, shell, string } from "./quoting.js";
import { triton } from "./triton.js";

const MAX_INLINE = 20_000; // characters of JSON; longer JSON is a file
const KEY = "TORCHLANE_KEY";
let saved = []; // addresses of the files that the last view offers

/**
 * All programs for a call.
 * @param {import("./calls.js").Call} call
 * @param {import("./api.js").Api} api
 */
export function snippetsView(call, api) {
  const sent = { ...call, body: filed(call.input.body) };
  const url = api.url(call.path);
  const programs = [
    { title: "curl", code: curl(sent, url, api.keyed) },
    { title: "Python (httpx)", code: httpx(sent, url, api.keyed) },
    { title: "Python (tritonclient)", ...triton(sent, api.url("./"), api.keyed) },
    { title: "JavaScript (fetch)", code: fetched(sent, url, api.keyed) },
  ];
  const name = "snippets";
  return h(
    "section.card.stack",
    { "aria-label": "The same call" },
    h("h2", { text: "The same call" }),
    toSave(sent.body),
    api.keyed &&
      h("p.note", null, "The programs read the key from ", h("code", { text: KEY }), "."),
    ...programs.map(({ title, code, why }, index) =>
      h(
        "details",
        { name, open: index === 0 },
        h("summary", { text: title }),
        code ? codeView(title, code) : h("p.note", { text: why }),
      ),
    ),
  );
}

/** A program with its button. */
function codeView(title, code) {
  const pre = h("pre", { tabindex: "0", "aria-label": title, text: code });
  const button = h("button", {
    type: "button",
    text: "Copy",
    "aria-label": `Copy ${title}`,
    onclick: () => copy(code, pre, button),
  });
  return h("div.code", null, pre, button);
}

async function copy(code, pre, button) {
  let done;
  try {
    await navigator.clipboard.writeText(code); // only in a secure context
    done = true;
  } catch {
    getSelection().selectAllChildren(pre);
    done = document.execCommand("copy");
  }
  button.textContent = done ? "Copied" : "Press Ctrl+C";
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

/** Long JSON as a file. */
function filed(body) {
  if (body.kind !== "json" || body.text.length <= MAX_INLINE) return body;
  const type = "application/json";
  return {
    kind: "file",
    name: "input.json",
    type,
    blob: new Blob([body.text], { type }),
    made: true,
  };
}

/** Links to files that the programs read and the user's disk does not have. */
function toSave(body) {
  saved.forEach((url) => URL.revokeObjectURL(url));
  saved = [];
  const made = (body.kind === "files" ? body.files : [body]).filter((each) => each.made);
  const files = [...new Map(made.map((each) => [each.name, each])).values()];
  if (!files.length) return null;
  saved = files.map(({ blob }) => URL.createObjectURL(blob));
  const links = files.map(({ name }, index) =>
    h("a", { href: saved[index], download: name, text: name }),
  );
  return h(
    "p.note",
    null,
    "Save first: ",
    ...links.flatMap((link, index) => (index ? [", ", link] : [link])),
  );
}

function curl({ body }, url, isKeyed) {
  const lines = [`curl -sS ${shell(url)}`];
  if (isKeyed) lines.push(`-H "Authorization: Bearer $${KEY}"`);
  if (body.kind === "json")
    lines.push("-H 'Content-Type: application/json'", `-d ${shell(body.text)}`);
  else if (body.kind === "files")
    lines.push(...body.files.map(({ name }) => `-F ${formFile(name)}`));
  else {
    if (body.type) lines.push(`-H ${shell(`Content-Type: ${body.type}`)}`);
    lines.push(`--data-binary ${shell(`@${body.name}`)}`);
  }
  return lines.join(" \\\n  ");
}

function httpx({ body }, url, isKeyed) {
  const headers = isKeyed ? [`"Authorization": f"Bearer {os.environ['${KEY}']}"`] : [];
  const given = [];
  if (body.kind === "json" && isJson(body.text)) given.push(`json=${python(body.text)}`);
  else if (body.kind === "files") {
    const names = body.files.map(({ name }) => string(name)).join(", ");
    given.push(`files=[("file", open(name, "rb")) for name in [${names}]]`);
  } else {
    const isJsonText = body.kind === "json";
    given.push(
      isJsonText
        ? `content=${string(body.text)}`
        : `content=open(${string(body.name)}, "rb").read()`,
    );
    const type = isJsonText ? "application/json" : body.type;
    if (type) headers.push(`"Content-Type": ${string(type)}`);
  }
  if (headers.length) given.push(`headers={${headers.join(", ")}}`);
  const lines = [
    ...(isKeyed ? ["import os", ""] : []),
    "import httpx",
    "",
    "answer = httpx.post(",
    `    ${string(url)},`,
    ...given.map((each) => `    ${each},`),
    ")",
    "answer.raise_for_status()",
    "print(answer.json())",
  ];
  return lines.join("\n");
}

function fetched({ body }, url, isKeyed) {
  const headers = isKeyed ? [`Authorization: \`Bearer \${process.env.${KEY}}\``] : [];
  const before = [];
  let sent = "form";
  if (body.kind === "json") {
    const isLiteral = isJson(body.text) && !hasLongNumber(body.text);
    sent = isLiteral ? `JSON.stringify(${javascript(body.text)})` : string(body.text);
    headers.push('"Content-Type": "application/json"');
  } else {
    before.push('import { readFile } from "node:fs/promises";', "");
    if (body.kind === "files") {
      const names = body.files.map(({ name }) => string(name)).join(", ");
      before.push(
        "const form = new FormData();",
        `for (const name of [${names}]) {`,
        '  form.append("file", new Blob([await readFile(name)]), name);',
        "}",
      );
    } else {
      sent = `await readFile(${string(body.name)})`;
      if (body.type) headers.push(`"Content-Type": ${string(body.type)}`);
    }
  }
  const lines = [
    ...before,
    `const answer = await fetch(${string(url)}, {`,
    '  method: "POST",',
    ...(headers.length ? [`  headers: { ${headers.join(", ")} },`] : []),
    `  body: ${sent},`,
    "});",
    "console.log(await answer.json());",
  ];
  return lines.join("\n");
}

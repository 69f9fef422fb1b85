// Elements without markup: all content is text, so no label or error can become HTML.

/**
 * Create an element.
 * @param {string} tag name of the element; classes may follow, as in "div.card.wide"
 * @param {Object<string, any> | null} [given] attributes; `on...` are listeners, `text` its text
 * @param {...(Node | string | null | undefined | false)} children falsy children are omitted
 * @returns {any}
 */
export function h(tag, given, ...children) {
  const [name, ...classes] = tag.split(".");
  /** @type {any} */
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(given ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "text") element.textContent = value;
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...kept(children));
  return element;
}

/**
 * Replace all children.
 * @param {Element} element
 * @param {...(Node | string | null | undefined | false)} children
 */
export function fill(element, ...children) {
  element.replaceChildren(...kept(children));
}

/**
 * Terms with their values.
 * @param {Record<string, string | number>} values
 */
export function facts(values) {
  const pairs = Object.entries(values).map(([term, value]) => {
    const text = typeof value === "number" ? short(value) : value;
    return h("div", null, h("dt", { text: term }), h("dd", { text }));
  });
  return h("dl.facts", null, ...pairs);
}

let last = 0;

/** An id that no other element of the page has. */
export function freshId() {
  last += 1;
  return `e${last}`;
}

/** The colour of a custom property of the theme, such as "--accent", for drawings. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/**
 * A number for people: at most four significant digits.
 * @param {number} value
 */
export function short(value) {
  if (!Number.isFinite(value) || Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** Text in which digests have only their first characters. */
export const withShortHashes = (text) =>
  text.replace(/\b[0-9a-f]{32,}\b/g, (digest) => `${digest.slice(0, 12)}…`);

/** Bytes for people. */
export function bytes(count) {
  if (count < 1024) return `${count} B`;
  if (count < 1024 * 1024) return `${(count / 1024).toFixed(1)} KiB`;
  return `${(count / 1024 / 1024).toFixed(1)} MiB`;
}

/** @returns {(Node | string)[]} the children that are not left out */
function kept(children) {
  return children.filter((child) => child || child === "");
}

// Texts as literals of a shell, of Python and of JavaScript.

/** A word of a POSIX shell. */
export function shell(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** The value of curl's -F for a file, with curl's quotes, then the shell's. */
export function formFile(name) {
  const isPlain = /^[^;,"\\]+$/.test(name);
  return shell(`file=@${isPlain ? name : `"${name.replace(/["\\]/g, "\\$&")}"`}`);
}

/** A string of Python or JavaScript; characters that neither allows in a line are escaped. */
export function string(text) {
  return JSON.stringify(text).replace(/[\u007f-\u009f\u2028\u2029]/g, escaped);
}

function escaped(character) {
  return `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
}

/**
 * JSON as a literal of Python: the same numbers, digit by digit.
 * @param {string} json valid
 */
export function python(json) {
  const words = { true: "True", false: "False", null: "None" };
  return json.replace(
    /"(?:[^"\\]|\\.)*"|true|false|null/g,
    (token) => words[token] ?? string(JSON.parse(token)),
  );
}

/**
 * JSON as a literal of JavaScript.
 * @param {string} json valid, without a long number
 */
export function javascript(json) {
  return json.replace(/[\u2028\u2029]/g, escaped);
}

/** Whether JSON has a whole number with more digits than JavaScript keeps. */
export function hasLongNumber(json) {
  const outside = json.replace(/"(?:[^"\\]|\\.)*"/g, '""');
  return /(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/.test(outside);
}

/** Whether a text is JSON. */
export function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

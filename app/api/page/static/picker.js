// A button that chooses files: the browser's own control, with a label that looks like a button.

import { freshId, h } from "./dom.js";

/**
 * @param {string} text what to choose, such as "Choose pictures"
 * @param {{accept: string, multiple?: boolean, onchange: (files: File[]) => void}} how
 * @returns {{element: HTMLElement, input: HTMLInputElement}}
 */
export function filePicker(text, { accept, multiple = false, onchange }) {
  const id = freshId();
  const input = h("input.visually-hidden", {
    id,
    type: "file",
    accept,
    multiple,
    onchange: () => onchange([...input.files]),
  });
  return { element: h("span.picker", null, input, h("label.button", { for: id, text })), input };
}

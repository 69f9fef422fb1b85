// A list of items, each with one or more text fields; "Add another" makes it a batch.

import { freshId, h } from "./dom.js";

/** Typed items. */
export class FieldItems {
  #fields;
  #list = h("div.stack");

  /**
   * @param {{name: string, label: string, value: string, rows: number, mono?: boolean}[]} fields of an item
   * @param {string[][]} [more] the texts of further items
   */
  constructor(fields, more = []) {
    this.#fields = fields;
    this.#append(fields.map((field) => field.value));
    for (const texts of more) this.#append(texts);
    const add = () => {
      const last = this.values().at(-1);
      this.#append(last).querySelector("textarea").focus();
    };
    this.element = h(
      "div.stack",
      null,
      this.#list,
      h(
        "div.row",
        null,
        h("button", { type: "button", text: "Add another", onclick: add }),
        h("span.note", { text: "Several items form one batch." }),
      ),
    );
  }

  /** The texts of each item, in the order of the fields. */
  values() {
    return [...this.#list.children].map((item) =>
      [...item.querySelectorAll("textarea")].map((field) => field.value),
    );
  }

  #append(values) {
    const title = h("legend");
    const remove = () => {
      const next = item.nextElementSibling ?? item.previousElementSibling;
      item.remove();
      this.#number();
      next?.querySelector("textarea").focus();
    };
    const item = h("fieldset.item.stack", null, title);
    for (const [index, field] of this.#fields.entries()) {
      const id = freshId();
      item.append(
        h(
          "div.field",
          null,
          h("label", { for: id, text: field.label }),
          h(field.mono ? "textarea.mono" : "textarea", {
            id,
            rows: field.rows,
            spellcheck: field.mono ? "false" : null,
            value: values[index],
          }),
        ),
      );
    }
    item.append(h("button.quiet.remove", { type: "button", text: "Remove", onclick: remove }));
    this.#list.append(item);
    this.#number();
    return item;
  }

  #number() {
    const items = [...this.#list.children];
    for (const [index, item] of items.entries()) {
      item.querySelector("legend").textContent = items.length > 1 ? `Item ${index + 1}` : "Item";
      const remove = item.querySelector(".remove");
      remove.hidden = items.length === 1;
      remove.setAttribute("aria-label", `Remove item ${index + 1}`);
    }
  }
}

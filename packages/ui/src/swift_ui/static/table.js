// A table from rows of cells; a cell is a string, an element, or [content, class].
import { element } from "./dom.js";

export const table = (heads, rows, attributes = {}) => {
  const cell = (name, content) => {
    const [inside, kind] = Array.isArray(content) ? content : [content, null];
    return element(name, name === "th" ? { class: kind, scope: "col" } : { class: kind }, inside ?? "");
  };
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": attributes.label || "Table" },
    element("table", { class: attributes.class },
      element("thead", {}, element("tr", {}, ...heads.map((head) => cell("th", head)))),
      element("tbody", {}, ...rows.map((row) =>
        element("tr", { class: row.class }, ...(row.cells || row).map((content) => cell("td", content)))))));
};

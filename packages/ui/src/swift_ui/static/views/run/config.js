// Configuration of the run by key, with a filter, and as a file.
import { get } from "../../api.js";
import { element } from "../../dom.js";
import { plain } from "../../format.js";
import { table } from "../../table.js";

export const mount = async (root, about) => {
  const { text, keys, path } = await get(`${about.path}/config`);
  const body = element("div", { class: "card" });
  const search = element("input", { type: "search", placeholder: "Filter keys and values", "aria-label": "Filter keys", oninput: () => draw() });
  const copy = element("button", { type: "button", onclick: () => navigator.clipboard?.writeText(text) }, "Copy config.yaml");
  const draw = () => {
    const word = search.value.toLowerCase();
    const rows = Object.entries(keys).filter(([name, value]) => `${name} ${plain(value)}`.toLowerCase().includes(word));
    body.replaceChildren(table(["Key", "Value"], rows.map(([name, value]) => [name, plain(value)]), { class: "keys", label: "Configuration" }));
  };
  draw();
  root.append(element("div", { class: "head" }, search, copy, element("span", { class: "muted mono" }, `swift train --config ${path}`)), body);
};

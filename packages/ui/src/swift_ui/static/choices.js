// A list of models or data sets to choose from, grouped, with a filter.
import { get } from "./api.js";
import { element, problem } from "./dom.js";

const MOST = 60;

// `pick(value)` is called for each choice; `first` names the groups to show first.
export const choiceList = (kind, pick, { first = [], title = "" } = {}) => {
  let choices = [];
  const groups = element("div", { class: "choice-groups" });
  const search = element("input", { type: "search", placeholder: "Filter", "aria-label": `Filter ${kind}`, oninput: () => draw(),
    onkeydown: (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      groups.querySelector("button")?.click();
    } });
  const root = element("div", { class: "choices", role: "group", "aria-label": title || `Available ${kind}` }, search, groups);
  const draw = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = choices.filter(({ value, group, detail }) => words.every((word) => `${value} ${group} ${detail}`.toLowerCase().includes(word)));
    const names = [...new Set([...first, ...found.map((each) => each.group)])];
    groups.replaceChildren(...names.map((name) => [name, found.filter((each) => each.group === name)]).filter(([, of]) => of.length).map(([name, of]) =>
      element("section", {}, element("h3", {}, name), element("ul", {}, ...of.slice(0, MOST).map(({ value, detail }) =>
        element("li", {}, element("button", { type: "button", class: "choice", "data-value": value, title: value, onclick: () => pick(value) },
          element("span", { class: "mono" }, value.split("/").slice(-3).join("/")), detail ? element("span", { class: "muted" }, detail) : null)))))));
    if (!found.length) groups.replaceChildren(element("p", { class: "muted" }, choices.length ? "Nothing matches the filter." : `No ${kind} found. Type a path or a hub id.`));
  };
  get("choices").then((response) => { choices = response[kind]; draw(); }, (error) => groups.replaceChildren(problem(error)));
  return root;
};

// A button that opens the list below a field.
export const chooser = (kind, label, pick, options) => {
  const made = element("details", { class: "chooser", ontoggle: () => {
    if (!made.open) return made.lastChild.remove();
    const list = choiceList(kind, (value) => { made.open = false; made.firstChild.focus(); pick(value); }, options);
    made.append(list);
    list.querySelector("input").focus();
  }, onkeydown: (event) => {
    if (event.key !== "Escape") return;
    made.open = false;
    made.firstChild.focus();
  } }, element("summary", { "aria-label": label }, "Choose"));
  return made;
};

// List of runs, newest first; selected runs can be compared.
import { get } from "../api.js";
import { element, problem } from "../dom.js";
import { ago, count, duration, figure, known } from "../format.js";

const EVERY = 2000;
const NOT_DONE = new Set(["running"]);

export const mount = (root) => {
  const marked = new Set();
  let runs = [];
  let roots = [];
  let timer = 0;
  let stopped = false;

  const search = element("input", {
    type: "search", placeholder: "Filter by name, model, objective, state …", "aria-label": "Filter runs", oninput: () => draw(),
  });
  const compare = element("button", { type: "button", disabled: true, onclick: () => {
    location.hash = `#/compare?${[...marked].map((key) => `run=${key}`).join("&")}`;
  } }, "Compare");
  const counted = element("span", { class: "muted", role: "status" });
  const body = element("tbody");
  const list = element("div", { class: "card scroll" },
    element("table", { class: "runs" },
      element("thead", {}, element("tr", {},
        ...[["", ""], ["Run"], ["State"], ["Progress"], ["Loss", "number"], ["Evaluation", "number wide-only"],
          ["Tokens/s", "number wide-only"], ["Left", "number wide-only"], ["Updated", "number"]].map(([title, kind]) =>
          element("th", { class: kind || null, scope: "col" }, title || element("span", { class: "hidden" }, "Compare"))))),
      body));
  const notice = element("div");
  root.append(element("div", { class: "head" }, element("h1", {}, "Runs"), counted,
    element("div", { class: "tools" }, search, compare)), notice, list);

  const rowOf = (run) => {
    const { state, figures, facts } = run;
    const mark = element("input", {
      type: "checkbox", "aria-label": `Compare ${run.model}/${run.name}`, checked: marked.has(run.key),
      onchange: (event) => {
        if (event.target.checked) marked.add(run.key);
        else marked.delete(run.key);
        compare.disabled = marked.size < 2;
      },
    });
    const total = state.total_steps;
    const parts = [facts.objective, facts.tuner, facts.backend, facts.processes > 1 ? `${facts.processes} processes` : null];
    const running = NOT_DONE.has(state.name);
    return element("tr", { class: running ? null : "done", "data-run": run.key },
      element("td", {}, mark),
      element("td", {},
        element("a", { class: "name", href: `#/run/${run.key}` }, `${run.model}/${run.name}`),
        element("div", { class: "facts" }, parts.filter(Boolean).join(" · ")),
        state.cause ? element("div", { class: "cause", title: state.cause }, state.cause) : null),
      element("td", {}, element("span", { class: `status ${state.name}` }, state.name)),
      element("td", {},
        total ? element("progress", { max: total, value: state.step, "aria-label": `${state.step} of ${total} steps` }) : null,
        element("div", { class: "facts" }, total ? `${count(state.step)} of ${count(total)}` : running ? "starting" : "no step")),
      element("td", { class: "number" }, figure(figures.loss)),
      element("td", { class: "number wide-only" }, figure(figures.eval_loss)),
      element("td", { class: "number wide-only" }, known(figures.tokens_per_second) ? count(figures.tokens_per_second) : "–"),
      element("td", { class: "number wide-only" }, running && known(figures.remaining_time) ? duration(figures.remaining_time) : "–"),
      element("td", { class: "number muted" }, ago(state.updated)));
  };

  let shown = "";
  const draw = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (run) => [run.model, run.name, run.state.name, run.folder, ...Object.values(run.facts)].join(" ").toLowerCase();
    const found = runs.filter((run) => wanted.every((word) => text(run).includes(word)));
    const going = runs.filter((run) => NOT_DONE.has(run.state.name)).length;
    counted.textContent = `${found.length} of ${runs.length}${going ? `, ${going} running` : ""}`;
    const drawn = JSON.stringify([found, [...marked], found.map((run) => ago(run.state.updated))]);
    if (drawn === shown) return;
    shown = drawn;
    const focused = document.activeElement?.closest("tr")?.dataset.run;
    const kind = document.activeElement?.tagName;
    body.replaceChildren(...found.map(rowOf));
    if (focused) body.querySelector(`tr[data-run="${focused}"] ${kind === "INPUT" ? "input" : "a"}`)?.focus();
    list.hidden = !runs.length;
    notice.replaceChildren(runs.length ? "" : element("div", { class: "empty" },
      element("p", {}, `No runs in ${roots.join(", ")} yet.`),
      element("p", {}, "Start one: ", element("code", {}, "swift demo --output_dir output"))));
  };

  const refresh = async () => {
    clearTimeout(timer);
    try {
      if (!document.hidden) {
        ({ runs, roots } = await get("runs"));
        if (stopped) return;
        notice.replaceChildren();
        draw();
      }
    } catch (error) {
      notice.replaceChildren(problem(error));
    }
    if (!stopped) timer = setTimeout(refresh, EVERY);
  };
  const seen = () => { if (!document.hidden) refresh(); };
  const key = (event) => {
    if (event.key !== "/" || event.target.matches("input, textarea, select")) return;
    search.focus();
    event.preventDefault();
  };
  document.addEventListener("visibilitychange", seen);
  document.addEventListener("keydown", key);
  const first = refresh();
  return first.then(() => () => {
    stopped = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", seen);
    document.removeEventListener("keydown", key);
  });
};

// Several runs on the same charts, and the settings in which they differ.
import { get } from "../api.js";
import { Charts } from "../charts.js";
import { element } from "../dom.js";
import { figure, plain } from "../format.js";
import { table } from "../table.js";

const EVERY = 3000;
const COLORS = 10;

export const mount = async (root, { query }) => {
  const keys = query.getAll("run");
  if (keys.length < 2) {
    root.append(element("p", { class: "empty" }, "Select two or more runs in the ", element("a", { href: "#/runs" }, "list"), " and choose Compare."));
    return;
  }
  const address = `compare?${keys.map((key) => `run=${encodeURIComponent(key)}`).join("&")}`;
  const hidden = new Set();
  const legend = element("div", { class: "card" });
  const charts_root = element("div", { class: "charts" });
  const settings = element("section", { class: "card" });
  root.append(element("div", { class: "head" }, element("h1", {}, "Compare"), element("span", { class: "muted" }, `${keys.length} runs`)),
    legend, element("h2", { class: "hidden" }, "Curves"), charts_root, settings);
  const charts = new Charts(charts_root);
  let data = null;
  let timer = 0;
  let stopped = false;

  const kind = (index) => `run-${index % COLORS}${index >= COLORS ? " dashed" : ""}`;
  const seriesOf = (chart) => data.runs.flatMap((run, index) => {
    if (hidden.has(run.key)) return [];
    return chart.series.filter(({ name }) => run.series[name]?.[0].length).slice(-1).map(({ name }) => ({
      name: run.key, label: shortName(run), kind: kind(index), steps: run.series[name][0], values: run.series[name][1],
    }));
  });
  // Evaluation has its own chart here: two curves for each run would be too many.
  const split = (chart) => chart.series.length < 2 ? [chart] : chart.series.map((series) => ({
    ...chart, series: [series], metric: series.name, title: series.kind === "evaluation" ? `${chart.title}, evaluation` : chart.title,
  }));
  const names = () => data.runs.map((run) => run.name);
  const shortName = (run) => names().filter((name) => name === run.name).length > 1 ? `${run.model}/${run.name}` : run.name;

  const draw = () => {
    charts.show(data.charts.flatMap(split).map((chart) => ({ ...chart, series: seriesOf(chart) })).filter((chart) => chart.series.length));
    legend.replaceChildren(table(["Run", "State", ["Step", "number"], ["Loss", "number"], ["Evaluation", "number"]], data.runs.map((run, index) => [
      element("label", { class: kind(index) },
        element("input", { type: "checkbox", checked: !hidden.has(run.key), "aria-label": `Show ${shortName(run)}`, onchange: (event) => {
          if (event.target.checked) hidden.delete(run.key);
          else hidden.add(run.key);
          draw();
        } }), " ", element("i", { class: "swatch" }), element("a", { href: `#/run/${run.key}` }, shortName(run))),
      element("span", { class: `status ${run.state.name}` }, run.state.name),
      [run.state.step.toLocaleString("en"), "number"], [figure(run.figures.loss), "number"], [figure(run.figures.eval_loss), "number"],
    ]), { label: "Runs" }));
    settings.replaceChildren(element("h2", {}, "Settings that differ"), data.differences.length
      ? table(["Key", ...data.runs.map(shortName)], data.differences.map(({ key, values }) => [key, ...values.map(plain)]), { class: "keys", label: "Differences" })
      : element("p", { class: "muted" }, "None: these runs have the same configuration."));
  };
  data = await get(address);
  draw();
  const refresh = async () => {
    if (!document.hidden && data.runs.some((run) => run.state.name === "running")) {
      try {
        data = await get(address);
        if (!stopped) draw();
      } catch { /* retried at the next refresh */ }
    }
    if (!stopped) timer = setTimeout(refresh, EVERY);
  };
  timer = setTimeout(refresh, EVERY);
  return () => {
    stopped = true;
    clearTimeout(timer);
    charts.close();
  };
};

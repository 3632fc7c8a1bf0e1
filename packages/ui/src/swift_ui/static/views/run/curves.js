// All logged metrics as curves, updated live.
import { get } from "../../api.js";
import { Charts } from "../../charts.js";
import { element } from "../../dom.js";

const MEMORY = "memory(GiB)";
const TIME_PARTS = [
  ["compute_fraction", "compute", "compute"],
  ["communication_fraction", "communication", "communication"],
  ["optimizer_fraction", "optimizer", "optimizer"],
  ["data_fraction", "", "waiting"],
];
// Runs that generate what they learn from wait for that.
const waitingLabel = (data) => `waiting for ${data.series.seconds_generating ? "completions" : "data"}`;
const FIRST = ["completion_length", "reward", "loss"];

const pointsOf = (data, name) => {
  const [steps, values] = data.series[name] || [[], []];
  return { steps, values };
};

export const chartsOf = (run, data) => {
  const charts = data.charts.filter((chart) => !chart.stacked).map((chart) => ({
    ...chart,
    series: chart.series.map((series) => ({ ...series, ...pointsOf(data, series.name) })),
  }));
  // The metrics of reward runs come first, next to the loss.
  charts.sort((a, b) => FIRST.indexOf(b.metric) - FIRST.indexOf(a.metric));
  const parts = TIME_PARTS.filter(([name]) => data.series[name]?.[0].length);
  if (parts.length > 1) charts.splice(1, 0, {
    metric: "time_breakdown", title: "Time breakdown of a step", stacked: true,
    series: parts.map(([name, label, kind]) => ({
      name, label: label || waitingLabel(data), kind, ...pointsOf(data, name),
    })),
  });
  const planned = run.plan?.predicted?.peak_bytes;
  const memory = charts.find((chart) => chart.metric === MEMORY);
  if (memory && planned) memory.lines = [{ value: planned / 2 ** 30, label: "planned" }];
  return charts;
};

// Evaluation metrics that appear after the page was opened need new charts.
const withNew = (data) => {
  const known = new Set(data.charts.flatMap((chart) => chart.series.map((series) => series.name)));
  return Object.keys(data.series).some((name) => name.startsWith("eval_") && !known.has(name));
};

export const mount = (root, about, live) => {
  const body = element("div", { class: "charts" });
  const empty = element("p", { class: "empty" }, "No step has been logged yet.");
  const hint = element("p", { class: "muted hint" }, "Drag over a chart to zoom in, double-click or press Escape to zoom out; arrow keys show values.");
  root.append(element("h2", { class: "hidden" }, "Curves"), empty, body, hint);
  let detail = null;
  const charts = new Charts(body, {
    zoomed: async (range) => {
      const [first, last] = range ? range.map(Math.round) : [null, null];
      detail = range ? (await get(`${about.path}/series?first=${Math.max(0, first)}&last=${Math.max(0, last)}`)).series : null;
      draw();
    },
  });
  const draw = () => {
    const { run } = about;
    const data = detail ? { ...live.data, series: { ...live.data.series, ...detail } } : live.data;
    const shown = chartsOf(run, data);
    empty.hidden = shown.length > 0;
    hint.hidden = !shown.length;
    charts.show(shown, run.checkpoints.map(({ step, name }) => ({ step, folder: name })));
  };
  let waiting = 0;
  let loading = false;
  const update = async (what) => {
    if (what === "lines" && !loading && (!live.data.charts.length || withNew(live.data))) {
      loading = true;
      live.data.charts = (await get(`${about.path}/series`)).charts;
      loading = false;
    }
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(draw);
  };
  live.listeners.add(update);
  draw();
  return () => {
    live.listeners.delete(update);
    cancelAnimationFrame(waiting);
    charts.close();
  };
};

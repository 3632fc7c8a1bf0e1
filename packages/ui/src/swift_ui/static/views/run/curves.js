// Everything that was logged, as curves that grow while the run goes on.
import { get } from "../../api.js";
import { Charts } from "../../charts.js";
import { element } from "../../dom.js";

const MEMORY = "memory(GiB)";
const TIME_PARTS = [
  ["compute_fraction", "compute", "compute"],
  ["communication_fraction", "communication", "communication"],
  ["optimizer_fraction", "optimizer", "optimizer"],
  ["data_fraction", "waiting for data", "waiting"],
];
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
  // What a run of rewards is about stands beside its loss.
  charts.sort((a, b) => FIRST.indexOf(b.metric) - FIRST.indexOf(a.metric));
  const parts = TIME_PARTS.filter(([name]) => data.series[name]?.[0].length);
  if (parts.length > 1) charts.splice(1, 0, {
    metric: "time_breakdown", title: "Time breakdown of a step", stacked: true,
    series: parts.map(([name, label, kind]) => ({ name, label, kind, ...pointsOf(data, name) })),
  });
  const planned = run.plan?.predicted?.peak_bytes;
  const memory = charts.find((chart) => chart.metric === MEMORY);
  if (memory && planned) memory.lines = [{ value: planned / 2 ** 30, label: "planned" }];
  return charts;
};

// Metrics that appear after the page was opened get a chart of their own.
const withNew = (data) => {
  const known = new Set(data.charts.flatMap((chart) => chart.series.map((series) => series.name)));
  return Object.keys(data.series).some((name) => name.startsWith("eval_") && !known.has(name));
};

export const mount = (root, about, live) => {
  const box = element("div", { class: "charts" });
  const empty = element("p", { class: "empty" }, "Curves appear here with the first logged step.");
  const hint = element("p", { class: "muted hint" }, "Drag over a chart to look closer, double-click or Escape to see all; arrow keys read values out.");
  root.append(element("h2", { class: "hidden" }, "Curves"), empty, box, hint);
  let detail = null;
  const charts = new Charts(box, {
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
  let asked = false;
  const hear = async (what) => {
    if (what === "lines" && !asked && (!live.data.charts.length || withNew(live.data))) {
      asked = true;
      live.data.charts = (await get(`${about.path}/series`)).charts;
      asked = false;
    }
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(draw);
  };
  live.heard.add(hear);
  draw();
  return () => {
    live.heard.delete(hear);
    cancelAnimationFrame(waiting);
    charts.close();
  };
};

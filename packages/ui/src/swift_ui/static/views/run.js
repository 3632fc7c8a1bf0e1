// One run: facts, state and tabs. A tab is a module with mount(root, run, live) -> unmount.
import { get, listen } from "../api.js";
import { element, problem } from "../dom.js";
import { count, duration, figure, known } from "../format.js";
import { mountActions } from "./actions.js";

const TABS = [
  ["curves", "Curves", () => true],
  ["ranks", "Ranks", (run) => run.environment.processes > 1 || run.has.ranks],
  ["samples", "Samples", () => true],
  ["rounds", "Rounds", (run) => run.has.rounds],
  ["log", "Log", () => true],
  ["config", "Configuration", () => true],
  ["files", "Files", () => true],
];

// Live data of the run, with its listeners.
class Live {
  constructor(key, data) {
    Object.assign(this, { key, data, listeners: new Set() });
  }

  notify(what) {
    for (const listener of this.listeners) listener(what);
  }

  add(lines) {
    for (const line of lines) {
      this.data.last = { ...this.data.last, ...Object.fromEntries(Object.entries(line).filter(([, value]) => value !== null)) };
      if (Array.isArray(line.ranks)) this.data.ranks = { step: line.step, rows: line.ranks };
      for (const [name, value] of Object.entries(line)) {
        if (name === "step" || !known(value)) continue;
        const [steps, values] = (this.data.series[name] ??= [[], []]);
        if (steps.length && steps[steps.length - 1] >= line.step) continue;
        steps.push(line.step);
        values.push(value);
      }
    }
  }
}

const figuresOf = (run, data) => {
  const { last, first, series } = data;
  const { state, summary } = run;
  const shown = [["Step", count(state.step), state.total_steps ? `of ${count(state.total_steps)}${known(last.epoch) ? ` · epoch ${last.epoch.toFixed(2)}` : ""}` : ""]];
  if (known(last.loss)) shown.push(["Loss", figure(last.loss), known(first.loss) ? `from ${figure(first.loss)} at step ${count(first.step)}` : ""]);
  const [steps, values] = series.eval_loss || [[], []];
  if (values.length) {
    const best = values.reduce((at, value, index) => (value < values[at] ? index : at), 0);
    shown.push(["Best evaluation loss", figure(values[best]), `at step ${count(steps[best])}`]);
  }
  if (known(last.reward)) shown.push(["Reward", figure(last.reward), known(last.completion_length) ? `${figure(last.completion_length)} tokens per completion` : ""]);
  if (known(last.tokens_per_second)) shown.push(["Tokens per second", count(last.tokens_per_second), known(last.padding_fraction) ? `${(last.padding_fraction * 100).toFixed(1)}% padding` : ""]);
  if (known(last.mfu)) shown.push(["MFU", `${(last.mfu * 100).toFixed(1)}%`, "of the hardware's peak"]);
  const memory = Math.max(0, ...(series["memory(GiB)"]?.[1] || []));
  if (memory) shown.push(["Peak memory", `${memory.toFixed(1)} GiB`, "per device"]);
  if (state.name === "running" && known(last.remaining_time)) shown.push(["Left", duration(last.remaining_time), `${duration(last.elapsed_time)} so far`]);
  else if (summary) shown.push(["Time", duration(summary.train_runtime), `${count(summary.tokens)} tokens`]);
  return shown.map(([name, value, remark]) => element("div", { class: "figure" },
    element("span", { class: "name" }, name), element("span", { class: "value" }, value), element("span", { class: "remark" }, remark)));
};

export const mount = async (root, { parts: [key, wanted] }) => {
  const path = `runs/${encodeURIComponent(key)}`;
  // All in parallel: each waits for the disk or the network.
  const modules = Object.fromEntries(TABS.map(([name]) => [name, () => import(`./run/${name}.js`)]));
  const [first, data] = await Promise.all([get(path), get(`${path}/series?glance`), modules[wanted in modules ? wanted : "curves"]()]);
  let run = first;
  const live = new Live(key, data);
  const tab = TABS.find(([name, , has]) => name === wanted && has(run)) || TABS[0];

  const status = element("span", { role: "status" });
  const cause = element("div");
  const figures = element("section", { class: "figures", "aria-label": "Key figures" });
  const actions = element("div", { class: "tools actions" });
  const messages = element("div");
  const content = element("div");
  const facts = [run.facts.model, run.facts.objective, run.facts.tuner, run.facts.backend,
    run.facts.processes > 1 ? `${run.facts.processes} processes` : null];
  root.append(
    element("div", { class: "head" },
      element("div", {},
        element("h1", {}, `${run.model}/${run.name}`),
        element("p", { class: "muted" }, facts.filter(Boolean).join(" · "))),
      status, actions),
    cause, messages, figures,
    element("nav", { class: "tabs", "aria-label": "About this run" }, ...TABS.filter(([, , has]) => has({ ...run, has: { ...run.has, ranks: live.data.ranks.rows.length } }))
      .map(([name, title]) => element("a", { href: `#/run/${key}/${name}`, "aria-current": name === tab[0] ? "page" : null }, title))),
    content);

  const head = () => {
    document.title = `${run.state.name === "running" && run.state.total_steps ? `${Math.floor((100 * run.state.step) / run.state.total_steps)}% ` : ""}${run.model}/${run.name}`;
    status.replaceChildren(element("span", { class: `status ${run.state.name}` }, run.state.name));
    cause.replaceChildren(...(run.state.cause ? [element("div", { class: "problem", role: "alert" }, element("p", {}, run.state.cause))] : []));
    figures.replaceChildren(...figuresOf(run, live.data));
  };

  let close = () => {};
  let unmountTab = () => {};
  const reload = async () => {
    run = await get(path);
    live.data = await get(`${path}/series`);
    head();
    live.notify("all");
  };
  const connect = () => {
    close();
    close = listen(`${path}/events?after=${encodeURIComponent(live.data.position)}`, {
      lines: ({ lines }) => {
        live.add(lines);
        const last = lines[lines.length - 1];
        const [step, total] = String(last["global_step/max_steps"] || "").split("/").map(Number);
        if (known(step)) Object.assign(run.state, { step, total_steps: total || run.state.total_steps });
        head();
        live.notify("lines");
      },
      state: (state) => {
        const before = run.state.name;
        run.state = { ...state, step: Math.max(state.step, run.state.step) };
        head();
        if (before !== state.name) get(path).then((again) => { run = again; head(); live.notify("state"); }, () => {});
      },
      reset: () => reload().then(connect, () => {}),
    }, (open) => { document.getElementById("connection").textContent = open ? "" : "Connection lost, retrying …"; });
  };
  // Hidden pages close their connection: browsers allow six per server.
  const seen = () => {
    if (document.hidden) close();
    else reload().then(connect, (error) => cause.replaceChildren(problem(error)));
  };

  head();
  const unmountActions = mountActions(actions, messages, key);
  const { mount: mountTab } = await import(`./run/${tab[0]}.js`);
  try {
    unmountTab = (await mountTab(content, { get run() { return run; }, path, key }, live)) || unmountTab;
  } catch (error) {
    content.replaceChildren(problem(error));
  }
  // A long run was shown with some of its lines: load all.
  let ended = false;
  const follow = () => { if (!ended) connect(); };
  if (data.whole) follow();
  else reload().then(follow, (error) => cause.replaceChildren(problem(error)));
  document.addEventListener("visibilitychange", seen);
  return () => {
    ended = true;
    close();
    unmountActions();
    unmountTab();
    document.removeEventListener("visibilitychange", seen);
    document.getElementById("connection").textContent = "";
    document.title = "swift";
  };
};

// Checkpoints, pages, images, plan and environment of the run.
import { element } from "../../dom.js";
import { count, figure, known, label, plain } from "../../format.js";
import { table } from "../../table.js";

const size = (bytes) => (known(bytes) ? `${(bytes / 2 ** 30).toFixed(bytes < 2 ** 30 ? 2 : 1)} GiB` : "–");
const time = (seconds) => (known(seconds) ? (seconds < 0.1 ? `${(1000 * seconds).toPrecision(3)} ms` : `${seconds.toPrecision(3)} s`) : "–");
const sign = (part) => (known(part) ? `${part < 0 ? "−" : "+"}${Math.abs(100 * part).toFixed(1)} %` : "");

// What the planner expected, and what the run took.
const planned = (plan) => {
  const { predicted = {}, measured = {}, measured_above_predicted: above = {} } = plan;
  const row = (name, format, expected, found, differs) => [name, [format(expected), "number"], [format(found), "number"], [sign(differs), "number"]];
  const parts = (format, expected, found) => [...new Set([...Object.keys(expected || {}), ...Object.keys(found || {})])]
    .map((name) => row(label(name), format, expected?.[name], found?.[name]));
  const heads = ["", ["Planned", "number"], ["Measured", "number"], ["Difference", "number"]];
  return [
    plan.not_counted ? element("p", { class: "muted" }, `Not planned: ${plain(plan.not_counted)}`) : null,
    table(heads, [
      row("Peak memory", size, predicted.peak_bytes, measured.peak_bytes, above.peak),
      row("Time of a step", time, predicted.step_seconds, measured.step_seconds, above.step)], { label: "Plan" }),
    element("details", {}, element("summary", { class: "muted" }, "Parts of memory and time"),
      table(heads, [...parts(size, predicted.memory_bytes), ...parts(time, predicted.seconds, measured.seconds)], { label: "Parts of the plan" }))];
};

// The last value of a series at or before a step.
const at = ([steps, values] = [[], []], step, exact) => {
  const index = steps.findLastIndex((each) => each <= step);
  return index < 0 || (exact && steps[index] !== step) ? "–" : figure(values[index]);
};

export const mount = (root, about, live) => {
  const link = (hash, name) => element("a", { href: `#/${hash}` }, name);
  const draw = () => {
    const { run } = about;
    const { series } = live.data;
    const pages = `/api/${about.path}/pages/`;
    const section = (title, ...content) => element("section", { class: "card" }, element("h2", {}, title), ...content);
    const facts = [["Process", run.state.process ? `${run.state.process} on ${run.state.host}` : null], ["swift", run.version],
      ...Object.entries(run.plugins), ...Object.entries(run.environment.versions || {}), ["Processes", run.environment.processes]];
    root.replaceChildren(
      element("p", { class: "folder" }, element("span", { class: "muted" }, "Folder "), element("code", {}, run.folder)),
      section("Checkpoints", run.checkpoints.length
        ? table(["Checkpoint", ["Step", "number"], ["Loss", "number"], ["Evaluation loss", "number"], "Which", ["Use", "number"]], [...run.checkpoints].reverse().map((each) => [
          element("code", { title: each.path }, each.name), [count(each.step), "number"], [at(series.loss, each.step), "number"], [at(series.eval_loss, each.step, true), "number"],
          element("span", { class: "tag" }, [each.best ? "best" : "", each.last ? "last" : ""].filter(Boolean).join(", ")),
          [element("span", { class: "uses" }, link(`chat?${new URLSearchParams({ model: each.path })}`, "Chat"),
            link(`new/eval?${new URLSearchParams({ model: each.path })}`, "Evaluate"), link(`new/export?${new URLSearchParams({ checkpoint: each.path })}`, "Export")), "number"]]), { label: "Checkpoints" })
        : element("p", { class: "muted" }, "No checkpoint yet.")),
      element("div", { class: "columns" },
        element("div", {},
          run.plan ? section("Plan", ...planned(run.plan)) : null,
          section("Pages", run.pages.length
            ? element("ul", {}, ...run.pages.map((name) => element("li", {}, element("a", { href: pages + name, target: "_blank", rel: "noopener" }, name))))
            : element("p", { class: "muted" }, "No page yet."))),
        section("Environment", element("dl", {}, ...facts.filter(([, value]) => value !== null && value !== undefined && value !== "")
          .flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, plain(value))])))),
      run.images.length ? section("Images",
        element("div", { class: "gallery" }, ...run.images.map((name) => element("img", { src: `/api/${about.path}/images/${name}`, alt: name, loading: "lazy" })))) : "");
  };
  const update = (what) => { if (what === "state" || what === "all") draw(); };
  live.listeners.add(update);
  draw();
  return () => live.listeners.delete(update);
};

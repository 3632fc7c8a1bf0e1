// Table of the run's processes, the slowest marked.
import { element } from "../../dom.js";
import { figure, label, plain } from "../../format.js";
import { table } from "../../table.js";

export const mount = (root, about, live) => {
  const body = element("div");
  root.append(body);
  const draw = () => {
    const { step, rows } = live.data.ranks;
    if (!rows.length) {
      body.replaceChildren(element("p", { class: "empty" }, "No step with measurements of each process has been logged yet."));
      return;
    }
    const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
    const slowest = slowestOf(rows);
    body.replaceChildren(
      element("p", { class: "muted legend" }, `Step ${step.toLocaleString("en")}${slowest === null ? "" : `: process ${slowest} is the slowest, without communication`}.`),
      element("div", { class: "card" }, table(
        names.map((name) => [label(name), name === "host" ? null : "number"]),
        rows.map((row) => ({
          class: row.rank === slowest ? "slowest" : null,
          cells: names.map((name) => typeof row[name] === "number" ? [name.endsWith("_fraction") ? `${(row[name] * 100).toFixed(1)} %` : figure(row[name]), "number"] : plain(row[name])),
        })),
        { label: "Processes" })));
  };
  live.listeners.add(draw);
  draw();
  return () => live.listeners.delete(draw);
};

// Waiting makes all processes look equally slow, so only their own compute time is compared.
export const slowestOf = (rows) => {
  const own = (row) => row.own_seconds ?? 0;
  const sorted = rows.map(own).sort((a, b) => a - b);
  const median = sorted[Math.floor((sorted.length - 1) / 2)];
  const longest = rows.reduce((a, b) => (own(b) > own(a) ? b : a));
  return rows.length > 1 && own(longest) > 1.1 * median ? longest.rank : null;
};

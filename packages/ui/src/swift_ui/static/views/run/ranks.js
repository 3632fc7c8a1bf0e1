// A row for each process of the run, the slowest marked.
import { element } from "../../dom.js";
import { figure, label, plain } from "../../format.js";
import { table } from "../../table.js";

export const mount = (root, about, live) => {
  const box = element("div");
  root.append(box);
  const draw = () => {
    const { step, rows } = live.data.ranks;
    if (!rows.length) {
      box.replaceChildren(element("p", { class: "empty" }, "Rows for each process appear here with a logged step that measured them."));
      return;
    }
    const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
    const slowest = slowestOf(rows);
    box.replaceChildren(
      element("p", { class: "muted legend" }, `Step ${step.toLocaleString("en")}${slowest === null ? "" : `: process ${slowest} takes longest, communication left out`}.`),
      element("div", { class: "card" }, table(
        names.map((name) => [label(name), name === "host" ? null : "number"]),
        rows.map((row) => ({
          class: row.rank === slowest ? "slowest" : null,
          cells: names.map((name) => typeof row[name] === "number" ? [name.endsWith("_fraction") ? `${(row[name] * 100).toFixed(1)} %` : figure(row[name]), "number"] : plain(row[name])),
        })),
        { label: "Processes" })));
  };
  live.heard.add(draw);
  draw();
  return () => live.heard.delete(draw);
};

// Waiting for others makes all processes look equally slow: what they compute themselves tells them apart.
export const slowestOf = (rows) => {
  const own = (row) => row.own_seconds ?? 0;
  const sorted = rows.map(own).sort((a, b) => a - b);
  const median = sorted[Math.floor((sorted.length - 1) / 2)];
  const longest = rows.reduce((a, b) => (own(b) > own(a) ? b : a));
  return rows.length > 1 && own(longest) > 1.1 * median ? longest.rank : null;
};

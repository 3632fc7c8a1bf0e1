// The list of runs.
import { get } from "../api.js";
import { element } from "../dom.js";

export const mount = async (root) => {
  const { runs } = await get("runs");
  root.append(
    element("h1", {}, "Runs"),
    element("ul", {}, ...runs.map((run) => element("li", {}, element("a", { href: `#/run/${run.key}` }, run.folder)))),
  );
};

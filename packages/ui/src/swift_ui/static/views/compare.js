// Several runs on one chart.
import { element } from "../dom.js";

export const mount = (root) => {
  root.append(element("h1", {}, "Compare"));
};

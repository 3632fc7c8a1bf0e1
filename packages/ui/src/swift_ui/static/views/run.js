// One run.
import { get } from "../api.js";
import { element } from "../dom.js";

export const mount = async (root, { parts: [key] }) => {
  const run = await get(`runs/${encodeURIComponent(key)}`);
  root.append(element("h1", {}, run.folder));
};

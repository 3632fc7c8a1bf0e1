// Checkpoints, pages, images and environment of the run.
import { element } from "../../dom.js";
import { count, plain } from "../../format.js";
import { table } from "../../table.js";

export const mount = (root, about, live) => {
  const draw = () => {
    const { run } = about;
    const pages = `/api/${about.path}/pages/`;
    root.replaceChildren(element("div", { class: "columns" },
      element("section", { class: "card" }, element("h2", {}, "Checkpoints"),
        run.checkpoints.length
          ? table(["Folder", ["Step", "number"], "Which"], [...run.checkpoints].reverse().map((each) => [
            element("code", {}, each.path), [count(each.step), "number"],
            element("span", { class: "tag" }, [each.best ? "best" : "", each.last ? "last" : ""].filter(Boolean).join(", "))]), { label: "Checkpoints" })
          : element("p", { class: "muted" }, "No checkpoint yet.")),
      element("section", { class: "card" }, element("h2", {}, "Pages"),
        run.pages.length ? element("ul", {}, ...run.pages.map((name) => element("li", {}, element("a", { href: pages + name, target: "_blank", rel: "noopener" }, name))))
          : element("p", { class: "muted" }, "No page yet.")),
      element("section", { class: "card" }, element("h2", {}, "Environment"),
        element("dl", {}, ...[["Folder", run.folder], ["Process", run.state.process ? `${run.state.process} on ${run.state.host}` : null], ["swift", run.version],
          ...Object.entries(run.plugins), ...Object.entries(run.environment.versions || {}), ["Processes", run.environment.processes]]
          .filter(([, value]) => value !== null && value !== undefined && value !== "")
          .flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, plain(value))]))),
      run.plan ? element("section", { class: "card" }, element("h2", {}, "Plan"), element("pre", { class: "config" }, JSON.stringify(run.plan, null, 2))) : null,
    ), run.images.length ? element("section", { class: "card" }, element("h2", {}, "Images"),
      element("div", { class: "gallery" }, ...run.images.map((name) => element("img", { src: `/api/${about.path}/images/${name}`, alt: name, loading: "lazy" })))) : "");
  };
  const update = (what) => { if (what === "state" || what === "all") draw(); };
  live.listeners.add(update);
  draw();
  return () => live.listeners.delete(update);
};

// Navigation. A view is a module with mount(root, params) -> unmount; an address is #/name/part/part?key=value.
import { ApiError, get, post } from "./api.js";
import { element, problem } from "./dom.js";

// name -> [title in the bar or null, module]. To add a view, add a line and a file.
const VIEWS = {
  runs: ["Runs", () => import("./views/runs.js")],
  run: [null, () => import("./views/run.js")],
  compare: [null, () => import("./views/compare.js")],
  new: ["New run", () => import("./views/new.js")],
  jobs: ["Commands", () => import("./views/jobs.js")],
  chat: ["Chat", () => import("./views/chat.js")],
};

const main = document.getElementById("main");
let unmount = () => {};
let generation = 0;

const parsed = () => {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...parts] = path.split("/").map(decodeURIComponent);
  return { name: name in VIEWS ? name : "runs", parts, query: new URLSearchParams(query) };
};

export const go = (hash) => { location.hash = hash; };

const show = async () => {
  const mine = ++generation;
  const params = parsed();
  unmount();
  unmount = () => {};
  for (const link of document.querySelectorAll("#nav a"))
    link.toggleAttribute("aria-current", link.dataset.view === params.name);
  const root = element("div", { class: `view view-${params.name}` });
  main.replaceChildren(root);
  try {
    const view = await VIEWS[params.name][1]();
    if (mine !== generation) return;
    unmount = (await view.mount(root, params)) || (() => {});
    if (mine !== generation) unmount();
  } catch (error) {
    if (!(error instanceof ApiError)) console.error(error);
    root.replaceChildren(problem(error));
  }
};

const themes = ["auto", "light", "dark"];
const setTheme = (name) => {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  const button = document.getElementById("theme");
  button.textContent = { auto: "◐", light: "☀", dark: "☾" }[name];
  button.title = button.ariaLabel = `Theme: ${name}`;
  localStorage.setItem("theme", name);
};

const tokenOf = (hash) => new URLSearchParams(hash.replace(/^#/, "")).get("token");

const start = async () => {
  setTheme(themes.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto");
  document.getElementById("theme").addEventListener("click", () =>
    setTheme(themes[(themes.indexOf(localStorage.getItem("theme")) + 1) % themes.length]));
  // The address of a restarted server, opened in the page of the old one.
  addEventListener("hashchange", () => { if (tokenOf(location.hash)) location.reload(); });
  const token = tokenOf(location.hash);
  try {
    if (token) {
      history.replaceState(null, "", sessionStorage.getItem("view") || "#/runs");
      await post("login", { token });
    }
    const about = await get("about");
    document.getElementById("main").dataset.version = about.version;
  } catch (error) {
    main.replaceChildren(problem(error));
    return;
  }
  document.getElementById("nav").append(
    ...Object.entries(VIEWS).filter(([, [title]]) => title).map(([name, [title]]) =>
      element("a", { href: `#/${name}`, "data-view": name }, title)));
  addEventListener("hashchange", () => {
    if (tokenOf(location.hash)) return;
    sessionStorage.setItem("view", location.hash);
    show();
  });
  show();
};

start();

// Commands started by the dashboard: state and output.
import { get, post } from "../api.js";
import { element } from "../dom.js";

const LOOK = 700;
const when = (seconds) => new Date(seconds * 1000).toLocaleString();

const stops = (job, done) => {
  const stop = (now) => async (event) => {
    event.target.disabled = true;
    await post(`jobs/${job.id}/stop`, { now }).catch(() => {});
    done();
  };
  if (!job.alive) return null;
  const trains = job.run !== null;
  return element("span", { class: "stops" },
    element("button", { type: "button", onclick: stop(false), disabled: job.stopping }, job.stopping ? "Stopping…" : trains ? "Stop and save" : "Stop"),
    element("button", { type: "button", class: "danger", onclick: stop(true) }, "Stop now"));
};

const state = (job) => element("span", { class: `status ${job.state}` }, job.stopping ? "stopping" : job.state);

const one = async (root, id, follow) => {
  const head = element("div", { class: "job-head" });
  const log = element("pre", { class: "log", id: "job-log", tabindex: 0, "aria-label": "Output of the command" });
  root.append(element("h1", {}, "Command"), head, log);
  let timer = 0, ended = false, before = "";
  const look = async () => {
    let job;
    try { job = await get(`jobs/${id}`); } catch (error) {
      if (!ended && error.status === 0) { timer = setTimeout(look, LOOK); return; }
      throw error;
    }
    if (ended) return;
    if (follow && job.run_there && job.alive) { location.replace(`#/run/${job.run}`); return; }
    const drawn = JSON.stringify([job.state, job.stopping, job.run_there]);
    if (drawn !== before) {
      before = drawn;
      head.replaceChildren(...[
        element("p", {}, state(job), job.cause ? element("span", { class: "cause" }, job.cause) : null, job.code ? element("span", { class: "muted" }, `exit code ${job.code}`) : null),
        element("pre", {}, element("code", {}, job.command_line)),
        element("p", { class: "job-links" }, job.run_there ? element("a", { href: `#/run/${job.run}` }, "Open the run") : null, stops(job, look))].filter(Boolean));
    }
    const low = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
    if (log.textContent !== job.log) log.textContent = job.log;
    if (low) log.scrollTop = log.scrollHeight;
    if (job.alive) timer = setTimeout(look, LOOK);
  };
  await look();
  return () => { ended = true; clearTimeout(timer); };
};

const all = async (root) => {
  const body = element("tbody", {});
  const empty = element("p", { class: "muted" }, "No command was started here yet.");
  root.append(element("h1", {}, "Commands"),
    element("p", {}, element("a", { href: "#/new/sft", class: "tab" }, "New run"), ...["export", "eval", "infer", "serve"].map((command) => element("a", { href: `#/new/${command}`, class: "tab" }, { export: "Export", eval: "Evaluate", infer: "Generate for a file", serve: "Serve" }[command]))),
    element("table", { class: "jobs" }, element("thead", {}, element("tr", {}, ...["State", "Command", "Started", "Stop"].map((title) => element("th", { scope: "col" }, title)))), body), empty);
  let timer = 0, ended = false, before = "";
  const look = async () => {
    const { jobs } = await get("jobs").catch(() => ({ jobs: null }));
    if (ended) return;
    if (jobs && JSON.stringify(jobs) !== before) {
      before = JSON.stringify(jobs);
      empty.hidden = jobs.length > 0;
      body.replaceChildren(...jobs.map((job) => element("tr", { "data-job": job.id },
        element("td", {}, state(job)),
        element("td", {}, element("a", { href: `#/jobs/${job.id}`, class: "job-command" }, job.command_line), job.cause ? element("p", { class: "cause" }, job.cause) : null),
        element("td", { class: "muted" }, when(job.requested)),
        element("td", {}, stops(job, look)))));
    }
    timer = setTimeout(look, LOOK * 2);
  };
  await look();
  return () => { ended = true; clearTimeout(timer); };
};

export const mount = (root, { parts: [id], query }) => (id ? one(root, id, query.get("follow") === "1") : all(root));

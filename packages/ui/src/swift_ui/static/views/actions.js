// Actions on a run: stop, resume, use its checkpoints. Mounted by the view of a run.
import { get, post } from "../api.js";
import { element } from "../dom.js";

const LOOK = 1500;

export const mountActions = (buttons, parent, key) => {
  buttons.setAttribute("role", "group");
  buttons.ariaLabel = "Actions on this run";
  const message = element("p", { class: "actions-message", role: "status", "aria-live": "polite" });
  parent.append(message);
  let timer = 0, ended = false, before = "";

  const does = (path, content, done) => async (event) => {
    event.currentTarget.disabled = true;
    message.className = "actions-message";
    try {
      done(await post(`runs/${key}/${path}`, content));
    } catch (error) {
      message.className = "actions-message refusal";
      message.textContent = `${error.message} ${error.hint || ""}`;
    }
    before = "";
    look();
  };
  const stop = (now) => does("stop", { now }, () => { message.textContent = now ? "Killed." : "The run finishes its step and saves a checkpoint."; });
  const link = (command, name, field, checkpoint) => element("a", { class: "button", href: `#/new/${command}?${new URLSearchParams({ [field]: checkpoint })}` }, name);

  const draw = (found) => {
    const [newest] = found.checkpoints;
    buttons.replaceChildren(...[
      ...(found.alive ? [
        element("button", { type: "button", id: "stop", disabled: found.stopping, onclick: stop(false) }, found.stopping ? "Stopping…" : "Stop and save"),
        element("button", { type: "button", id: "stop-now", class: "danger", onclick: stop(true) }, "Stop now")] : []),
      found.resume ? element("button", { type: "button", id: "resume", class: "first", title: found.resume, onclick: does("resume", {}, ({ job }) => { message.replaceChildren(element("code", {}, job.command_line)); }) }, "Resume") : null,
      newest ? element("a", { class: "button", href: `#/chat?${new URLSearchParams({ model: newest })}` }, "Chat") : null,
      newest ? link("export", "Export", "checkpoint", newest) : null,
      newest ? link("eval", "Evaluate", "model", newest) : null,
      newest ? link("serve", "Serve", "model", newest) : null,
      found.job ? element("a", { class: "button", href: `#/jobs/${found.job.id}` }, "Command") : null].filter(Boolean));
    if (found.resume) message.dataset.resume = found.resume;
  };
  const look = async () => {
    clearTimeout(timer);
    const found = await get(`runs/${key}/actions`).catch(() => null);
    if (ended) return;
    if (found && JSON.stringify(found) !== before) {
      before = JSON.stringify(found);
      draw(found);
    }
    timer = setTimeout(look, LOOK);
  };
  look();
  return () => { ended = true; clearTimeout(timer); };
};

// What can be done with a run: stop it, go on with it, use what it has trained. Mounted by the view of a run.
import { get, post } from "../api.js";
import { element } from "../dom.js";

const LOOK = 1500;

export const mountActions = (buttons, said, key) => {
  buttons.setAttribute("role", "group");
  buttons.ariaLabel = "Actions on this run";
  const says = element("p", { class: "actions-say", role: "status", "aria-live": "polite" });
  said.append(says);
  let timer = 0, ended = false, before = "";

  const does = (path, content, done) => async (event) => {
    event.currentTarget.disabled = true;
    says.className = "actions-say";
    try {
      done(await post(`runs/${key}/${path}`, content));
    } catch (error) {
      says.className = "actions-say refusal";
      says.textContent = `${error.message} ${error.hint || ""}`;
    }
    before = "";
    look();
  };
  const stop = (now) => does("stop", { now }, () => { says.textContent = now ? "Ended at once." : "It finishes the step and saves a checkpoint."; });
  const link = (command, name, field, checkpoint) => element("a", { class: "button", href: `#/new/${command}?${new URLSearchParams({ [field]: checkpoint })}` }, name);

  const draw = (found) => {
    const [newest] = found.checkpoints;
    buttons.replaceChildren(...[
      ...(found.alive ? [
        element("button", { type: "button", id: "stop", disabled: found.stopping, onclick: stop(false) }, found.stopping ? "Stopping…" : "Stop and save"),
        element("button", { type: "button", id: "stop-now", class: "danger", onclick: stop(true) }, "Stop now")] : []),
      found.resume ? element("button", { type: "button", id: "resume", class: "first", title: found.resume, onclick: does("resume", {}, ({ job }) => { says.replaceChildren(element("code", {}, job.command)); }) }, "Resume") : null,
      newest ? element("a", { class: "button", href: `#/chat?${new URLSearchParams({ model: newest })}` }, "Chat") : null,
      newest ? link("export", "Export", "checkpoint", newest) : null,
      newest ? link("eval", "Evaluate", "model", newest) : null,
      newest ? link("serve", "Serve", "model", newest) : null,
      found.job ? element("a", { class: "button", href: `#/jobs/${found.job.id}` }, "Command") : null].filter(Boolean));
    if (found.resume) says.dataset.resume = found.resume;
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

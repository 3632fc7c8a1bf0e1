// Output of the run; new lines are appended, and scrolled to while the end is visible.
import { get } from "../../api.js";
import { element } from "../../dom.js";

const EVERY = 1000;

export const mount = async (root, about) => {
  const log = element("pre", { class: "log", tabindex: "0", role: "log", "aria-label": "Log" });
  const older = element("button", { type: "button", hidden: true }, "Earlier lines");
  const empty = element("p", { class: "empty" });
  root.append(older, log, empty);
  let start = 0, end = 0, timer = 0, stopped = false;

  const add = (part) => {
    const follows = log.scrollTop + log.clientHeight >= log.scrollHeight - 40;
    log.append(part.text);
    end = part.end;
    if (follows) log.scrollTop = log.scrollHeight;
  };
  older.addEventListener("click", async () => {
    const part = await get(`${about.path}/log?before=${start}`);
    const height = log.scrollHeight;
    log.prepend(part.text);
    log.scrollTop += log.scrollHeight - height;
    start = part.start;
    older.hidden = start === 0;
  });
  const open = async () => {
    const part = await get(`${about.path}/log`);
    log.hidden = false;
    empty.hidden = true;
    start = part.start;
    older.hidden = start === 0;
    add(part);
    log.scrollTop = log.scrollHeight;
  };
  const look = async () => {
    try {
      if (log.hidden) await open();
      else if (!document.hidden) {
        const part = await get(`${about.path}/log?after=${end}`);
        if (part.size < end) {
          log.replaceChildren();
          await open();
        } else if (part.text) add(part);
      }
    } catch (error) {
      if (error.status === 404) {
        log.hidden = true;
        empty.hidden = false;
        empty.textContent = "This run has no log.txt, because it was started in a terminal. Only runs started here have one.";
      }
    }
    if (!stopped) timer = setTimeout(look, EVERY);
  };
  log.hidden = true;
  await look();
  return () => {
    stopped = true;
    clearTimeout(timer);
  };
};

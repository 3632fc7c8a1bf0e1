// Form of a command, built from its options; every change is checked like on the command line.
import { post } from "../api.js";
import { chooser } from "../choices.js";
import { element } from "../dom.js";

const TRAINING = ["pt", "sft", "rlhf", "train"];
const TITLES = {
  pt: "Continue pre-training", sft: "Fine-tune", rlhf: "Preferences and rewards", train: "Any objective",
  export: "Export", eval: "Evaluate", infer: "Generate for a file", serve: "Serve",
};
const OPEN = ["model", "data", "tuner", "objective", "train", "processes", "group-0"];
const PAUSE = 200;

const stamp = () => new Date(Date.now() - new Date().getTimezoneOffset() * 60000).toISOString().slice(0, 19).replace(/[-:]/g, "").replace("T", "-");
const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(bytes < 2 ** 30 ? 2 : 1)} GiB`;
const shownDefault = (value) =>
  value === null || value === "" || (Array.isArray(value) && !value.length) || (typeof value === "object" && !Array.isArray(value) && !Object.keys(value).length)
    ? "" : Array.isArray(value) ? value.join(" ") : typeof value === "object" ? JSON.stringify(value) : String(value);

class Form {
  constructor(command, query) {
    this.command = command;
    this.values = this.kept();
    this.further = this.values["@further"] || "";
    delete this.values["@further"];
    for (const [key, value] of query) this.values[key] = value;
    this.filled = {}; // by the form itself, not by the user
    this.generation = 0;
    this.onlyChanged = false;
  }

  kept() {
    try { return JSON.parse(sessionStorage.getItem(`form ${this.command}`)) || {}; } catch { return {}; }
  }

  keep() {
    const values = Object.fromEntries(Object.entries(this.values).filter(([key]) => this.changed(key)));
    sessionStorage.setItem(`form ${this.command}`, JSON.stringify({ ...values, "@further": this.further }));
  }

  get selected() {
    const keys = ["backend.name", "objective.name", "tuner.kind", "optim.name"];
    return Object.fromEntries(keys.filter((key) => this.values[key]).map((key) => [key, this.values[key]]));
  }

  // The values to send: those of fields that the form has.
  get sent() {
    const known = new Set(this.sections.flatMap((section) => section.fields.map((field) => field.key)));
    return Object.fromEntries(Object.entries(this.values).filter(([key]) => known.has(key)));
  }

  async load() {
    const response = await post("form", { command: this.command, selected: this.selected });
    this.sections = response.sections;
    this.presets = response.presets;
    this.offered = response.offered;
    if (TRAINING.includes(this.command)) {
      this.filled = { "logging.run_name": this.filled["logging.run_name"] ?? stamp(), ...(response.output ? { "logging.output": response.output } : {}) };
      this.values = { ...this.filled, ...this.values };
    }
  }

  changed(key) {
    return key in this.values && this.values[key] !== this.filled[key];
  }
}

const control = (form, field, changed) => {
  const id = `field-${field.key}`;
  const value = form.values[field.key];
  const described = { id, "aria-describedby": `${id}-about`, "data-key": field.key };
  const set = (given) => {
    if (given === "" || (Array.isArray(given) && !given.length)) delete form.values[field.key];
    else form.values[field.key] = given;
    changed(field);
  };
  if (field.choices.length) {
    const select = element("select", { ...described, onchange: (event) => set(event.target.value) },
      element("option", { value: "" }, shownDefault(field.default) ? `${shownDefault(field.default)} (default)` : "not set"),
      ...field.choices.filter((choice) => choice !== shownDefault(field.default)).map((choice) => element("option", { value: choice }, choice)));
    select.value = field.choices.includes(value) ? value : "";
    return select;
  }
  if (field.kind === "list") {
    const area = element("textarea", { ...described, rows: 1, spellcheck: "false", placeholder: shownDefault(field.default) || "one per line",
      oninput: (event) => {
        event.target.rows = Math.max(1, event.target.value.split("\n").length);
        set(event.target.value.split("\n").map((line) => line.trim()).filter(Boolean));
      } });
    area.value = Array.isArray(value) ? value.join("\n") : value || "";
    area.rows = Math.max(1, area.value.split("\n").length);
    return area;
  }
  const input = element("input", { ...described, type: "text", spellcheck: "false", autocomplete: "off",
    inputmode: ["integer", "number"].includes(field.type) ? "decimal" : "text",
    placeholder: shownDefault(field.default) || (field.required ? "required" : ""), oninput: (event) => set(event.target.value) });
  input.value = value ?? "";
  return input;
};

// A control with the models or data sets that this machine has.
const withChooser = (form, field, made) => {
  const training = TRAINING.includes(form.command);
  const pick = (value) => {
    const lines = field.kind === "list" ? made.value.split("\n").filter((line) => line.trim() && line !== value) : [];
    made.value = [...lines, value].join("\n");
    made.dispatchEvent(new Event("input"));
  };
  return element("div", { class: "with-choices" }, made,
    chooser(form.offered[field.key], `Choose --${field.flag || field.key}`, pick, { first: training ? ["Used by runs", "Folders", "Hub cache"] : [] }));
};

const row = (form, field, changed) => {
  const id = `field-${field.key}`;
  const about = [field.description, field.choices.length ? "" : [field.type, field.bounds].filter(Boolean).join(" ")].filter(Boolean).join(" · ");
  const made = element("div", { class: "field", "data-field": field.key, "data-often": String(field.often) },
    element("label", { for: id }, field.flag ? `--${field.flag}` : field.key.toUpperCase()),
    field.key in form.offered ? withChooser(form, field, control(form, field, changed)) : control(form, field, changed),
    element("p", { class: "about", id: `${id}-about` }, about));
  made.dataset.search = `${field.key} ${field.flag} ${field.description}`.toLowerCase();
  return made;
};

const bar = (expected) => {
  const widest = Math.max(expected.capacity_bytes, expected.high_bytes);
  const share = (bytes) => `${(100 * bytes / widest).toFixed(2)}%`;
  const off = Math.round(100 * (expected.high_bytes / expected.peak_bytes - 1));
  const summary = `${expected.fits ? "Fits" : expected.low_bytes > expected.capacity_bytes ? "Does not fit" : "May not fit"}: ` +
    `${gib(expected.peak_bytes)} ± ${off} % of ${gib(expected.capacity_bytes)}`;
  const parts = Object.entries(expected.terms).filter(([, bytes]) => bytes > 0).sort(([, one], [, other]) => other - one);
  const track = element("div", { class: "plan-track", "aria-hidden": "true" });
  const piece = (name, from, to) => {
    const made = element("i", { class: name });
    made.style.left = share(from);
    made.style.width = share(to - from);
    track.append(made);
  };
  piece("plan-sure", 0, expected.low_bytes);
  piece("plan-bar", expected.low_bytes, expected.high_bytes);
  piece("plan-end", expected.capacity_bytes - widest / 400, expected.capacity_bytes);
  return element("div", { class: `plan ${expected.fits ? "fits" : expected.low_bytes > expected.capacity_bytes ? "over" : "near"}`, id: "plan" },
    element("p", { class: "plan-summary" }, summary), track,
    element("details", {}, element("summary", {}, `Memory per process on ${expected.device}`),
      element("table", {}, element("tbody", {}, ...parts.map(([name, bytes]) => element("tr", {}, element("td", {}, name), element("td", { class: "number" }, gib(bytes))))))));
};

// Selector of an element in the sections, to restore the focus after they were rendered again.
const selectorOf = (each) => {
  const section = each?.closest?.("details.form-section");
  if (!section) return "";
  if (each.id) return `#${CSS.escape(each.id)}`;
  return `details[data-name="${CSS.escape(section.dataset.name)}"] > ${each.matches("summary") ? "summary" : "button.more"}`;
};

export const mount = async (root, { parts: [command = "sft"], query }) => {
  const form = new Form(command, query);
  const training = TRAINING.includes(command);
  await form.load();
  const sections = element("div", { class: "form-sections" });
  const commandLine = element("code", { id: "command", tabindex: 0, "aria-label": "Command" });
  commandLine.textContent = `swift ${command} …`;
  const verdict = element("div", { id: "verdict", role: "status", "aria-live": "polite" });
  const launch = element("button", { type: "submit", class: "first", id: "launch", disabled: true }, training ? "Start the run" : `Start ${command}`);
  const count = element("span", { class: "muted", id: "changed-count" });
  let timer = 0, ended = false;

  const check = async () => {
    const mine = ++form.generation;
    try {
      const response = await post("check", { command, selected: form.selected, values: form.sent, further: form.further });
      if (mine !== form.generation || ended) return;
      commandLine.replaceChildren(...response.command_line.split(" ").flatMap((word) => [element("span", {}, word), " "]));
      verdict.replaceChildren(
        response.refused
          ? element("div", { class: untouched() ? "refusal calm" : "refusal", id: "refusal" }, element("p", {}, response.refused.message), response.refused.hint ? element("p", { class: "hint" }, response.refused.hint) : null)
          : response.expected ? bar(response.expected) : element("p", { class: "ready" }, "The command is valid."),
        ...response.notes.map((note) => element("p", { class: "note" }, note)));
      launch.disabled = Boolean(response.refused);
    } catch (error) {
      if (mine === form.generation) verdict.replaceChildren(element("div", { class: "refusal" }, element("p", {}, error.message), error.hint ? element("p", { class: "hint" }, error.hint) : null));
      launch.disabled = true;
    }
  };

  const untouched = () => !form.further && !Object.keys(form.values).some((key) => form.changed(key));

  const mark = () => {
    let changed = 0;
    for (const each of sections.querySelectorAll(".field")) {
      const on = form.changed(each.dataset.field);
      changed += on;
      each.classList.toggle("changed", on);
    }
    count.textContent = changed ? `${changed} changed` : "";
  };

  const later = async (field) => {
    form.keep();
    mark();
    launch.disabled = true;
    form.generation++;
    clearTimeout(timer);
    if (field?.selects) {
      await form.load();
      const focused = selectorOf(document.activeElement); // it may have changed meanwhile
      draw();
      if (focused) sections.querySelector(focused)?.focus();
    }
    timer = setTimeout(check, field?.selects ? 0 : PAUSE);
  };

  const search = element("input", { type: "search", id: "search", placeholder: "Search options ( / )", "aria-label": "Search options", oninput: () => filter() });
  const only = element("input", { type: "checkbox", id: "only-changed", onchange: () => filter() });
  const filter = () => {
    const wanted = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const narrowed = wanted.length > 0 || only.checked;
    for (const section of sections.querySelectorAll("details.form-section")) {
      let shown = 0, hidden = 0;
      const all = section.dataset.all === "true";
      for (const each of section.querySelectorAll(".field")) {
        const found = narrowed
          ? wanted.every((word) => each.dataset.search.includes(word)) && (!only.checked || form.changed(each.dataset.field))
          : all || each.dataset.often === "true" || form.changed(each.dataset.field);
        each.hidden = !found;
        shown += found;
        hidden += !found;
      }
      section.hidden = narrowed && !shown;
      if (narrowed) {
        section.dataset.before ??= String(section.open);
        section.open = shown > 0;
      } else if (section.dataset.before) {
        section.open = section.dataset.before === "true";
        delete section.dataset.before;
      }
      const more = section.querySelector("button.more");
      more.hidden = narrowed || (!all && !hidden) ;
      more.textContent = all ? "Show fewer" : `Show ${hidden} more`;
    }
  };

  const draw = () => {
    const open = new Map([...sections.querySelectorAll("details.form-section")].map((each) => [each.dataset.name, [each.dataset.before ? each.dataset.before === "true" : each.open, each.dataset.all]]));
    sections.replaceChildren(...form.sections.map((section) => {
      const [wasOpen, all] = open.get(section.name) || [OPEN.includes(section.name), "false"];
      const made = element("details", { class: "form-section", open: wasOpen, "data-name": section.name },
        element("summary", {}, element("b", {}, section.name.startsWith("group-") ? command : section.name), element("span", { class: "muted" }, section.title.replaceAll("`", ""))),
        section.problem ? element("p", { class: "refusal" }, section.problem) : null,
        ...section.fields.map((field) => row(form, field, later)),
        element("button", { type: "button", class: "quiet more", onclick: () => { made.dataset.all = String(made.dataset.all !== "true"); filter(); } }));
      made.dataset.all = all;
      if (!section.fields.some((field) => field.often)) made.dataset.all = "true";
      return made;
    }));
    mark();
    filter();
  };

  const further = element("input", { type: "text", id: "further", spellcheck: "false", autocomplete: "off", "aria-label": "Further flags",
    placeholder: "further flags, for example: --lora_alpha 64", oninput: (event) => { form.further = event.target.value; later(); } });
  further.value = form.further;

  const start = async (event) => {
    event.preventDefault();
    launch.disabled = true;
    try {
      const { job } = await post("jobs", { command, selected: form.selected, values: form.sent, further: form.further });
      if (training) { delete form.values["logging.run_name"]; form.keep(); }
      location.hash = `#/jobs/${job.id}?follow=1`;
    } catch (error) {
      verdict.replaceChildren(element("div", { class: "refusal", role: "alert" }, element("p", {}, error.message), error.hint ? element("p", { class: "hint" }, error.hint) : null));
    }
  };

  const preset = async (each) => {
    const kept = Object.fromEntries(Object.entries(form.values).filter(([key]) => form.changed(key) && /^(model\.path|data\.train|logging\.)/.test(key)));
    if (each.command !== command) {
      sessionStorage.setItem(`form ${each.command}`, JSON.stringify({ ...kept, ...each.values }));
      location.hash = `#/new/${each.command}`;
      return;
    }
    form.values = { ...kept, ...each.values };
    await form.load();
    draw();
    later();
  };

  const copied = element("button", { type: "button", class: "quiet", onclick: async () => { await navigator.clipboard?.writeText(commandLine.textContent); copied.textContent = "Copied"; setTimeout(() => { copied.textContent = "Copy"; }, 1500); } }, "Copy");
  root.append(
    element("h1", {}, training ? "New run" : TITLES[command]),
    training ? element("p", { class: "commands", role: "group", "aria-label": "Kind of training" }, ...TRAINING.map((name) =>
      element("a", { href: `#/new/${name}`, class: "tab", "aria-current": name === command ? "page" : null }, TITLES[name]))) : null,
    element("form", { class: "new", "data-command": command, onsubmit: start, autocomplete: "off" },
      element("div", { class: "form-side" },
        element("div", { class: "form-tools" }, search, element("label", { class: "check" }, only, " only changed"), count),
        form.presets.length ? element("div", { class: "presets", role: "group", "aria-label": "Presets" }, element("span", { class: "muted" }, "Presets"), ...form.presets.map((each) => element("button", { type: "button", title: each.description, onclick: () => preset(each) }, each.name)),
          element("button", { type: "button", class: "quiet", onclick: () => { sessionStorage.removeItem(`form ${command}`); form.values = {}; form.further = further.value = ""; preset({ command, values: {} }); } }, "Clear")) : null,
        sections, further),
      element("aside", { class: "form-summary", "aria-label": "Command and its check" },
        element("div", { class: "command-head" }, element("h2", {}, "Command"), copied),
        element("pre", {}, commandLine), verdict, launch)));
  const keys = (event) => {
    if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(event.target.tagName)) { event.preventDefault(); search.focus(); }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !launch.disabled) start(event);
  };
  addEventListener("keydown", keys);
  draw();
  check();
  return () => { ended = true; clearTimeout(timer); removeEventListener("keydown", keys); };
};

// One question to several models: their answers side by side, as they come.
import { get, post } from "../api.js";
import { element } from "../dom.js";

const MOST = 4;
const LOOK = 500;
const WIDEST = 1024;

// An image as a data address, no larger than a model looks at.
const imageOf = async (file) => {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, WIDEST / Math.max(bitmap.width, bitmap.height));
  const canvas = element("canvas", { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const lossless = canvas.toDataURL("image/png");
  return lossless.length < 600_000 ? lossless : canvas.toDataURL("image/jpeg", 0.9);
};

// Calls piece(text) for each part of an answer; returns when it is whole.
const streamed = async (path, content, piece, signal) => {
  const response = await fetch(`/api/${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(content), signal });
  if (!response.ok) throw new Error((await response.json().catch(() => ({}))).error?.message || `The server answered ${response.status}.`);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.filter(Boolean)) {
      const told = JSON.parse(line);
      if (told.error) throw new Error(told.error);
      piece(told.text);
    }
  }
};

class Column {
  constructor(model, gone) {
    this.model = model;
    this.messages = [];
    this.talk = null;
    this.state = element("span", { class: "status" }, "loading");
    this.lines = element("div", { class: "chat-lines", role: "log", "aria-live": "polite", "aria-label": `Conversation with ${model}`, tabindex: 0 });
    this.root = element("section", { class: "chat-column", "data-model": model },
      element("header", {}, element("h2", { title: model }, model.split("/").slice(-2).join("/")), this.state,
        element("button", { type: "button", class: "quiet", title: "Close", "aria-label": `Close ${model}`, onclick: () => { this.ended = true; gone(this); this.root.remove(); } }, "×")),
      this.lines);
  }

  async open() {
    try {
      let talk = await post("talks", { model: this.model });
      while (!this.ended && talk.state === "loading") {
        await new Promise((wake) => setTimeout(wake, LOOK));
        const { talks } = await get("talks");
        talk = talks.find((each) => each.id === talk.id) || talk;
      }
      this.talk = talk;
      this.state.textContent = talk.state;
      this.state.className = `status ${talk.state === "ready" ? "completed" : "failed"}`;
      if (talk.state !== "ready") this.say("problem", talk.problem || "It ended.");
    } catch (error) {
      this.state.textContent = "failed";
      this.say("problem", `${error.message} ${error.hint || ""}`);
    }
  }

  get ready() { return this.talk?.state === "ready"; }

  say(who, text, image) {
    const line = element("p", { class: `said said-${who}` }, image ? element("img", { src: image, alt: "The image of the question" }) : null, element("span", {}, text));
    this.lines.append(line);
    this.lines.scrollTop = this.lines.scrollHeight;
    return line.lastChild;
  }

  async ask(text, image, { remember, ...settings }) {
    if (!this.talk.multi_turn || !remember) this.messages = [];
    const content = image && this.talk.images ? [{ type: "image_url", image_url: { url: image } }, { type: "text", text }] : text;
    this.messages.push({ role: "user", content });
    this.say("user", text, this.talk.images ? image : null);
    const answer = this.say("model", "");
    const began = performance.now();
    try {
      await streamed(`talks/${this.talk.id}/ask`, { messages: this.messages, ...settings }, (piece) => {
        answer.textContent += piece;
        this.lines.scrollTop = this.lines.scrollHeight;
      });
      this.messages.push({ role: "assistant", content: answer.textContent });
      answer.parentNode.dataset.done = "true";
      answer.parentNode.append(element("small", { class: "muted" }, `${((performance.now() - began) / 1000).toFixed(1)} s`));
    } catch (error) {
      this.messages.pop();
      this.say("problem", error.message);
    }
  }
}

export const mount = async (root, { query }) => {
  const columns = [];
  const place = element("div", { class: "chat-columns" });
  const known = element("datalist", { id: "known-models" });
  const model = element("input", { type: "text", id: "chat-model", list: "known-models", placeholder: "a run, a checkpoint, a model's folder", "aria-label": "Model to talk with", spellcheck: "false", autocomplete: "off" });
  const send = element("button", { type: "submit", class: "first", id: "chat-send" }, "Ask");
  const question = element("textarea", { id: "chat-question", rows: 2, placeholder: "Ask all of them (Enter; Shift+Enter for a line)", "aria-label": "Question" });
  const tokens = element("input", { type: "number", id: "chat-tokens", value: "256", min: "1", max: "8192" });
  const warmth = element("input", { type: "number", id: "chat-temperature", value: "0", min: "0", max: "2", step: "0.1" });
  const remember = element("input", { type: "checkbox", id: "chat-remember", checked: true });
  const shown = element("span", { class: "muted" });
  let image = null;
  const file = element("input", { type: "file", id: "chat-image", accept: "image/*", "aria-label": "Image for the question", onchange: async (event) => {
    image = event.target.files[0] ? await imageOf(event.target.files[0]) : null;
    shown.textContent = image ? "goes with the next question" : "";
  } });

  const add = (name) => {
    if (!name || columns.length === MOST || columns.some((each) => each.model === name)) return;
    const column = new Column(name, (gone) => columns.splice(columns.indexOf(gone), 1));
    columns.push(column);
    place.append(column.root);
    column.open();
  };
  const ask = async (event) => {
    event.preventDefault();
    const text = question.value.trim();
    const asked = columns.filter((each) => each.ready);
    if (!text || !asked.length) return;
    question.value = "";
    send.disabled = true;
    const settings = { remember: remember.checked, max_tokens: Number(tokens.value), temperature: Number(warmth.value) };
    const seen = image;
    image = null;
    file.value = shown.textContent = "";
    await Promise.all(asked.map((each) => each.ask(text, seen, settings)));
    send.disabled = false;
    question.focus();
  };
  question.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey) ask(event); });

  root.append(
    element("h1", {}, "Chat"),
    element("form", { class: "chat-add", onsubmit: (event) => { event.preventDefault(); add(model.value.trim()); model.value = ""; } }, model, known, element("button", { type: "submit", id: "chat-add" }, "Add a model")),
    place,
    element("form", { class: "chat-ask", onsubmit: ask }, question,
      element("div", { class: "chat-settings" },
        element("label", {}, "Longest answer ", tokens), element("label", {}, "Temperature ", warmth), element("label", {}, remember, " with what was said before"), element("label", {}, "Image ", file), shown, element("span", { class: "grow" }), send)));
  const { talks } = await get("talks");
  for (const each of [...query.getAll("model"), ...talks.filter((talk) => ["ready", "loading"].includes(talk.state)).map((talk) => talk.model)]) add(each);
  get("runs").then(({ runs }) => known.append(...runs.map((run) => element("option", { value: run.folder })))).catch(() => {});
  return () => { for (const each of columns) each.ended = true; };
};

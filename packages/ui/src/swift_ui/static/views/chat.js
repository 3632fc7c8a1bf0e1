// Chat with several models: their responses side by side, streamed.
import { get, post } from "../api.js";
import { choiceList } from "../choices.js";
import { element } from "../dom.js";

const MOST = 4;
const LOOK = 500;
const WIDEST = 1024;

// An image as a data address, scaled down.
const imageOf = async (file) => {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, WIDEST / Math.max(bitmap.width, bitmap.height));
  const canvas = element("canvas", { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const lossless = canvas.toDataURL("image/png");
  return lossless.length < 600_000 ? lossless : canvas.toDataURL("image/jpeg", 0.9);
};

// Calls piece(text) for each part of a response; returns when it is complete.
const streamed = async (path, content, piece, signal) => {
  const response = await fetch(`/api/${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(content), signal });
  if (!response.ok) throw new Error((await response.json().catch(() => ({}))).error?.message || `The server returned status ${response.status}.`);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.filter(Boolean)) {
      const part = JSON.parse(line);
      if (part.error) throw new Error(part.error);
      piece(part.text);
    }
  }
};

class Column {
  constructor(model, gone) {
    this.model = model;
    this.messages = [];
    this.session = null;
    this.state = element("span", { class: "status" }, "loading");
    this.lines = element("div", { class: "chat-lines", role: "log", "aria-live": "polite", "aria-label": `Conversation with ${model}`, tabindex: 0 });
    this.root = element("section", { class: "chat-column", "data-model": model },
      element("header", {}, element("h2", { title: model }, model.split("/").slice(-2).join("/")), this.state,
        element("button", { type: "button", class: "quiet", title: "Close", "aria-label": `Close ${model}`, onclick: () => { this.ended = true; gone(this); this.root.remove(); } }, "×")),
      this.lines);
  }

  async open() {
    try {
      let session = await post("sessions", { model: this.model });
      while (!this.ended && session.state === "loading") {
        await new Promise((wake) => setTimeout(wake, LOOK));
        const { sessions } = await get("sessions");
        session = sessions.find((each) => each.id === session.id) || session;
      }
      this.session = session;
      this.state.textContent = session.state;
      this.state.className = `status ${session.state === "ready" ? "completed" : "failed"}`;
      if (session.state !== "ready") this.say("problem", session.problem || "The model's process ended.");
    } catch (error) {
      this.state.textContent = "failed";
      this.say("problem", `${error.message} ${error.hint || ""}`);
    }
  }

  get ready() { return this.session?.state === "ready"; }

  say(who, text, image) {
    const line = element("p", { class: `message message-${who}` }, image ? element("img", { src: image, alt: "Image of the question" }) : null, element("span", {}, text));
    this.lines.append(line);
    this.lines.scrollTop = this.lines.scrollHeight;
    return line.lastChild;
  }

  async ask(text, image, { remember, ...settings }) {
    if (!this.session.multi_turn || !remember) this.messages = [];
    const content = image && this.session.images ? [{ type: "image_url", image_url: { url: image } }, { type: "text", text }] : text;
    this.messages.push({ role: "user", content });
    this.say("user", text, this.session.images ? image : null);
    const reply = this.say("model", "");
    const began = performance.now();
    try {
      await streamed(`sessions/${this.session.id}/chat`, { messages: this.messages, ...settings }, (piece) => {
        reply.textContent += piece;
        this.lines.scrollTop = this.lines.scrollHeight;
      });
      this.messages.push({ role: "assistant", content: reply.textContent });
      reply.parentNode.dataset.done = "true";
      reply.parentNode.append(element("small", { class: "muted" }, `${((performance.now() - began) / 1000).toFixed(1)} s`));
    } catch (error) {
      this.messages.pop();
      this.say("problem", error.message);
    }
  }
}

export const mount = async (root, { query }) => {
  const columns = [];
  const board = element("div", { class: "chat-columns" });
  const model = element("input", { type: "text", id: "chat-model", placeholder: "run, checkpoint or model folder", "aria-label": "Model to chat with", spellcheck: "false", autocomplete: "off" });
  const send = element("button", { type: "submit", class: "first", id: "chat-send" }, "Ask");
  const question = element("textarea", { id: "chat-question", rows: 2, placeholder: "Ask all models (Enter to send, Shift+Enter for a new line)", "aria-label": "Question" });
  const tokens = element("input", { type: "number", id: "chat-tokens", value: "256", min: "1", max: "8192" });
  const temperature = element("input", { type: "number", id: "chat-temperature", value: "0", min: "0", max: "2", step: "0.1" });
  const remember = element("input", { type: "checkbox", id: "chat-remember", checked: true });
  const shown = element("span", { class: "muted" });
  let image = null;
  const file = element("input", { type: "file", id: "chat-image", accept: "image/*", "aria-label": "Image for the question", onchange: async (event) => {
    image = event.target.files[0] ? await imageOf(event.target.files[0]) : null;
    shown.textContent = image ? "attached to the next question" : "";
  } });

  const add = (name) => {
    if (!name || columns.length === MOST || columns.some((each) => each.model === name)) return;
    const column = new Column(name, (gone) => { columns.splice(columns.indexOf(gone), 1); arrange(); });
    columns.push(column);
    board.append(column.root);
    arrange();
    column.open();
  };
  // Without a model, the page offers those of this machine; "Add model" shows the list again.
  const arrange = (choosing = false) => {
    list.hidden = columns.length > 0 && !choosing;
    board.hidden = form.hidden = !list.hidden;
    more.hidden = board.hidden || columns.length === MOST;
    list.replaceChildren(...(list.hidden ? [] : [
      element("form", { class: "chat-add", onsubmit: (event) => { event.preventDefault(); add(model.value.trim()); model.value = ""; } },
        model, element("button", { type: "submit", id: "chat-add" }, "Load"),
        columns.length ? element("button", { type: "button", onclick: () => arrange() }, "Cancel") : ""),
      choiceList("models", add, { first: ["Checkpoints", "Exports", "Folders", "Used by runs"], title: "Models to chat with" })]));
  };
  const ask = async (event) => {
    event.preventDefault();
    const text = question.value.trim();
    const targets = columns.filter((each) => each.ready);
    if (!text || !targets.length) return;
    question.value = "";
    send.disabled = true;
    const settings = { remember: remember.checked, max_tokens: Number(tokens.value), temperature: Number(temperature.value) };
    const seen = image;
    image = null;
    file.value = shown.textContent = "";
    await Promise.all(targets.map((each) => each.ask(text, seen, settings)));
    send.disabled = false;
    question.focus();
  };
  question.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey) ask(event); });

  const list = element("div", { class: "chat-choose" });
  const more = element("button", { type: "button", id: "chat-more", onclick: () => arrange(true) }, "Add model");
  const form = element("form", { class: "chat-ask", onsubmit: ask }, question,
    element("div", { class: "chat-settings" },
      element("label", {}, "Maximum tokens ", tokens), element("label", {}, "Temperature ", temperature), element("label", {}, remember, " Keep the conversation"), element("label", {}, "Image ", file), shown, element("span", { class: "grow" }), send));
  root.append(
    element("div", { class: "head" }, element("h1", {}, "Chat"),
      element("span", { class: "muted" }, `Load up to ${MOST} models and ask them the same question.`), element("div", { class: "tools" }, more)),
    list, board, form);
  const { sessions } = await get("sessions");
  for (const each of [...query.getAll("model"), ...sessions.filter((session) => ["ready", "loading"].includes(session.state)).map((session) => session.model)]) add(each);
  if (!columns.length) arrange();
  return () => { for (const each of columns) each.ended = true; };
};

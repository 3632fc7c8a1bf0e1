"use strict";
// Everything that a model or a reward wrote enters the page by textContent.
const data = JSON.parse(document.getElementById("round-data").textContent);
const colour = document.getElementById("colour");

function make(parent, tag, text, kind) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  parent.append(element);
  return element;
}

function shown(value) {
  return value === null ? "none" : String(value);
}

const facts = document.getElementById("facts");
for (const [name, value] of Object.entries(data.facts)) {
  const row = make(facts, "div");
  make(row, "dt", name);
  make(row, "dd", value);
}

const names = new Set();
for (const group of data.groups)
  for (const completion of group.completions) Object.keys(completion.values).forEach((name) => names.add(name));
const neutral = { "ratio to the engine": 1, "importance weight": 1 };
const widest = {};
for (const name of names) {
  make(colour, "option", name).value = name;
  let most = 0;
  for (const group of data.groups)
    for (const completion of group.completions)
      for (const value of completion.values[name] || [])
        if (Number.isFinite(value)) most = Math.max(most, Math.abs(value - (neutral[name] || 0)));
  widest[name] = most;
}

// Red is below the neutral value, blue above it; the stronger, the farther.
function paint(tokens, completion) {
  const name = colour.value;
  const values = completion.values[name] || [];
  tokens.forEach((token, index) => {
    const value = values[index];
    const apart = Number.isFinite(value) && widest[name] ? (value - (neutral[name] || 0)) / widest[name] : 0;
    token.style.background = `rgb(${apart < 0 ? "220 60 50" : "50 110 220"} / ${Math.abs(apart) * 0.65})`;
    const lines = Object.entries(completion.values).map(([each, known]) => `${each}: ${known[index]}`);
    token.title = [`token ${completion.ids[index]}`, ...lines].join("\n");
  });
}

const painters = [];
colour.addEventListener("change", () => painters.forEach((painter) => painter()));

function fillCompletion(parent, completion) {
  for (const message of completion.begins || []) {
    make(parent, "div", message.role, "quiet");
    make(parent, "pre", typeof message.content === "string" ? message.content : JSON.stringify(message.content));
  }
  const text = make(parent, "pre");
  const environment = completion.environment || [];
  const tokens = completion.pieces.map((piece, index) => make(text, "span", piece, environment[index] ? "environment" : undefined));
  const painter = () => paint(tokens, completion);
  painter();
  painters.push(painter);
  if (completion.turns) make(parent, "div", `rewards by turn: ${completion.turn_rewards.map(shown).join(", ")} ${completion.info}`, "quiet");
  const table = make(parent, "table");
  for (const [name, reward] of Object.entries(completion.rewards)) {
    const row = make(table, "tr");
    make(row, "th", name);
    make(row, "td", reward.value === null ? "no value" : reward.value);
    if (reward.remark) make(make(row, "td"), "pre", reward.remark);
  }
}

function whenOpened(details, fill) {
  details.addEventListener("toggle", () => { if (details.open) fill(); }, { once: true });
}

function addCompletion(parent, completion) {
  const details = make(parent, "details");
  const ended = completion.ended === "length" ? ", cut off" : "";
  const summary = make(details, "summary",
    `#${completion.index + 1}: reward ${shown(completion.reward)}, advantage ${shown(completion.advantage)}, ${completion.ids.length} tokens${completion.turns ? ` in ${completion.turns} turns` : ""}${ended}`);
  if (completion.steps.length) make(summary, "span", ` · learned from in step ${completion.steps.join(", ")}`, "quiet");
  if (completion.why_not) make(summary, "span", ` · not learned from: ${completion.why_not}`, "left-out");
  whenOpened(details, () => fillCompletion(details, completion));
}

const panels = data.groups.map((group) => {
  const details = make(document.getElementById("groups"), "details");
  const last = group.messages.length ? group.messages[group.messages.length - 1].content : "";
  const question = typeof last === "string" ? last : JSON.stringify(last);
  const rewards = group.completions.map((completion) => shown(completion.reward)).join(" ");
  const summary = make(details, "summary", `Prompt ${group.number}: ${question.slice(0, 120)} · ${rewards}`);
  if (group.dropped) make(summary, "span", ` · left out: ${group.dropped}`, "left-out");
  whenOpened(details, () => {
    for (const message of group.messages) {
      make(details, "div", message.role, "quiet");
      make(details, "pre", typeof message.content === "string" ? message.content : JSON.stringify(message.content));
    }
    const columns = Object.entries(group.columns);
    if (columns.length) {
      const table = make(details, "table");
      for (const [name, value] of columns) {
        const row = make(table, "tr");
        make(row, "th", name);
        make(make(row, "td"), "pre", value);
      }
    }
    group.completions.forEach((completion) => addCompletion(details, completion));
  });
  return details;
});

const onlyDropped = document.getElementById("dropped");
onlyDropped.addEventListener("change", () => {
  panels.forEach((panel, index) => { panel.hidden = onlyDropped.checked && !data.groups[index].dropped; });
});

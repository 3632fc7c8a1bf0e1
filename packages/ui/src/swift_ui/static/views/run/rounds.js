// Rounds: prompts, completions and their rewards.
import { get } from "../../api.js";
import { element, problem } from "../../dom.js";
import { figure, known } from "../../format.js";

const completionOf = (line) => element("div", { class: "completion" },
  element("div", { class: "text", tabindex: "0", role: "group", "aria-label": "Completion" }, line.text || "(empty)"),
  element("div", { class: "marks" },
    known(line.reward) ? element("span", {}, "reward ", element("b", {}, figure(line.reward))) : null,
    ...Object.entries(line.rewards || {}).map(([name, value]) => element("span", {}, `${name} `, element("b", {}, figure(value)))),
    line.finish_reason ? element("span", {}, String(line.finish_reason)) : null,
    line.why_not ? element("span", {}, `not trained on: ${line.why_not}`) : null,
    ...(line.failed?.length ? [element("span", {}, `failed: ${[line.failed].flat().join(", ")}`)] : [])));

const textOf = (content) => typeof content === "string" ? content : JSON.stringify(content);
const promptOf = (messages) => Array.isArray(messages) ? messages.map((message) => `${message.role}: ${textOf(message.content)}`).join("\n") : textOf(messages ?? "");

export const mount = async (root, about) => {
  const { rounds } = await get(`${about.path}/rounds`);
  const content = element("div");
  const choice = element("select", { "aria-label": "Round", onchange: () => show(Number(choice.value)) },
    ...rounds.map(({ number }) => element("option", { value: String(number) }, `Round ${number + 1}`)));
  const page = element("a", { class: "button", target: "_blank", rel: "noopener" }, "Audit page, token by token");
  root.append(element("div", { class: "head" }, choice, page), content);
  const show = async (number) => {
    const about_round = rounds.find((each) => each.number === number);
    page.hidden = !about_round.page;
    if (about_round.page) page.href = `/api/${about.path}/pages/${about_round.page}`;
    try {
      const { groups, facts, more } = await get(`${about.path}/rounds/${number}`);
      content.replaceChildren(
        element("p", { class: "muted" }, Object.entries(facts).map(([name, value]) => `${name.replaceAll("_", " ")} ${figure(value)}`).join(" · ")),
        ...groups.map(({ source, messages, dropped, completions }) => element("section", { class: "card" },
          element("h2", {}, promptOf(messages)),
          element("p", { class: "muted mono" }, [source, dropped ? `not trained on: ${dropped}` : null].filter(Boolean).join(" · ")),
          ...completions.map(completionOf))),
        more ? element("p", { class: "muted" }, `The round's file has ${more} more completions.`) : "");
    } catch (error) {
      content.replaceChildren(problem(error));
    }
  };
  if (!rounds.length) {
    root.replaceChildren(element("p", { class: "empty" }, "No round yet."));
    return;
  }
  choice.value = String(rounds[rounds.length - 1].number);
  await show(Number(choice.value));
};

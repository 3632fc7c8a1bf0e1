// The first samples as token sequences, with the trained text marked.
import { get } from "../../api.js";
import { element } from "../../dom.js";
import { count, figure } from "../../format.js";
import { table } from "../../table.js";

const pieceOf = (piece) => {
  if (piece.image !== undefined)
    return element("span", { class: "image" },
      typeof piece.thumbnail === "string" && piece.thumbnail.startsWith("data:image/") ? element("img", { src: piece.thumbnail, alt: piece.image }) : null,
      `${piece.image} ${piece.width}×${piece.height} → ${piece.tokens} tokens`);
  if (!piece.weight) return piece.text;
  return element("mark", { class: piece.weight === 1 ? null : "part", title: piece.weight === 1 ? "learned" : `learned with weight ${piece.weight}` },
    piece.weight === 1 ? "" : element("b", {}, `${figure(piece.weight)}: `), piece.text);
};

const segmentOf = (segment) => [
  element("h3", {}, `${segment.name}: ${count(segment.tokens)} tokens, ${count(segment.learned)} learned`),
  element("div", { class: "text", tabindex: "0", role: "group", "aria-label": `Text of ${segment.name}` }, ...segment.pieces.map(pieceOf)),
  element("details", {}, element("summary", { class: "muted" }, "Token ids"),
    element("div", { class: "ids" }, ...segment.pieces.flatMap((piece) => piece.ids
      ? [element(piece.weight ? "b" : "span", {}, piece.ids.join(" ")), " "] : [`[${piece.tokens}] `]))),
];

export const mount = async (root, about) => {
  if (!about.run.has.samples) {
    root.append(element("p", { class: "empty" }, "This run has no samples file. To see samples: ",
      element("code", {}, `swift config show --config ${about.run.folder}/config.yaml --sample 5`)));
    return;
  }
  const { samples, left_out: leftOut, sources, streamed } = await get(`${about.path}/samples`);
  if (leftOut.length)
    root.append(element("section", { class: "card", "aria-label": "Skipped samples" },
      element("h2", {}, `${count(leftOut.reduce((sum, each) => sum + each.count, 0))} samples were skipped`),
      table(["Reason", ["Samples", "number"], "First one"],
        leftOut.map((each) => [each.reason, [count(each.count), "number"], each.first]), { label: "Reasons" })));
  if (sources.length)
    root.append(element("section", { class: "card" }, element("h2", {}, "Data sets"),
      table(["Name", ["Rows", "number"], ["Samples", "number"], ["Tokens", "number"], ["Learned tokens", "number"]],
        sources.map((each) => [each.name, ...[each.rows, each.samples, each.tokens, each.loss_tokens].map((value) => [count(value), "number"])]), { label: "Data sets" })));
  if (streamed) root.append(element("p", { class: "empty" }, "The data is streamed, so its samples are not known before training."));
  if (!samples.length) return;
  root.append(element("p", { class: "legend muted" }, `The first ${samples.length} samples; `, element("mark", {}, "marked text"), " is trained on, the rest is context."));
  root.append(...samples.map((sample) => element("section", { class: "card sample", "aria-label": `Sample ${sample.place}` },
    element("p", { class: "muted mono" }, sample.place, ...Object.entries(sample.values).map(([name, value]) => ` · ${name} ${figure(value)}`)),
    ...sample.segments.flatMap(segmentOf))));
};

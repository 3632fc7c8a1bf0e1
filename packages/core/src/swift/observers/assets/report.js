"use strict";
// Draws the curves of a run as SVG in the width that there is, and reads values out under the pointer.
(() => {
  const data = JSON.parse(document.getElementById("run-data").textContent);
  const steps = data.columns.step || [];
  const charts = [];
  let hovered = null;

  const SVG = "http://www.w3.org/2000/svg";
  const element = (parent, name, attributes = {}, text = null) => {
    const made = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    parent.append(made);
    return made;
  };

  const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  const number = (value) => {
    const size = Math.abs(value);
    if (value === 0) return "0";
    if (size >= 1e9) return trimmed((value / 1e9).toPrecision(4)) + "B";
    if (size >= 1e6) return trimmed((value / 1e6).toPrecision(4)) + "M";
    if (size >= 1e4) return Math.round(value).toLocaleString("en");
    if (size >= 1e-3) return trimmed(value.toPrecision(4));
    return value.toExponential(2).replace(/\.?0+e/, "e");
  };
  // Ticks of an axis are written alike: in one unit, with as many digits as their step needs to tell them apart.
  const digitsOf = (step) => {
    const isWhole = (scaled) => Math.abs(scaled - Math.round(scaled)) < 1e-6 * Math.max(1, scaled);
    let digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    while (!isWhole(step * 10 ** digits)) digits++;
    return digits;
  };
  const tickLabel = (value, step, largest) => {
    if (value === 0) return "0";
    if (largest < 1e-3) {
      const power = Math.floor(Math.log10(Math.abs(value)) + 1e-9);
      return value.toExponential(Math.max(0, digitsOf(step) + power));
    }
    const [unit, letter] = largest >= 1e6 ? [1e6, "M"] : largest >= 1e4 ? [1e3, "k"] : [1, ""];
    const digits = digitsOf(step / unit);
    const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
    return (value / unit).toLocaleString("en", options) + letter;
  };

  const niceStep = (span, count) => {
    const rough = span / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 2.5, 5, 10].map((unit) => unit * power).find((step) => step >= rough * 0.999);
  };
  const linearTicks = (low, high, count, whole = false) => {
    const nice = niceStep(high - low, count);
    const step = whole ? (nice === 2.5 ? 5 : Math.max(1, nice)) : nice;
    const ticks = [];
    for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) ticks.push(index * step);
    return ticks.map((value) => ({ value, text: tickLabel(value, step, Math.max(...ticks.map(Math.abs))) }));
  };
  const logTicks = (low, high, count) => {
    const ticks = [];
    const decades = Math.log10(high / low);
    const units = decades > count ? [1] : decades > 1.5 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const unit of units) {
        const value = unit * 10 ** power;
        if (value >= low * 0.999 && value <= high * 1.001) ticks.push({ value, text: number(value) });
      }
    if (ticks.length < 2) return linearTicks(low, high, count);
    return ticks;
  };

  // Exponential moving average, corrected for its start; gaps stay gaps.
  const smoothed = (values, weight) => {
    let sum = 0, mass = 0;
    return values.map((value) => {
      if (value === null) return null;
      sum = sum * weight + value * (1 - weight);
      mass = mass * weight + (1 - weight);
      return sum / mass;
    });
  };

  // An axis of amounts ends with a tick at or above the largest one.
  const topTick = (high, count) => {
    const step = niceStep(high, count);
    return Math.ceil(high / step - 1e-9) * step;
  };

  const yRange = (chart, count) => {
    const values = chart.drawn.flatMap((curve) => curve.values).filter((value) => value !== null && (!chart.log || value > 0));
    if (!values.length) return [0, 1];
    const low = values.reduce((a, b) => Math.min(a, b));
    const high = values.reduce((a, b) => Math.max(a, b), chart.reaches ?? -Infinity);
    if (chart.log) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
    // A difference that is lost in the rounding of the values is none.
    const isFlat = high - low <= Math.abs(high) * 1e-6;
    const pad = isFlat ? Math.abs(high) * 0.05 || 1 : (high - low) * 0.06;
    if (low >= 0 && chart.from_zero) return [0, topTick(high || 1, count)];
    if (low >= 0 && low < pad) return [0, high + pad];
    return [low - pad, high + pad];
  };

  const xRange = () => {
    const first = steps[0], last = steps[steps.length - 1];
    return first === last ? [first - 1, last + 1] : [first, last];
  };

  // At most one lowest and one highest point per pixel: what the eye can tell apart.
  const path = (values, x, y, width) => {
    const known = steps.map((_, index) => index).filter((index) => values[index] !== null && Number.isFinite(y(values[index])));
    let kept = known;
    if (known.length > width * 4) {
      const columns = new Map();
      for (const index of known) {
        const column = Math.round(x(steps[index]));
        const extremes = columns.get(column) || { low: index, high: index };
        if (values[index] < values[extremes.low]) extremes.low = index;
        if (values[index] > values[extremes.high]) extremes.high = index;
        columns.set(column, extremes);
      }
      kept = [...columns.values()].flatMap(({ low, high }) => (low === high ? [low] : [low, high].sort((a, b) => a - b)));
    }
    return kept.map((index, place) => `${place ? "L" : "M"}${x(steps[index]).toFixed(1)} ${y(values[index]).toFixed(1)}`).join("");
  };

  // A curve that goes up and down all the time is drawn thinner, so that it does not become a slab.
  const isRough = (values) => {
    let travelled = 0, low = Infinity, high = -Infinity;
    values.forEach((value, index) => {
      if (index) travelled += Math.abs(value - values[index - 1]);
      low = Math.min(low, value);
      high = Math.max(high, value);
    });
    return travelled > 60 * (high - low);
  };

  const build = (spec, index) => {
    const root = element(document.getElementById("charts"), "figure", { class: "chart" });
    const chart = { ...spec, root, log: false, smoothing: 0, isLoss: spec.metric === "loss" };
    const alone = index === data.charts.length - 1 && index % 2 === 1;
    if (chart.isLoss || alone) root.classList.add("wide");
    const head = element(root, "div", { class: "chart-head" });
    element(head, "h3", {}, spec.title);
    chart.readout = element(head, "div", { class: "readout" });
    if (chart.isLoss) controls(chart, head);
    chart.svg = element(root, "svg:svg", { role: "img", "aria-label": `${spec.title} by step` });
    const point = (event) => hover(stepAt(chart, event.clientX - chart.svg.getBoundingClientRect().left));
    chart.svg.addEventListener("pointermove", point);
    chart.svg.addEventListener("pointerdown", point);
    chart.svg.addEventListener("pointerleave", () => hover(null));
    charts.push(chart);
  };

  const controls = (chart, head) => {
    const box = element(head, "div", { class: "controls" });
    const smooth = element(box, "label", {}, "Smoothing ");
    const range = element(smooth, "input", { type: "range", min: 0, max: 0.99, step: 0.01 });
    const shown = element(smooth, "output");
    const set = () => {
      chart.smoothing = Number(range.value);
      shown.textContent = chart.smoothing ? chart.smoothing.toFixed(2) : "off";
    };
    range.value = steps.length > 60 ? 1 - 60 / steps.length : 0;
    set();
    range.addEventListener("input", () => { set(); draw(chart); });
    const log = element(box, "label");
    const check = element(log, "input", { type: "checkbox" });
    log.append("Logarithmic");
    check.addEventListener("change", () => { chart.log = check.checked; draw(chart); });
  };

  const draw = (chart) => {
    const { svg } = chart;
    svg.replaceChildren();
    const width = Math.max(svg.getBoundingClientRect().width, 120);
    const height = chart.isLoss ? Math.min(330, Math.max(220, width * 0.42)) : Math.min(210, Math.max(170, width * 0.4));
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.style.height = `${height}px`;

    chart.drawn = chart.series.flatMap((series) => {
      const values = data.columns[series.name].map((value) => (typeof value === "number" ? value : null));
      if (series.kind === "train" && chart.smoothing)
        return [{ ...series, values, raw: true }, { ...series, values: smoothed(values, chart.smoothing) }];
      return [{ ...series, values }];
    });
    const count = Math.floor(height / 42);
    const [low, high] = yRange(chart, count);
    const yTicks = chart.log ? logTicks(low, high, count) : linearTicks(low, high, count);
    const left = 12 + Math.max(...yTicks.map((tick) => tick.text.length), 1) * 7;
    const edge = { left, right: width - 10, top: 8, bottom: height - 26 };
    const [first, last] = xRange();
    const x = (step) => edge.left + ((step - first) / (last - first)) * (edge.right - edge.left);
    const part = chart.log ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
    const y = (value) => edge.bottom - part(value) * (edge.bottom - edge.top);
    Object.assign(chart, { x, y, edge, first, last });

    for (const { value, text } of yTicks) {
      const at = Math.round(y(value)) + 0.5;
      element(svg, "svg:line", { class: "grid-line", x1: edge.left, x2: edge.right, y1: at, y2: at });
      element(svg, "svg:text", { x: edge.left - 8, y: at + 4, "text-anchor": "end" }, text);
    }
    const base = Math.round(edge.bottom) + 0.5;
    element(svg, "svg:line", { class: "axis-line", x1: edge.left, x2: edge.right, y1: base, y2: base });
    const xTicks = linearTicks(first, last, (edge.right - edge.left) / 90, true);
    if (xTicks.length && x(xTicks[0].value) > edge.left + 50) element(svg, "svg:text", { x: edge.left, y: base + 18 }, "step");
    for (const { value, text } of xTicks) {
      const at = x(value);
      element(svg, "svg:line", { class: "axis-line", x1: at, x2: at, y1: base, y2: base + 4 });
      element(svg, "svg:text", { x: at, y: base + 18, "text-anchor": at > edge.right - 16 ? "end" : "middle" }, text);
    }
    if (chart.isLoss)
      for (const { step, folder } of data.checkpoints) {
        const at = x(Math.min(Math.max(step, first), last));
        const mark = element(svg, "svg:path", { class: "checkpoint", d: `M${at - 4} ${base - 7}h8l-4 7z` });
        element(mark, "svg:title", {}, folder);
      }
    for (const curve of chart.drawn) {
      const known = steps.map((_, index) => index).filter((index) => curve.values[index] !== null);
      const weight = curve.raw ? " raw" : isRough(curve.values.filter((value) => value !== null)) ? " dense" : "";
      element(svg, "svg:path", { class: `curve ${curve.kind}${weight}`, d: path(curve.values, x, y, width) });
      if (!curve.raw && known.length <= (curve.kind === "evaluation" ? 40 : 1))
        for (const index of known)
          element(svg, "svg:circle", { class: `dot ${curve.kind}`, cx: x(steps[index]), cy: y(curve.values[index]), r: 3.5 });
    }
    chart.overlay = element(svg, "svg:g");
    read(chart);
  };

  const stepAt = (chart, position) => {
    let best = 0;
    steps.forEach((step, index) => {
      if (Math.abs(chart.x(step) - position) < Math.abs(chart.x(steps[best]) - position)) best = index;
    });
    return best;
  };

  // The newest value at or before the index: an evaluation stands until the next one.
  const latest = (values, index) => {
    while (index >= 0 && values[index] === null) index--;
    return index < 0 ? null : { index, value: values[index] };
  };

  const read = (chart) => {
    const { overlay, edge, x, y } = chart;
    overlay.replaceChildren();
    chart.readout.replaceChildren();
    const at = hovered ?? steps.length - 1;
    if (hovered !== null) {
      const position = Math.round(x(steps[at])) + 0.5;
      element(overlay, "svg:line", { class: "crosshair", x1: position, x2: position, y1: edge.top, y2: edge.bottom });
      const text = `step ${steps[at].toLocaleString("en")}`;
      const half = text.length * 3.4 + 7;
      const middle = Math.min(Math.max(position, edge.left + half - 6), edge.right - half + 6);
      element(overlay, "svg:rect", { class: "step-pill", x: middle - half, y: edge.bottom + 4, width: half * 2, height: 20, rx: 5 });
      element(overlay, "svg:text", { class: "step-label", x: middle, y: edge.bottom + 18, "text-anchor": "middle" }, text);
    }
    const shown = chart.drawn.filter((curve) => !curve.raw);
    for (const curve of shown) {
      const found = latest(curve.values, at);
      const entry = element(chart.readout, "span");
      if (chart.drawn.length > 1) element(entry, "i", { class: curve.kind });
      const raw = chart.drawn.find((other) => other.raw && other.name === curve.name);
      if (shown.length > 1 || raw) entry.append(`${curve.label}${raw ? " (smoothed)" : ""} `);
      element(entry, "b", {}, found ? number(found.value) : "–");
      if (raw) {
        entry.append(" raw ");
        const value = latest(raw.values, at);
        element(entry, "b", {}, value ? number(value.value) : "–");
      }
      if (hovered !== null && found)
        element(overlay, "svg:circle", { class: `dot ${curve.kind}`, cx: x(steps[found.index]), cy: y(found.value), r: 4.5 });
    }
  };

  const hover = (index) => {
    if (index === hovered) return;
    hovered = index;
    charts.forEach(read);
  };

  data.charts.forEach(build);
  charts.forEach(draw);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) charts.forEach(draw);
    width = window.innerWidth;
  });
})();

"use strict";
// Draws curves as SVG in the width that there is, and reads values out under the pointer or the arrow keys.
// report.html and the dashboard share this file. It makes elements and texts, and never reads markup.
const swiftCharts = (() => {
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
  const percent = (value) => `${trimmed((value * 100).toFixed(1))} %`;

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

  // Exponential moving average, corrected for its start.
  const smoothed = (values, weight) => {
    let sum = 0, mass = 0;
    return values.map((value) => {
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

  // The last place whose step is at most this one; -1 before the first.
  const placeAt = (steps, step) => {
    let low = 0, high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  };

  // At most one lowest and one highest point per pixel: what the eye can tell apart.
  const path = (steps, values, x, y, width) => {
    let kept = steps.map((_, index) => index).filter((index) => Number.isFinite(y(values[index])));
    if (kept.length > width * 4) {
      const columns = new Map();
      for (const index of kept) {
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

  // Several charts whose steps are read out together. `show` takes
  //   charts: [{metric, title, from_zero, reaches, stacked, percent, wide, lines: [{value, label}],
  //             series: [{name, label, kind, steps, values}]}]
  //   checkpoints: [{step, folder}]
  // and may be called again with more. `kind` is a class that colours a curve.
  class Charts {
    constructor(root, { zoomed = null } = {}) {
      Object.assign(this, { root, zoomed, charts: new Map(), checkpoints: [], hovered: null, zoom: null });
      this.redraw = () => this.charts.forEach((chart) => this.draw(chart));
      let width = window.innerWidth;
      this.resized = () => {
        if (window.innerWidth !== width) this.redraw();
        width = window.innerWidth;
      };
      window.addEventListener("resize", this.resized);
    }

    close() {
      window.removeEventListener("resize", this.resized);
    }

    show(charts, checkpoints = []) {
      this.checkpoints = checkpoints;
      const wanted = new Set(charts.map((spec) => spec.metric));
      for (const [metric, chart] of this.charts)
        if (!wanted.has(metric)) {
          chart.root.remove();
          this.charts.delete(metric);
        }
      charts.forEach((spec, index) => {
        const known = this.charts.get(spec.metric);
        const alone = index === charts.length - 1 && index % 2 === 1 && charts[0].metric === "loss";
        if (known) Object.assign(known, spec);
        else this.build(spec, alone);
      });
      this.range();
      this.redraw();
    }

    // The steps that all charts show.
    range() {
      let first = Infinity, last = -Infinity;
      for (const { series } of this.charts.values())
        for (const { steps } of series)
          if (steps.length) {
            first = Math.min(first, steps[0]);
            last = Math.max(last, steps[steps.length - 1]);
          }
      if (first > last) [first, last] = [0, 1];
      this.whole = first === last ? [first - 1, last + 1] : [first, last];
    }

    build(spec, alone) {
      const root = element(this.root, "figure", { class: "chart", "data-metric": spec.metric });
      const chart = { ...spec, root, log: false, smoothing: 0, isLoss: spec.metric === "loss" };
      if (chart.isLoss || alone || spec.wide) root.classList.add("wide");
      const head = element(root, "div", { class: "chart-head" });
      element(head, "h3", {}, spec.title);
      chart.readout = element(head, "div", { class: "readout" });
      if (chart.isLoss) this.controls(chart, head);
      chart.svg = element(root, "svg:svg", { role: "img", tabindex: 0, "aria-label": `${spec.title} by step` });
      this.listen(chart);
      this.charts.set(spec.metric, chart);
    }

    listen(chart) {
      const { svg } = chart;
      const stepAt = (event) => {
        const position = event.clientX - svg.getBoundingClientRect().left;
        const part = (position - chart.edge.left) / (chart.edge.right - chart.edge.left);
        return chart.first + Math.min(1, Math.max(0, part)) * (chart.last - chart.first);
      };
      svg.addEventListener("pointermove", (event) => {
        this.hover(this.nearest(chart, stepAt(event)));
        if (this.from !== undefined) this.mark(chart, this.from, stepAt(event));
      });
      svg.addEventListener("pointerdown", (event) => {
        this.hover(this.nearest(chart, stepAt(event)));
        if (event.pointerType === "mouse" && event.button === 0) this.from = stepAt(event);
      });
      svg.addEventListener("pointerup", (event) => {
        const from = this.from;
        this.from = undefined;
        if (from === undefined) return;
        const [first, last] = [from, stepAt(event)].sort((a, b) => a - b);
        if (chart.x(last) - chart.x(first) > 12) this.setZoom([first, last]);
        else this.read(chart);
      });
      svg.addEventListener("dblclick", () => this.setZoom(null));
      svg.addEventListener("pointerleave", () => {
        this.from = undefined;
        this.hover(null);
      });
      svg.addEventListener("blur", () => this.hover(null));
      svg.addEventListener("keydown", (event) => this.key(chart, event));
    }

    key(chart, event) {
      const steps = this.stepsOf(chart);
      const at = this.hovered === null ? steps.length - 1 : placeAt(steps, this.hovered);
      const far = event.shiftKey ? Math.max(1, Math.round(steps.length / 20)) : 1;
      const to = { ArrowLeft: at - far, ArrowRight: at + far, Home: 0, End: steps.length - 1 }[event.key];
      if (event.key === "Escape") this.setZoom(null);
      else if (to === undefined) return;
      else this.hover(steps[Math.min(steps.length - 1, Math.max(0, to))] ?? null);
      event.preventDefault();
    }

    controls(chart, head) {
      const box = element(head, "div", { class: "controls" });
      const smooth = element(box, "label", {}, "Smoothing ");
      const range = element(smooth, "input", { type: "range", min: 0, max: 0.99, step: 0.01 });
      const shown = element(smooth, "output");
      const set = () => {
        chart.smoothing = Number(range.value);
        shown.textContent = chart.smoothing ? chart.smoothing.toFixed(2) : "off";
      };
      const points = Math.max(0, ...chart.series.map(({ steps }) => steps.length));
      range.value = points > 60 ? Math.min(0.97, 1 - 60 / points) : 0;
      set();
      range.addEventListener("input", () => { set(); this.draw(chart); });
      const log = element(box, "label");
      const check = element(log, "input", { type: "checkbox" });
      log.append("Logarithmic");
      check.addEventListener("change", () => { chart.log = check.checked; this.draw(chart); });
    }

    setZoom(range) {
      const before = this.zoom;
      this.zoom = range;
      if (!before && !range) return;
      this.redraw();
      if (this.zoomed) this.zoomed(range);
    }

    drawnOf(chart) {
      if (chart.stacked) return this.stackedOf(chart);
      return chart.series.flatMap((series) => {
        const averaged = chart.smoothing && series.kind !== "evaluation" && series.steps.length > 2;
        if (!averaged) return [series];
        return [{ ...series, raw: true }, { ...series, values: smoothed(series.values, chart.smoothing) }];
      });
    }

    // Shares that lie on one another, at the steps of the first.
    stackedOf(chart) {
      const { steps } = chart.series[0];
      let below = steps.map(() => 0);
      return chart.series.map((series) => {
        const own = steps.map((step) => series.values[placeAt(series.steps, step)] ?? 0);
        const top = own.map((value, index) => value + below[index]);
        const area = { ...series, steps, values: own, below, top };
        below = top;
        return area;
      });
    }

    yRange(chart, count) {
      if (chart.stacked) return [0, 1];
      const inView = (step) => step >= chart.first && step <= chart.last;
      let low = Infinity, high = chart.reaches ?? -Infinity;
      for (const { steps, values } of chart.drawn)
        values.forEach((value, index) => {
          if ((chart.log && value <= 0) || !inView(steps[index])) return;
          low = Math.min(low, value);
          high = Math.max(high, value);
        });
      for (const { value } of chart.lines || []) if (!chart.log || value > 0) high = Math.max(high, value);
      if (low > high) return [0, 1];
      if (chart.log) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
      // A difference that is lost in the rounding of the values is none.
      const isFlat = high - low <= Math.abs(high) * 1e-6;
      const pad = isFlat ? Math.abs(high) * 0.05 || 1 : (high - low) * 0.06;
      if (low >= 0 && chart.from_zero) return [0, topTick(high || 1, count)];
      if (low >= 0 && low < pad) return [0, high + pad];
      return [low - pad, high + pad];
    }

    // The loss is tall, and so is what stands beside it.
    isTall(chart) {
      const loss = this.charts.get("loss");
      return loss !== undefined && (chart === loss || (chart.root.offsetTop === loss.root.offsetTop && chart.root.offsetTop >= 0));
    }

    draw(chart) {
      const { svg } = chart;
      svg.replaceChildren();
      const width = Math.max(svg.getBoundingClientRect().width, 120);
      const height = this.isTall(chart) ? Math.min(330, Math.max(chart.isLoss ? 220 : 330, width * 0.42)) : Math.min(210, Math.max(170, width * 0.4));
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.style.height = `${height}px`;
      [chart.first, chart.last] = this.zoom || this.whole;

      chart.drawn = this.drawnOf(chart);
      const count = Math.floor(height / 42);
      const [low, high] = this.yRange(chart, count);
      const yTicks = chart.log ? logTicks(low, high, count) : linearTicks(low, high, count);
      if (chart.stacked) for (const tick of yTicks) tick.text = `${Math.round(tick.value * 100)} %`;
      const left = 12 + Math.max(...yTicks.map((tick) => tick.text.length), 1) * 7;
      const edge = { left, right: width - 10, top: 8, bottom: height - 26 };
      const { first, last } = chart;
      const x = (step) => edge.left + ((step - first) / (last - first)) * (edge.right - edge.left);
      const part = chart.log ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
      const y = (value) => edge.bottom - part(value) * (edge.bottom - edge.top);
      Object.assign(chart, { x, y, edge });

      for (const { value, text } of yTicks) {
        const at = Math.round(y(value)) + 0.5;
        element(svg, "svg:line", { class: "grid-line", x1: edge.left, x2: edge.right, y1: at, y2: at });
        element(svg, "svg:text", { x: edge.left - 8, y: at + 4, "text-anchor": "end" }, text);
      }
      this.axis(chart);
      const plot = element(svg, "svg:svg", {
        class: "plot", x: edge.left, y: 0, width: edge.right - edge.left + 8, height: edge.bottom + 4,
        viewBox: `${edge.left} 0 ${edge.right - edge.left + 8} ${edge.bottom + 4}`,
      });
      for (const curve of chart.drawn) this.curve(chart, plot, curve, width);
      for (const { value, label } of chart.lines || []) {
        const at = Math.round(y(value)) + 0.5;
        element(plot, "svg:line", { class: "bound", x1: edge.left, x2: edge.right, y1: at, y2: at });
        element(plot, "svg:text", { class: "bound-label", x: edge.right - 4, y: at - 5, "text-anchor": "end" }, label);
      }
      chart.pointer = element(svg, "svg:g");
      chart.overlay = element(svg, "svg:g");
      this.legend(chart);
      this.read(chart);
    }

    axis(chart) {
      const { svg, edge, x, first, last } = chart;
      const base = Math.round(edge.bottom) + 0.5;
      element(svg, "svg:line", { class: "axis-line", x1: edge.left, x2: edge.right, y1: base, y2: base });
      const ticks = linearTicks(first, last, (edge.right - edge.left) / 72, true);
      if (ticks.length && x(ticks[0].value) > edge.left + 50) element(svg, "svg:text", { x: edge.left, y: base + 18 }, "step");
      for (const { value, text } of ticks) {
        const at = x(value);
        element(svg, "svg:line", { class: "axis-line", x1: at, x2: at, y1: base, y2: base + 4 });
        element(svg, "svg:text", { x: at, y: base + 18, "text-anchor": at > edge.right - 16 ? "end" : "middle" }, text);
      }
      if (!chart.isLoss) return;
      for (const { step, folder } of this.checkpoints) {
        if (this.zoom && (step < first || step > last)) continue;
        const at = x(Math.min(Math.max(step, first), last));
        const mark = element(svg, "svg:path", { class: "checkpoint", d: `M${at - 4} ${base - 7}h8l-4 7z` });
        element(mark, "svg:title", {}, folder);
      }
    }

    curve(chart, plot, curve, width) {
      const { x, y } = chart;
      if (curve.top) {
        const edgeOf = (values) => curve.steps.map((step, index) => `${x(step).toFixed(1)} ${y(values[index]).toFixed(1)}`);
        const outline = [...edgeOf(curve.top), ...edgeOf(curve.below).reverse()].join("L");
        if (curve.steps.length) element(plot, "svg:path", { class: `area ${curve.kind}`, d: `M${outline}Z` });
        return;
      }
      const weight = curve.raw ? " raw" : isRough(curve.values) ? " dense" : "";
      element(plot, "svg:path", { class: `curve ${curve.kind}${weight}`, d: path(curve.steps, curve.values, x, y, width) });
      if (curve.raw || curve.steps.length > (curve.kind === "evaluation" ? 40 : 1)) return;
      curve.steps.forEach((step, index) => {
        if (!Number.isFinite(y(curve.values[index]))) return;
        element(plot, "svg:circle", { class: `dot ${curve.kind}`, cx: x(step), cy: y(curve.values[index]), r: 3.5 });
      });
    }

    stepsOf(chart) {
      return chart.series.reduce((longest, { steps }) => (steps.length > longest.length ? steps : longest), []);
    }

    nearest(chart, step) {
      const steps = this.stepsOf(chart);
      const at = Math.max(0, placeAt(steps, step));
      const after = steps[at + 1];
      return after !== undefined && after - step < step - steps[at] ? after : steps[at] ?? null;
    }

    mark(chart, from, to) {
      const [left, right] = [chart.x(from), chart.x(to)].sort((a, b) => a - b);
      const { top, bottom } = chart.edge;
      element(chart.pointer, "svg:rect", { class: "chosen", x: left, y: top, width: right - left, height: bottom - top });
    }

    // What is read out of each curve: made once, so that following the pointer changes texts and places only.
    legend(chart) {
      chart.readout.replaceChildren();
      const shown = chart.drawn.filter((curve) => !curve.raw);
      const few = shown.length < 4;
      chart.read = shown.map((curve) => {
        const raw = chart.drawn.find((other) => other.raw && other.name === curve.name && other.kind === curve.kind);
        const entry = element(chart.readout, "span");
        if (chart.drawn.length > 1) element(entry, "i", { class: curve.kind });
        if (shown.length > 1 || raw) entry.append(`${curve.label}${raw && few ? " (smoothed)" : ""} `);
        const value = element(entry, "b");
        if (raw && few) entry.append(" raw ");
        return { curve, raw, value, rawValue: raw && few ? element(entry, "b") : null, dot: null };
      });
    }

    // The newest value at or before the step stands: an evaluation until the next one.
    read(chart) {
      const { x, y } = chart;
      const at = this.hovered ?? (this.zoom ? chart.last : Infinity);
      const inView = this.hovered !== null && this.hovered >= chart.first && this.hovered <= chart.last;
      chart.pointer.replaceChildren();
      if (inView) this.cursor(chart);
      const written = chart.stacked ? percent : number;
      for (const entry of chart.read) {
        const { curve, raw, value, rawValue } = entry;
        const place = placeAt(curve.steps, at);
        value.textContent = place < 0 ? "–" : written(curve.values[place]);
        if (rawValue) rawValue.textContent = place < 0 ? "–" : number(raw.values[place]);
        const isSeen = inView && place >= 0 && !curve.top && curve.steps[place] >= chart.first;
        if (isSeen && !entry.dot) entry.dot = element(chart.overlay, "svg:circle", { class: `dot ${curve.kind}`, r: 4.5 });
        if (!entry.dot) continue;
        entry.dot.setAttribute("visibility", isSeen ? "visible" : "hidden");
        if (!isSeen) continue;
        entry.dot.setAttribute("cx", x(curve.steps[place]));
        entry.dot.setAttribute("cy", y(curve.values[place]));
      }
    }

    cursor({ pointer, edge, x }) {
      const position = Math.round(x(this.hovered)) + 0.5;
      element(pointer, "svg:line", { class: "crosshair", x1: position, x2: position, y1: edge.top, y2: edge.bottom });
      const text = `step ${this.hovered.toLocaleString("en")}`;
      const half = text.length * 3.4 + 7;
      const middle = Math.min(Math.max(position, edge.left + half - 6), edge.right - half + 6);
      element(pointer, "svg:rect", { class: "step-pill", x: middle - half, y: edge.bottom + 4, width: half * 2, height: 20, rx: 5 });
      element(pointer, "svg:text", { class: "step-label", x: middle, y: edge.bottom + 18, "text-anchor": "middle" }, text);
    }

    hover(step) {
      if (step === this.hovered) return;
      this.hovered = step;
      this.charts.forEach((chart) => this.read(chart));
    }
  }

  return { Charts, number, percent, placeAt };
})();

// A panel with curves over the seconds of training. uPlot draws them; around it: a legend that tells the values under
// the pointer (or the newest), arrow keys, the same as a table, and what is missing when there is nothing to draw.

import uPlot from "../vendored/uPlot.esm.js";
import { colour, faint, onTheme } from "./colours.js";
import { make, makeSvg, mark, say } from "./dom.js";
import { UNKNOWN, duration, number, plain } from "./format.js";

const DASHES = { solid: [], dashed: [7, 4], dotted: [2, 3] };
const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800];
const FONT = "11px Inter, system-ui, sans-serif";
const TABLE_ROWS = 24;

/**
 * Options: series: [{name, colour, dash, right (axis), points, filled, show (value -> text)}]; isLow: it needs little
 * height; logarithmic: offer that scale; left, right: {range(min, max) -> [from, to], show(value), steps, size}.
 */
export class LineChart {
  #plot = null;
  #data = null;
  #isLogarithmic = false;
  #index = null;

  constructor(panel, options) {
    this.options = options;
    this.name = panel.querySelector("h2").textContent;
    this.missing = make("p", { class: "missing", hidden: "" });
    this.legend = make("ul", { class: "legend" });
    this.values = options.series.map((one) => {
      const value = make("b", {}, UNKNOWN);
      this.legend.append(make("li", {}, sample(one), one.name, value));
      return value;
    });
    this.moment = make("span");
    this.legend.append(make("li", { class: "moment" }, this.moment));
    this.frame = make("div", { class: options.isLow ? "plot low" : "plot", tabindex: "0", role: "group", "aria-roledescription": "chart" });
    this.table = make("div", { class: "as-table", tabindex: "0", role: "region", "aria-label": `${this.name} as a table`, hidden: "" });
    this.body = make("div", { class: "drawing" }, this.legend, this.frame, this.table);
    panel.append(this.missing, this.body);
    this.tools = panel.querySelector("header");
    if (options.logarithmic) {
      this.#tool("log", "log scale", (isOn) => {
        this.#isLogarithmic = isOn;
        this.#rebuild();
      });
    }
    this.#tool("table", "as a table", (isOn) => {
      mark(this.frame, "hidden", isOn ? "" : null);
      mark(this.table, "hidden", isOn ? null : "");
      this.#fillTable();
    });
    this.frame.addEventListener("keydown", (event) => this.#onKey(event));
    this.frame.addEventListener("blur", () => this.#point(null));
    new ResizeObserver(() => this.#fit()).observe(this.frame);
    onTheme(() => this.#plot?.redraw(false, true));
  }

  /** Draw data ([seconds, values, ...], null where there is none), or say why there is nothing (`missing`). */
  set(data, missing) {
    const isEmpty = Boolean(missing) || !data[0].length;
    say(this.missing, missing || "No data yet.");
    mark(this.missing, "hidden", isEmpty ? null : "");
    mark(this.body, "hidden", isEmpty ? "" : null);
    mark(this.tools.querySelector(".tools-of-chart"), "hidden", isEmpty ? "" : null);
    this.#data = isEmpty ? null : data;
    if (isEmpty) return;
    if (this.#plot) this.#plot.setData(this.#shown());
    else this.#rebuild();
    this.#tell(this.#index);
    this.#fillTable();
    mark(this.frame, "aria-label", `${this.name}: ${this.#summary()}. Arrow keys read values.`);
  }

  // Only what is above zero has a logarithm.
  #shown() {
    if (!this.#isLogarithmic) return this.#data;
    const [seconds, ...values] = this.#data;
    const drop = (one, series) => (series.right ? one : one.map((value) => (value > 0 ? value : null)));
    return [seconds, ...values.map((one, index) => drop(one, this.options.series[index]))];
  }

  #tool(text, label, act) {
    let tools = this.tools.querySelector(".tools-of-chart");
    if (!tools) {
      tools = make("div", { class: "tools-of-chart" });
      this.tools.append(tools);
    }
    const button = make("button", { type: "button", class: "tool", "aria-pressed": "false", "aria-label": `${this.name}: ${label}` }, text);
    button.addEventListener("click", () => {
      const isOn = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", isOn);
      act(isOn);
    });
    tools.append(button, " ");
  }

  #rebuild() {
    this.#plot?.destroy();
    this.#plot = null;
    const { clientWidth: width, clientHeight: height } = this.frame;
    if (!this.#data || !width) return;
    this.#plot = new uPlot(this.#options(width, height), this.#shown(), this.frame);
    const canvas = this.frame.querySelector("canvas");
    canvas.setAttribute("aria-hidden", "true"); // what it shows the frame says, and the table
  }

  #fit() {
    const { clientWidth: width, clientHeight: height } = this.frame;
    if (!width) return;
    if (this.#plot) this.#plot.setSize({ width, height });
    else this.#rebuild();
  }

  #options(width, height) {
    const { series, left = {}, right } = this.options;
    const axis = (given, scale) => ({
      scale,
      side: scale === "right" ? 1 : 3,
      stroke: () => colour("muted"),
      font: FONT,
      size: given.size ?? 42,
      gap: 4,
      ...(given.steps ? { incrs: given.steps } : {}),
      ticks: { show: false },
      grid: { show: scale === "left", stroke: () => colour("grid"), width: 1 },
      space: 26,
      values: (_, splits) => splits.map((one) => (one === null ? "" : (given.show ?? plain)(one))),
    });
    const range = (given) => (plot, low, high) => {
      if (low === null) return [0, 1];
      if (given === left && this.#isLogarithmic) return [low / 1.3, high * 1.3];
      return given.range ? given.range(low, high) : [Math.min(0, low), high > low || high > 0 ? Math.max(high * 1.08, 1e-9) : 1];
    };
    return {
      width,
      height,
      padding: [8, right ? 0 : 22, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        drag: { x: false, y: false },
        sync: { key: "time", setSeries: false },
        points: { size: 7, fill: (plot, index) => colour(series[index - 1].colour) },
      },
      hooks: { setCursor: [(plot) => this.#tell(plot.cursor.idx)] },
      scales: {
        x: { time: false, range: (plot, low, high) => [0, Math.max(high ?? 0, 2)] },
        left: { range: range(left), distr: this.#isLogarithmic ? 3 : 1 },
        ...(right ? { right: { range: range(right) } } : {}),
      },
      axes: [
        {
          stroke: () => colour("muted"),
          font: FONT,
          size: 24,
          gap: 4,
          space: 64,
          incrs: TIMES,
          ticks: { show: false },
          grid: { show: false },
          values: (_, splits) => splits.map((one) => (one === 0 ? "0" : duration(one).replace(/^(\d)\.0/, "$1"))),
        },
        axis(left, "left"),
        ...(right ? [axis(right, "right")] : []),
      ],
      series: [
        {},
        ...series.map((one) => ({
          scale: one.right ? "right" : "left",
          stroke: () => colour(one.colour),
          width: one.points || one.right ? 1.5 : 2,
          ...(one.filled ? { fill: () => faint(one.colour) } : {}),
          dash: DASHES[one.dash ?? "solid"],
          spanGaps: true,
          points: { show: Boolean(one.points), size: 6, fill: () => colour(one.colour), stroke: () => colour("panel"), width: 1 },
        })),
      ],
    };
  }

  /** Say the values at an index, or the newest ones. */
  #tell(index) {
    this.#index = index ?? null;
    if (!this.#data) return;
    const [seconds, ...values] = this.#data;
    const at = this.#index === null ? seconds.length - 1 : Math.min(this.#index, seconds.length - 1);
    values.forEach((one, number_) => say(this.values[number_], this.#text(number_, lastKnown(one, at))));
    say(this.moment, this.#index === null ? "" : `at ${duration(seconds[at])}`);
  }

  #text(number_, value) {
    return value === null ? UNKNOWN : (this.options.series[number_].show ?? number)(value);
  }

  #point(index) {
    if (!this.#plot) return;
    if (index === null) {
      this.#plot.setCursor({ left: -10, top: -10 });
      return;
    }
    const left = this.#plot.valToPos(this.#data[0][index], "x");
    this.#plot.setCursor({ left, top: 10 });
  }

  #onKey(event) {
    if (!this.#data) return;
    const last = this.#data[0].length - 1;
    const now = this.#index ?? last + 1;
    const step = event.shiftKey ? 10 : 1;
    const next = { ArrowLeft: now - step, ArrowRight: now + step, Home: 0, End: last, Escape: null }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    mark(this.legend, "aria-live", next === null ? null : "polite");
    this.#point(next === null ? null : Math.min(Math.max(next, 0), last));
  }

  #summary() {
    const [seconds, ...values] = this.#data;
    const parts = this.options.series.map((one, index) => {
      const known = values[index].filter((value) => value !== null && value !== undefined);
      return known.length ? `${one.name} ${this.#text(index, known[0])} at first, ${this.#text(index, known[known.length - 1])} now` : "";
    });
    return `${parts.filter(Boolean).join("; ")}; over ${duration(seconds[seconds.length - 1])}`;
  }

  #fillTable() {
    if (this.table.hidden || !this.#data) return;
    const [seconds, ...values] = this.#data;
    const step = Math.max(1, Math.ceil(seconds.length / TABLE_ROWS));
    const rows = [];
    for (let index = seconds.length - 1; index >= 0; index -= step) {
      const cells = values.map((one, number_) => make("td", {}, this.#text(number_, one[index] ?? null)));
      rows.push(make("tr", {}, make("th", { scope: "row" }, duration(seconds[index])), ...cells));
    }
    const heads = ["time", ...this.options.series.map((one) => one.name)].map((one) => make("th", { scope: "col" }, one));
    this.table.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)));
  }
}

/** Two tables of the same kind of columns as one, by time: [seconds, ...] and [seconds, ...]. */
export function joined(one, other) {
  return other[0].length ? uPlot.join([one, other]).map((column) => Array.from(column, (value) => value ?? null)) : [...one, ...other.slice(1)];
}

function lastKnown(values, index) {
  for (let at = index; at >= 0; at -= 1) {
    const value = values[at];
    if (value !== null && value !== undefined) return value;
  }
  return null;
}

// What a curve looks like, so that it differs by more than its colour.
function sample(one) {
  const line = makeSvg("line", { x1: 1, y1: 5, x2: 21, y2: 5, "stroke-width": 2.4, class: `of-${one.colour}`, "stroke-dasharray": DASHES[one.dash ?? "solid"].join(" ") || "none" });
  const dot = one.points ? [makeSvg("circle", { cx: 11, cy: 5, r: 3.4, class: `of-${one.colour}` })] : [];
  return makeSvg("svg", { width: 22, height: 10, "aria-hidden": "true" }, line, ...dot);
}

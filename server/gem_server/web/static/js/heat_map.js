// Pi of each tensor over time (figures 9 and 10 of the paper): a row a tensor, a column a stretch of time.

import { colour, heat, onTheme } from "./colours.js";
import { make, say } from "./dom.js";
import { count, duration, number, plain } from "./format.js";
import { FONT, View, fitted, widest } from "./view.js";

const LABEL_LINE = 12;
const AXIS = 18;
const STEPS = [1, 1.5, 2, 3, 5, 7.5, 10];

export class HeatMap extends View {
  constructor(panel) {
    super(panel, "Point at a cell, or use arrow keys, to read tensor, time and pi.");
    this.names = [];
    this.kept = [];
    this.field = "mean_pi";
    this.most = 1;
    this.#addSwitch(panel);
    this.highest = make("span");
    this.ramp = make("canvas", { width: "132", height: "10", "aria-hidden": "true" });
    const scale = make("p", { class: "scale" }, "0: blocked", this.ramp, this.highest, make("span", { class: "none" }, "nothing moved"));
    this.body.prepend(scale);
    const pen = this.ramp.getContext("2d");
    for (let x = 0; x < 132; x += 1) {
      pen.fillStyle = heat(x / 131);
      pen.fillRect(x, 0, 1, 10);
    }
    onTheme(() => this.redraw());
  }

  #addSwitch(panel) {
    const tools = make("div");
    const buttons = [["mean", "mean_pi"], ["median", "median_pi"]].map(([text, field]) => {
      const button = make("button", { type: "button", class: "tool", "aria-pressed": String(field === this.field) }, text);
      button.addEventListener("click", () => {
        this.field = field;
        for (const one of buttons) one.setAttribute("aria-pressed", String(one === button));
        this.set(this.names, this.kept);
      });
      return button;
    });
    tools.append(buttons[0], " ", buttons[1]);
    panel.querySelector("header").append(tools);
  }

  set(names, columns, missing) {
    this.names = names;
    this.kept = columns;
    const values = columns.flatMap((one) => one[this.field]).filter((value) => value !== null).sort((one, other) => one - other);
    const large = values.length ? values[Math.floor(0.99 * (values.length - 1))] : 0;
    this.most = ceiling(Math.max(large, 0.05));
    this.isCut = values.length > 0 && values[values.length - 1] > this.most;
    say(this.highest, `${this.isCut ? "≥ " : ""}${plain(this.most)}`);
    this.show(missing);
  }

  get rows() {
    return this.names.length;
  }

  get columns() {
    return this.kept.length;
  }

  lowest() {
    return Math.max(1.5 * this.rows, Math.min(20 * this.rows, 232)) + AXIS;
  }

  draw(pen, width, height) {
    this.row = Math.min(34, (height - AXIS) / this.rows);
    pen.font = FONT;
    this.left = widest(pen, this.names, width * 0.3) + 10;
    const { left, row, rows, columns } = this;
    const column = (width - left) / Math.max(1, columns);
    pen.textBaseline = "middle";
    const gap = row > 6 ? 1 : 0;
    for (let y = 0; y < rows; y += 1) {
      for (let x = 0; x < columns; x += 1) {
        const value = this.kept[x][this.field][y];
        pen.fillStyle = value === null || value === undefined ? colour("raised") : heat(value / this.most);
        // Whole pixels to the next cell, so that no seam shows.
        const from = Math.round(left + x * column);
        pen.fillRect(from, y * row, Math.round(left + (x + 1) * column) - from - (column > 8 ? 1 : 0), row - gap + (gap ? 0 : 0.5));
      }
    }
    pen.fillStyle = colour("muted");
    const every = Math.ceil(LABEL_LINE / row);
    for (let y = 0; y < rows; y += every) pen.fillText(fitted(pen, this.names[y], left - 9), 0, Math.max((y + 0.5) * row + 0.5, LABEL_LINE / 2));
    this.#drawTimes(pen, width, column);
    if (this.cell) {
      pen.strokeStyle = colour("text");
      pen.lineWidth = 2;
      pen.strokeRect(left + this.cell.column * column, this.cell.row * row, column, Math.max(row, 3));
      pen.fillStyle = colour("text");
    }
  }

  #drawTimes(pen, width, column) {
    const marks = Math.max(2, Math.min(8, Math.floor((width - this.left) / 80)));
    pen.fillStyle = colour("muted");
    for (let x = 0; x < this.columns; x += Math.ceil(this.columns / marks)) {
      const text = duration(this.kept[x].run_seconds);
      const middle = this.left + (x + 0.5) * column - pen.measureText(text).width / 2;
      const place = Math.min(Math.max(middle, this.left), width - pen.measureText(text).width);
      pen.fillText(text, place, this.rows * this.row + AXIS - 7);
    }
  }

  cellAt(x, y) {
    if (x < this.left || y >= this.rows * this.row) return null;
    const column = Math.floor(((x - this.left) / (this.view.clientWidth - this.left)) * this.columns);
    return { row: Math.floor(y / this.row), column: Math.min(column, this.columns - 1) };
  }

  describe({ row, column }) {
    const seen = this.kept[column];
    const value = seen[this.field][row];
    const kind = this.field === "mean_pi" ? "mean" : "median";
    const said = value === null ? "no element moved" : `${kind} pi ${number(value)}`;
    return `${this.names[row]} · ${duration(seen.run_seconds)} · version ${count(seen.clock)} · ${said}`;
  }

  summary() {
    const last = this.kept[this.kept.length - 1];
    const known = (last?.[this.field] ?? []).filter((value) => value !== null);
    if (!known.length) return `${this.rows} tensors.`;
    return `${this.rows} tensors; at ${duration(last.run_seconds)} pi is between ${number(Math.min(...known))} and ${number(Math.max(...known))}.`;
  }
}

function ceiling(value) {
  const size = 10 ** Math.floor(Math.log10(value));
  return size * STEPS.find((step) => step * size >= value - 1e-12);
}

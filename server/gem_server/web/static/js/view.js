// A canvas of rows and columns that is read by pointer, by touch and by arrow keys: what is under them a line below says.

import { onTheme } from "./colours.js";
import { make, mark, say } from "./dom.js";

export const FONT = "11px Inter, system-ui, sans-serif";

/**
 * For subclasses: `lowest(width)` returns the height it needs; `draw(pen, width, height)`; `rows` and `columns` of what
 * can be read; `cellAt(x, y)` -> {row, column} or null; `describe(cell)` and `summary()` in words.
 */
export class View {
  #frame = 0;

  constructor(panel, hint) {
    this.panel = panel;
    this.name = panel.querySelector("h2").textContent;
    this.hint = hint;
    this.cell = null;
    this.missing = make("p", { class: "missing", hidden: "" });
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.view = make("div", { class: "view", tabindex: "0", role: "group", "aria-roledescription": "chart" }, this.canvas);
    this.readout = make("output", { class: "readout" }, hint);
    this.body = make("div", { class: "drawing" }, this.view, this.readout);
    panel.append(this.missing, this.body);
    this.view.addEventListener("pointermove", (event) => this.#onPointer(event));
    this.view.addEventListener("pointerdown", (event) => this.#onPointer(event));
    this.view.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.#read(null));
    this.view.addEventListener("keydown", (event) => this.#onKey(event));
    this.view.addEventListener("blur", () => this.#read(null));
    new ResizeObserver(() => this.redraw()).observe(this.view);
    onTheme(() => this.redraw());
  }

  /** Show what is there now, or say why there is nothing. */
  show(missing) {
    say(this.missing, missing ?? "");
    mark(this.missing, "hidden", missing ? null : "");
    mark(this.body, "hidden", missing ? "" : null);
    if (missing) return;
    mark(this.view, "aria-label", `${this.name}: ${this.summary()} Arrow keys read values.`);
    mark(this.readout, "aria-live", "off"); // what changes by itself is not read aloud
    if (this.cell && (this.cell.row >= this.rows || this.cell.column >= this.columns)) this.cell = null;
    this.#tell();
    this.redraw();
  }

  /** Draw again with the next frame. */
  redraw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => {
      const width = this.view.clientWidth;
      if (!width || !this.rows) return;
      this.view.style.minHeight = `${Math.ceil(this.lowest(width))}px`;
      const height = this.view.clientHeight;
      const ratio = window.devicePixelRatio || 1;
      if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
        this.canvas.width = Math.round(width * ratio);
        this.canvas.height = Math.round(height * ratio);
      }
      const pen = this.canvas.getContext("2d");
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, width, height);
      this.draw(pen, width, height);
    });
  }

  #onPointer(event) {
    const box = this.canvas.getBoundingClientRect();
    this.#read(this.cellAt(event.clientX - box.left, event.clientY - box.top));
  }

  #onKey(event) {
    const { row, column } = this.cell ?? { row: 0, column: this.columns };
    const step = event.shiftKey ? 10 : 1;
    const next = {
      ArrowLeft: [row, column - step],
      ArrowRight: [row, column + step],
      ArrowUp: [row - step, Math.min(column, this.columns - 1)],
      ArrowDown: [this.cell ? row + step : row, Math.min(column, this.columns - 1)],
      Home: [row, 0],
      End: [row, this.columns - 1],
    }[event.key];
    if (event.key === "Escape") this.#read(null);
    if (!next) return;
    event.preventDefault();
    mark(this.readout, "aria-live", "polite");
    const within = (value, size) => Math.min(Math.max(value, 0), size - 1);
    this.#read({ row: within(next[0], this.rows), column: within(next[1], this.columns) });
  }

  #read(cell) {
    this.cell = cell;
    this.#tell();
    this.redraw();
  }

  #tell() {
    say(this.readout, this.cell ? this.describe(this.cell) : this.hint);
  }
}

/** The names, or what tells them apart where one of them does not fit: worker-1 and worker-2 become 1 and 2. */
export function distinct(pen, names, width) {
  if (names.every((one) => pen.measureText(one).width <= width)) return names;
  let shared = 0;
  while (names.length > 1 && names.every((one) => one.length > shared + 1 && one[shared] === names[0][shared])) shared += 1;
  while (shared && /\d/.test(names[0][shared - 1])) shared -= 1; // a number stays whole
  return names.map((one) => fitted(pen, one.slice(shared), width));
}

/** The text, shortened in its middle until it fits: both ends of a tensor's name tell it from others. */
export function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  for (let kept = text.length - 1; kept > 0; kept -= 1) {
    const shown = `${text.slice(0, Math.ceil(kept / 2))}…${text.slice(text.length - Math.floor(kept / 2))}`;
    if (pen.measureText(shown).width <= width) return shown;
  }
  return "…";
}

/** The width of the widest text, or `most`. */
export function widest(pen, texts, most) {
  let width = 0;
  for (const text of texts) {
    width = Math.max(width, pen.measureText(text).width);
    if (width >= most) return most;
  }
  return width;
}

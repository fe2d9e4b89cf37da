// Staleness of each worker: a row a worker, a bar for each bucket of its histogram, with last, mean and p99.

import { colour, heat } from "./colours.js";
import { make, say } from "./dom.js";
import { count, mean, percent } from "./format.js";
import { FONT, View, fitted, widest } from "./view.js";

const AXIS = 18;
const TOP = 16;
const FIGURES = 78; // px on the right, for mean and p99
const BARS_FROM = 15; // px a row: below that a shade tells more than a bar

export class Staleness extends View {
  constructor(panel) {
    super(panel, "Point at a bar, or use arrow keys, to read it.");
    this.workers = [];
    this.bounds = [];
    this.shown = 1;
    this.key = make("p", { class: "scale" });
    this.body.prepend(this.key);
  }

  set(workers, bounds, missing) {
    this.workers = workers.filter((one) => (one.staleness?.counts ?? []).some(Boolean));
    this.bounds = bounds;
    const highest = (counts) => counts.reduce((last, one, index) => (one ? index : last), 0);
    this.shown = 1 + Math.max(2, ...this.workers.map((one) => highest(one.staleness.counts)));
    this.show(missing || (this.workers.length ? "" : "Waiting for commits: no worker has made one yet."));
  }

  get rows() {
    return this.workers.length;
  }

  get columns() {
    return this.shown;
  }

  lowest() {
    return Math.max(2 * this.rows, Math.min(34 * this.rows, 200)) + TOP + AXIS;
  }

  draw(pen, width, height_) {
    this.row = Math.min(56, (height_ - TOP - AXIS) / this.rows);
    pen.font = FONT;
    this.left = widest(pen, this.workers.map((one) => one.name), width * 0.3) + 10;
    this.right = width - FIGURES;
    const { left, right, row } = this;
    const column = (right - left) / this.columns;
    pen.textBaseline = "middle";
    say(this.key, row >= BARS_FROM ? "bars: share of its commits ▲ the newest" : "the brighter, the more of its commits");
    const every = Math.ceil(12 / row);
    this.workers.forEach((worker, y) => {
      const { counts } = worker.staleness;
      const all = counts.reduce((sum, one) => sum + one, 0);
      const most = Math.max(...counts);
      const top = TOP + y * row;
      for (let x = 0; x < this.columns; x += 1) {
        const part = counts[x] / most;
        if (row >= BARS_FROM) {
          pen.fillStyle = colour("raised");
          pen.fillRect(left + x * column + 1, top + row - 4, column - 2, 1);
          pen.fillStyle = colour("blue");
          const height = part ? Math.max(1.5, part * (row - 9)) : 0;
          pen.fillRect(left + x * column + 1, top + row - 3 - height, column - 2, height);
        } else {
          pen.fillStyle = counts[x] ? heat(0.15 + 0.85 * part) : colour("raised");
          pen.fillRect(left + x * column, top, column - 0.5, row > 4 ? row - 1 : row);
        }
      }
      if (y % every === 0) {
        pen.fillStyle = colour("text");
        pen.textAlign = "left";
        pen.fillText(fitted(pen, worker.name, left - 9), 0, top + row / 2);
        pen.textAlign = "right";
        pen.fillText(mean(worker.staleness.sum / all), width - 36, top + row / 2);
        pen.fillText(mean(worker.staleness_p99), width, top + row / 2);
        pen.textAlign = "left";
      }
      if (row >= BARS_FROM) {
        const place = this.bounds.findIndex((bound) => worker.staleness_last <= bound);
        const x = left + ((place < 0 ? this.columns - 1 : Math.min(place, this.columns - 1)) + 0.5) * column;
        pen.fillStyle = colour("orange");
        pen.beginPath();
        pen.moveTo(x, top + row - 3.5);
        pen.lineTo(x - 4, top + row + 2.5);
        pen.lineTo(x + 4, top + row + 2.5);
        pen.fill();
      }
    });
    this.#drawHeads(pen, width);
    this.#drawBuckets(pen, column);
    if (this.cell) {
      pen.strokeStyle = colour("text");
      pen.lineWidth = 1.5;
      pen.strokeRect(left + this.cell.column * column, TOP + this.cell.row * row + 1, column, Math.max(row - 2, 3));
    }
  }

  #drawHeads(pen, width) {
    pen.fillStyle = colour("muted");
    pen.textAlign = "right";
    pen.fillText("mean", width - 36, TOP / 2 - 1);
    pen.fillText("p99", width, TOP / 2 - 1);
    pen.textAlign = "left";
  }

  #drawBuckets(pen, column) {
    pen.fillStyle = colour("muted");
    pen.textAlign = "center";
    const names = Array.from({ length: this.columns }, (_, x) => this.#bucket(x));
    const every = Math.ceil((widest(pen, names, 200) + 8) / column);
    for (let x = 0; x < this.columns; x += every) {
      pen.fillText(names[x], this.left + (x + 0.5) * column, TOP + this.rows * this.row + AXIS - 6);
    }
    pen.textAlign = "left";
  }

  #bucket(index) {
    if (index >= this.bounds.length) return `> ${this.bounds[this.bounds.length - 1]}`;
    const upper = this.bounds[index];
    const lower = index ? this.bounds[index - 1] + 1 : 0;
    return lower >= upper ? String(upper) : `${lower}–${upper}`;
  }

  cellAt(x, y) {
    if (x < this.left || x >= this.right || y < TOP || y >= TOP + this.rows * this.row) return null;
    return { row: Math.floor((y - TOP) / this.row), column: Math.floor(((x - this.left) / (this.right - this.left)) * this.columns) };
  }

  describe({ row, column }) {
    const worker = this.workers[row];
    const { counts } = worker.staleness;
    const all = counts.reduce((sum, one) => sum + one, 0);
    return `${worker.name} · staleness ${this.#bucket(column)}: ${count(counts[column])} commits, ${percent(counts[column] / all)} · last ${worker.staleness_last}`;
  }

  summary() {
    const one = (worker) => `${worker.name} ${mean(worker.staleness_mean)}`;
    return `mean of ${this.workers.slice(0, 8).map(one).join(", ")}${this.workers.length > 8 ? " and others" : ""}.`;
  }
}

// Commits of each worker, as bars: what fairness is made of.

import { colour, faint } from "./colours.js";
import { count, percent } from "./format.js";
import { condition } from "./run.js";
import { FONT, View, distinct } from "./view.js";

const LOWEST = 150;
const AXIS = 18;
const TOP = 18;
const WIDEST = 58; // px a bar

export class Share extends View {
  constructor(panel) {
    super(panel, "Point at a bar, or use arrow keys, to read it.");
    this.workers = [];
  }

  set(workers, missing) {
    this.workers = workers;
    this.most = Math.max(1, ...workers.map((one) => one.commits));
    this.mean = workers.reduce((sum, one) => sum + one.commits, 0) / Math.max(1, workers.length);
    this.show(missing || (workers.length ? "" : "Waiting for workers: none has joined yet."));
  }

  get rows() {
    return this.workers.length ? 1 : 0;
  }

  get columns() {
    return this.workers.length;
  }

  lowest() {
    return LOWEST + AXIS;
  }

  draw(pen, width, height_) {
    const floor = height_ - AXIS;
    this.floor = floor;
    const column = width / this.columns;
    const gap = column > 12 ? Math.max(column - WIDEST, column * 0.2) : column > 4 ? 1 : 0;
    pen.font = FONT;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.strokeStyle = colour("text");
    pen.lineWidth = 1;
    pen.setLineDash([5, 4]);
    pen.beginPath();
    const y = Math.round(floor - ((floor - TOP) * this.mean) / this.most) + 0.5;
    pen.moveTo(0, y);
    pen.lineTo(width, y);
    pen.stroke();
    pen.setLineDash([]);
    const labels = distinct(pen, this.workers.map((one) => one.name), column - 4);
    this.workers.forEach((worker, x) => {
      const height = ((floor - TOP) * worker.commits) / this.most;
      const isTroubled = Boolean(condition(worker));
      const shade = isTroubled ? "orange" : "blue";
      pen.fillStyle = faint(shade, isTroubled ? 0.6 : 0.3);
      pen.fillRect(x * column + gap / 2, floor - height, column - gap, height);
      pen.fillStyle = colour(shade);
      pen.fillRect(x * column + gap / 2, floor - height, column - gap, 2);
      if (isTroubled && column > 6) hatch(pen, x * column + gap / 2, floor - height, column - gap, height);
      if (column >= 34) {
        const text = count(worker.commits);
        const middle = Math.max(7, floor - height - 9);
        clear(pen, (x + 0.5) * column, middle, pen.measureText(text).width); // so that the line of the mean does not cross it
        pen.fillStyle = colour("text");
        pen.fillText(text, (x + 0.5) * column, middle);
        pen.fillStyle = colour("muted");
        pen.fillText(labels[x], (x + 0.5) * column, floor + AXIS - 7);
      }
    });
    if (column < 34) {
      pen.fillStyle = colour("muted");
      pen.fillText(`${this.columns} workers, by rank; the most: ${count(this.most)}`, width / 2, floor + AXIS - 7);
    }
    pen.textAlign = "left";
    pen.strokeStyle = colour("text");
    if (this.cell) pen.strokeRect(this.cell.column * column + 0.5, 0.5, Math.max(column - 1, 2), floor - 1);
  }

  cellAt(x, y) {
    if (y > this.floor) return null;
    return { row: 0, column: Math.min(this.columns - 1, Math.floor((x / this.view.clientWidth) * this.columns)) };
  }

  describe({ column }) {
    const worker = this.workers[column];
    const all = this.workers.reduce((sum, one) => sum + one.commits, 0);
    const trouble = condition(worker);
    return `${worker.name}${trouble ? ` (${trouble})` : ""} · ${count(worker.commits)} commits, ${percent(all ? worker.commits / all : 0)} of all`;
  }

  summary() {
    const least = Math.min(...this.workers.map((one) => one.commits));
    return `from ${count(least)} to ${count(this.most)} commits, mean ${count(this.mean)}.`;
  }
}

function clear(pen, x, y, width) {
  pen.fillStyle = colour("panel");
  pen.fillRect(x - width / 2 - 3, y - 7, width + 6, 14);
}

// So that a worker in trouble differs by more than its colour.
function hatch(pen, x, y, width, height) {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, width, height);
  pen.clip();
  pen.strokeStyle = colour("panel");
  pen.lineWidth = 2;
  pen.beginPath();
  for (let at = x - height; at < x + width; at += 8) {
    pen.moveTo(at, y + height);
    pen.lineTo(at + height, y);
  }
  pen.stroke();
  pen.restore();
}

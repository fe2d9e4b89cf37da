// The table of workers: who needs a look and why, in words; sorted by any column, also with the keyboard.

import { byId, define, make, makeSvg, mark, say } from "./dom.js";
import { UNKNOWN, bytes, count, duration, mean, number, percent, shortTime, word } from "./format.js";
import { CONDITIONS, condition, isLive } from "./run.js";

// Each has a different shape, not only a different colour.
const SHAPES = {
  well: { d: "M8 4.2a3.8 3.8 0 1 0 .01 0z", fill: "currentColor" },
  gone: { d: "M3.5 3.5l9 9M12.5 3.5l-9 9" },
  silent: { d: "M5.2 3v10M10.8 3v10" },
  slow: { d: "M1.8 4h12.4L8 13.2z", fill: "currentColor" },
  muted: { d: "M8 2.2a5.8 5.8 0 1 0 .01 0zM4 4l8 8" },
  away: { d: "M3 8.4l3.4 3.4L13 5" },
  up: { d: "M3.5 10L8 5.5l4.5 4.5" },
};

const COLUMNS = [
  { key: "name", text: true, head: "worker", about: "Name it joined with; its rank decides the order.", sort: (one) => one.rank, show: (one) => one.name },
  { key: "state", text: true, head: "state", about: "joined, training, finished (spent its budget), left; or what is wrong: gone (its session expired), silent (not heard of for 10 s), slow (less than half the median’s commits), muted (nearly all it commits is blocked).", sort: (one) => urgency(one), show: stateWord },
  { key: "device", text: true, head: "device", about: "Where it computes, as it said when it joined.", sort: (one) => one.device, show: (one) => one.device || UNKNOWN },
  { key: "host", text: true, head: "host", about: "Its machine or container, and what started it there.", sort: host, show: (one) => host(one) || UNKNOWN },
  { key: "commits", head: "commits", about: "Applied commits of this name, over all its sessions.", sort: (one) => one.commits, show: (one) => count(one.commits) },
  { key: "steps", head: "local steps", about: "Gradients in its commits, or steps of the worker's optimizer.", sort: (one) => one.local_steps, show: (one) => count(one.local_steps) },
  { key: "rate", head: "commits/s", about: "Commits a second over the last ten seconds.", sort: (one) => one.commits_per_second, show: (one) => number(one.commits_per_second) },
  { key: "loss", head: "loss", about: "Training loss of its newest commit.", sort: (one) => one.loss, show: (one) => number(one.loss) },
  { key: "staleness", head: "staleness", about: "Commits of others between its snapshot and its commit, mean over its commits.", sort: (one) => one.staleness_mean, show: (one) => (one.commits ? mean(one.staleness_mean) : UNKNOWN) },
  { key: "pi", head: "pi", about: "Mean factor over its last 20 commits or so.", sort: piOf, show: (one) => number(piOf(one)) },
  { key: "blocked", head: "blocked", about: "Share of elements that its commits could not move, over the last 20 or so.", sort: blockedOf, show: (one) => percent(blockedOf(one)) },
  { key: "wait", head: "wait p99", about: "99 % of its commits waited no longer in the server’s queue.", sort: (one) => one.wait_p99_seconds, show: (one) => (one.wait_p99_seconds ? shortTime(one.wait_p99_seconds) : UNKNOWN) },
  { key: "received", head: "received", about: "Payload that the server has received of it.", sort: (one) => one.bytes_received, show: (one) => bytes(one.bytes_received) },
  { key: "seen", head: "last seen", about: "Since the server heard of it last; short times are a step of it.", sort: (one) => one.seconds_since_last_call, show: (one) => (one.seconds_since_last_call < 1 ? "now" : `${duration(one.seconds_since_last_call)} ago`) },
];

function host(worker) {
  return [worker.host_name, worker.engine && `(${worker.engine})`].filter(Boolean).join(" ");
}

function piOf(worker) {
  return worker.recent_mean_pi ?? worker.statistics?.mean_pi;
}

function blockedOf(worker) {
  return worker.recent_blocked_fraction ?? worker.statistics?.blocked_fraction;
}

function stateWord(worker) {
  return worker.quarantined ? "quarantined" : condition(worker) || word(worker.state, "WORKER_STATE_");
}

function urgency(worker) {
  const place = CONDITIONS.indexOf(condition(worker));
  return place < 0 ? (isLive(worker) ? CONDITIONS.length : CONDITIONS.length + 1) : place;
}

/** Why a worker needs a look, in a sentence; "" for one that does not. `usual`: the median of the rates. */
export function reason(worker, usual) {
  const silence = duration(worker.seconds_since_last_call);
  switch (condition(worker)) {
    case "gone":
      return `Not heard of for ${silence}, so its session has expired. The others train on; it may join again.`;
    case "silent":
      return `Not heard of for ${silence}: it computes for long, hangs, was killed or is cut off.`;
    case "slow":
      return `${number(worker.commits_per_second)} commits a second; the median is ${number(usual)}.`;
    case "muted":
      return `${percent(blockedOf(worker))} of its elements were blocked: others had moved the parameters on.`;
    default:
      return "";
  }
}

/** The median of the rates of those who train. */
export function usualRate(workers) {
  const rates = workers.filter((one) => one.state === "WORKER_STATE_TRAINING").map((one) => one.commits_per_second).sort((one, other) => one - other);
  const middle = rates.length >> 1;
  return rates.length % 2 ? rates[middle] : (rates[middle - 1] + rates[middle]) / 2;
}

export class WorkerTable {
  #rows = new Map();
  #key = "state"; // so that those who need a look come first
  #direction = 1;
  #workers = [];

  constructor() {
    const panel = byId("workers");
    this.missing = panel.querySelector(".missing");
    this.frame = panel.querySelector(".table-frame");
    this.body = panel.querySelector("tbody");
    this.heads = new Map();
    const row = make("tr", { role: "row" });
    const sorter = byId("sorter");
    for (const column of COLUMNS) {
      const button = make("button", { type: "button" }, column.head, icon("up", 10));
      button.addEventListener("click", () => this.#sortBy(column.key, column.key === this.#key ? -this.#direction : 1));
      const head = make("th", { scope: "col", role: "columnheader", class: column.text ? "text" : "" }, button);
      this.heads.set(column.key, head);
      row.append(head);
      sorter.append(make("option", { value: column.key }, column.head));
    }
    panel.querySelector("thead").append(row);
    sorter.addEventListener("change", () => this.#sortBy(sorter.value, 1));
    define(byId("columns"), []);
    byId("columns").replaceChildren(...COLUMNS.flatMap(({ head, about }) => [make("dt", {}, head), make("dd", {}, about)]));
    this.#sortBy(this.#key, 1);
  }

  set(workers, leftOut, missing) {
    this.#workers = workers;
    const usual = usualRate(workers);
    const isEmpty = !workers.length;
    say(this.missing, missing || "Waiting for workers: none has joined yet.");
    mark(this.missing, "hidden", isEmpty ? null : "");
    mark(this.frame, "hidden", isEmpty ? "" : null);
    const names = new Set(workers.map((one) => one.name));
    for (const [name, row] of this.#rows) {
      if (!names.has(name)) {
        row.element.remove();
        this.#rows.delete(name);
      }
    }
    for (const worker of workers) this.#renew(worker, usual);
    this.#order();
    const more = byId("workers-more");
    say(more, leftOut ? `and ${count(leftOut)} more, none of which needs a look` : "");
    mark(more, "hidden", leftOut ? null : "");
  }

  #renew(worker, usual) {
    let row = this.#rows.get(worker.name);
    if (!row) {
      row = newRow();
      this.#rows.set(worker.name, row);
      this.body.append(row.element);
    }
    row.worker = worker;
    const trouble = condition(worker);
    mark(row.element, "data-condition", trouble || null);
    mark(row.element, "data-away", !trouble && !isLive(worker) ? "" : null);
    for (const column of COLUMNS) say(row.texts.get(column.key), column.show(worker));
    say(row.reason, reason(worker, usual));
    mark(row.reason, "hidden", trouble ? null : "");
    const shape = trouble || (isLive(worker) && worker.state !== "WORKER_STATE_FINISHED" ? "well" : "away");
    if (row.shape !== shape) {
      row.shape = shape;
      row.icon.replaceChildren(icon(shape, 13));
    }
  }

  #sortBy(key, direction) {
    this.#key = key;
    this.#direction = direction;
    for (const [name, head] of this.heads) mark(head, "aria-sort", name === key ? (direction > 0 ? "ascending" : "descending") : null);
    byId("sorter").value = key;
    this.#order();
  }

  #order() {
    const { sort } = COLUMNS.find((one) => one.key === this.#key);
    const wanted = [...this.#workers].sort((one, other) => this.#direction * compare(sort(one), sort(other)) || one.rank - other.rank);
    wanted.forEach((worker, index) => {
      const { element } = this.#rows.get(worker.name);
      if (this.body.children[index] !== element) this.body.insertBefore(element, this.body.children[index] ?? null);
    });
  }
}

function newRow() {
  const texts = new Map();
  const element = make("tr", { role: "row" });
  const reasonLine = make("span", { class: "reason", hidden: "" });
  const mark_ = make("span");
  for (const column of COLUMNS) {
    const text = make("span");
    const cell = make("td", { role: "cell", "data-label": column.head, class: column.text ? "text" : "" });
    if (column.key === "name") {
      cell.classList.add("name-cell");
      text.className = "name";
      cell.append(text, reasonLine);
    } else if (column.key === "state") {
      cell.append(make("span", { class: "state" }, mark_, text));
    } else {
      cell.append(text);
    }
    texts.set(column.key, text);
    element.append(cell);
  }
  return { element, texts, reason: reasonLine, icon: mark_, shape: "", worker: null };
}

function icon(name, size) {
  const { d, fill = "none" } = SHAPES[name];
  const path = makeSvg("path", { d, fill, stroke: fill === "none" ? "currentColor" : "none", "stroke-width": 2.3, "stroke-linecap": "round" });
  return makeSvg("svg", { width: size, height: size, viewBox: "0 0 16 16", "aria-hidden": "true" }, path);
}

function compare(one, other) {
  const isText = typeof one === "string" && typeof other === "string";
  return isText ? one.localeCompare(other) : (one ?? -Infinity) - (other ?? -Infinity);
}

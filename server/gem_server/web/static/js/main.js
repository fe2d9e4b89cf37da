// The page: takes the events, and renews with the next frame what they change.

import { offerThemes } from "./colours.js";
import { follow } from "./connection.js";
import { byId, make, mark, say } from "./dom.js";
import { notices, showFacts, showMemory, showQueue, showTiles, showTop } from "./facts.js";
import { bytes, count, percent, shortTime } from "./format.js";
import { HeatMap } from "./heat_map.js";
import { LineChart, joined } from "./line_chart.js";
import { Run } from "./run.js";
import { ShardTable } from "./shards.js";
import { Share } from "./share.js";
import { Staleness } from "./staleness.js";
import { WorkerTable } from "./workers.js";

const LINKS = {
  connecting: "connecting",
  live: "live",
  late: "no news",
  full: "too many viewers",
  lost: "no connection",
};

const run = new Run();
const link = { state: "connecting", text: "", ended: false };
const parts = { table: new WorkerTable(), shards: new ShardTable(), heat: new HeatMap(byId("tensors")), staleness: new Staleness(byId("staleness")), share: new Share(byId("share")) };
const percents = { size: 40, show: (value) => `${Math.round(100 * value)}\u202f%`, range: () => [0, 1] };
const charts = {
  loss: new LineChart(byId("loss"), {
    logarithmic: true,
    series: [
      { name: "training loss", colour: "blue", filled: true },
      { name: "test loss", colour: "orange", points: true, dash: "dashed" },
      { name: "test accuracy (right)", colour: "teal", points: true, dash: "dotted", right: true, show: percent },
    ],
    right: percents,
  }),
  pi: new LineChart(byId("pi"), {
    series: [
      { name: "mean pi", colour: "blue" },
      { name: "blocked (right)", colour: "orange", dash: "dashed", right: true, show: percent },
      { name: "clamped (right)", colour: "pink", dash: "dotted", right: true, show: percent },
    ],
    right: percents,
  }),
  rate: new LineChart(byId("rate"), { series: [{ name: "commits/s", colour: "blue", filled: true }] }),
  fairness: new LineChart(byId("fairness"), {
    isLow: true,
    left: { range: (low) => [Math.max(0, Math.min(0.9, Math.floor(low * 10) / 10)), 1.004], steps: [0.01, 0.02, 0.05, 0.1, 0.2, 0.5] },
    series: [{ name: "Jain’s index", colour: "blue", show: (value) => value.toFixed(4) }],
  }),
  wait: new LineChart(byId("wait"), {
    isLow: true,
    left: { show: shortTime, size: 52 },
    right: { steps: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000], size: 30, range: (low, high) => [0, Math.max(2, high * 1.1)] },
    series: [
      { name: "mean wait", colour: "blue", show: shortTime },
      { name: "queued (right)", colour: "orange", dash: "dashed", right: true, show: count },
    ],
  }),
  drift: new LineChart(byId("drift"), {
    isLow: true,
    logarithmic: true,
    series: [
      { name: "proxy", colour: "blue" },
      { name: "drift", colour: "orange", dash: "dashed" },
      { name: "update", colour: "teal", dash: "dotted" },
    ],
  }),
  memory: new LineChart(byId("memory"), {
    isLow: true,
    left: { show: bytes, size: 58, steps: Array.from({ length: 44 }, (_, power) => 2 ** power) },
    series: [{ name: "process", colour: "blue", filled: true, show: bytes }],
  }),
};

offerThemes(byId("theme"));

/** Why a panel with curves is empty; "" where it is not. */
function missing() {
  if (!run.status) return "Waiting for the server’s first report.";
  if (run.state === "waiting") return "Waiting for workers: training has not begun.";
  if (!run.intervals.length) return "Waiting for the first seconds of training.";
  return "";
}

function drawCharts() {
  const none = missing();
  const column = (read) => run.intervals.map((one) => read(one) ?? null);
  const seconds = column((one) => one.ends);
  const draw = (name, ...reads) => charts[name].set([seconds, ...reads.map(column)], none);
  const seen = run.evaluations;
  const evaluated = [seen.map((one) => one.run_seconds), seen.map((one) => one.loss), seen.map((one) => one.accuracy)];
  charts.loss.set(joined([seconds, column((one) => one.loss)], onlyRising(evaluated)), seen.length ? "" : none);
  draw("pi", (one) => one.mean_pi, (one) => one.blocked_fraction, (one) => one.clamped_fraction);
  charts.rate.set(run.rates, none);
  draw("fairness", (one) => (one.workers ? one.jain_index : null));
  draw("wait", (one) => one.wait_mean_seconds, (one) => one.queue_length);
  draw("drift", (one) => one.proxy_norm, (one) => one.drift_norm, (one) => one.update_norm);
  draw("memory", (one) => one.anonymous_bytes);
  drawHeatMap(none);
}

// Several evaluations of the same moment (of a run that is finished): the last one stands for them.
function onlyRising(table) {
  const keep = table[0].map((moment, index) => moment !== table[0][index + 1]);
  return table.map((one) => one.filter((_, index) => keep[index]));
}

function drawHeatMap(none) {
  const { names, columns } = run.tensors;
  let why = none;
  if (!why && run.hasFactors === false) why = `The rule ${run.rule} has no pi for each element, so there is none by tensor.`;
  if (!why && !columns.length) why = "Waiting for a sample: the first comes after some seconds of commits.";
  parts.heat.set(names, columns, why);
}

function drawStatus() {
  const { status } = run;
  showTop(run);
  showTiles(run);
  showQueue(run);
  showMemory(run);
  showFacts(run);
  charts.rate.set(run.rates, missing());
  parts.table.set(run.workers, status.workers_left_out);
  parts.shards.set(status.shards);
  const noWorkers = run.workers.length ? "" : "Waiting for workers: none has joined yet.";
  parts.staleness.set(run.workers, status.staleness?.bounds ?? [], noWorkers);
  parts.share.set(run.workers, noWorkers);
}

function drawNotices() {
  const found = notices(run, link);
  const box = byId("notices");
  const key = found.map(([kind, text]) => kind + text).join("\n");
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  box.replaceChildren(...found.map(([kind, text]) => make("p", { class: "notice", "data-kind": kind }, text)));
}

const wanted = new Set();
const DRAW = { status: drawStatus, history: drawCharts, notices: drawNotices };

// Hidden pages get no frames, so they cost nothing.
function want(...names) {
  if (!wanted.size) {
    requestAnimationFrame(() => {
      const now = [...wanted];
      wanted.clear();
      for (const name of now) DRAW[name]();
    });
  }
  for (const name of names) wanted.add(name);
}

let hadStatus = "";
follow({
  status(status) {
    run.takeStatus(status);
    link.ended = false;
    // What the curves' panels say of missing data depends on these.
    const about = `${status.run_state} ${status.last_evaluation?.version?.clock}`;
    if (about !== hadStatus) want("history");
    hadStatus = about;
    want("status", "notices");
  },
  history(history) {
    run.takeHistory(history);
    want("history");
  },
  end() {
    link.ended = true;
  },
  link(state, since) {
    link.state = state;
    const element = byId("link");
    say(element, LINKS[state]);
    mark(element, "data-link", state);
    mark(document.body, "data-stale", (state === "lost" || state === "late" || state === "full") && run.status ? "" : null);
    const moment = since ? new Date(since).toLocaleTimeString([], { hour12: false }) : "";
    link.text = words(state, moment);
    want("notices");
  },
});

function words(state, moment) {
  if (state === "full") return "The server has as many viewers as it takes: close another page of it. Trying again.";
  if (state === "late") return `No news of the server since ${moment}: it hangs, or is cut off.`;
  if (state !== "lost") return "";
  if (link.ended) return `The server has ended. What you see is its last report, of ${moment}; this page continues when it is back.`;
  const shown = moment ? ` What you see is of ${moment}.` : "";
  return `The server cannot be reached: it has ended, or is cut off.${shown} Trying again.`;
}

drawCharts();
parts.staleness.set([], [], missing());
parts.share.set([], missing());
parts.table.set([], 0, missing());

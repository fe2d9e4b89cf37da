// The figures of the moment and the facts of the run, in words.

import { byId, define, make, mark, say } from "./dom.js";
import { UNKNOWN, bytes, count, duration, mean, number, percent, plain, shortTime, word } from "./format.js";
import { condition, isLive } from "./run.js";

export function showTop(run) {
  const { status } = run;
  const state = byId("run-state");
  say(state, run.state || "connecting");
  mark(state, "data-state", run.state || "unknown");
  showCourse(run);
  say(byId("server"), `gemps ${status.server_version}, up ${duration(status.uptime_seconds)}`);
  const { progress } = run;
  const part = progress ? `${Math.floor(100 * progress.part)} % · ` : "";
  const name = status.run_name || run.rule;
  document.title = `${part}${status.loss === undefined ? run.state : `loss ${number(status.loss)}`} · ${name} · gemps`;
}

function showCourse(run) {
  const { status, progress } = run;
  const commits = make("b", {}, `${count(status.commits)}`);
  const rule = make("b", {}, run.rule);
  const live = run.workers.filter(isLive).length + status.workers_left_out;
  const parts = [rule, ` · ${live} ${live === 1 ? "worker" : "workers"} · `, commits, ` commits in ${duration(status.run_seconds)}`];
  if (run.state === "waiting") {
    const wanted = live + status.missing_workers;
    parts.splice(2, 2, ` · waiting: ${live} of ${wanted} workers have joined`);
  } else if (progress && run.state === "training") {
    const rest = status.seconds_left === undefined ? "" : ` · about ${duration(Math.ceil(status.seconds_left))} left`;
    parts.push(` · ${Math.floor(100 * progress.part)} % of the budget${rest}`);
  }
  const course = byId("course");
  const text = parts.map((one) => (typeof one === "string" ? one : one.textContent)).join("");
  if (course.textContent !== text) course.replaceChildren(...parts);
  const bar = byId("progress");
  mark(bar, "hidden", progress ? null : "");
  if (!progress) return;
  mark(bar, "aria-valuenow", Math.floor(100 * progress.part));
  bar.firstElementChild.style.width = `${100 * progress.part}%`;
}

export function showTiles(run) {
  const { status } = run;
  const tell = (name, text) => say(byId(`tile-${name}`), text);
  const hasCommits = status.commits_of_process > 0;
  tell("loss", number(status.loss));
  const { best_evaluation: best, last_evaluation: last } = status;
  tell("accuracy", best ? percent(last.accuracy) : UNKNOWN);
  tell(
    "accuracy-about",
    best ? `Held-out samples predicted rightly; best ${percent(best.accuracy)}. Loss ${lossOf(last)}.` : "No evaluator has reported yet: gemps evaluate does.",
  );
  tell("rate", number(status.commits_per_second));
  const ofRun = (text) => (status.means ? `, mean of the run ${text(status.means)}` : "");
  tell("staleness", hasCommits ? mean(status.staleness_mean) : UNKNOWN);
  tell("staleness-about", `Commits of others between a worker’s snapshot and its newest commit${ofRun((one) => mean(one.staleness_mean))}.`);
  const isGem = run.rule === "gem";
  tell("pi-name", isGem ? "Mean pi" : "Mean factor");
  const factor = isGem ? "Factor that GEM scales each element of the newest commits by" : `${run.rule} has no pi; the factor that it applies the newest commits by`;
  tell("pi-about", `${factor}${ofRun((one) => number(one.mean_pi))}.`);
  tell("pi", hasCommits ? number(status.mean_pi) : UNKNOWN);
  tell("blocked", hasCommits ? percent(status.blocked_fraction) : UNKNOWN);
  tell("blocked-about", `Elements that the newest commits could not move: others had done so${ofRun((one) => percent(one.blocked_fraction))}.`);
  tell("jain", hasCommits ? status.jain_index.toFixed(3) : UNKNOWN);
  const live = run.workers.filter(isLive).length + status.workers_left_out;
  const troubled = run.workers.filter(condition).length;
  tell("workers", String(live));
  tell("workers-about", troubled ? `Workers with a session; ${troubled} ${troubled === 1 ? "needs" : "need"} a look.` : "Workers that have a session now; all are well.");
}

export function showQueue(run) {
  const { queue, wait } = run.status;
  const known = (seconds) => (wait?.counts?.some(Boolean) ? shortTime(seconds) : UNKNOWN);
  define(byId("queue-figures"), [
    ["half waited at most", known(run.status.wait_p50_seconds)],
    ["99 % at most", known(run.status.wait_p99_seconds)],
    ["waiting now", count(queue.length)],
    ["buffers in use", `${queue.staging_buffers_in_use} of ${queue.staging_buffers}`],
  ]);
}

export function showMemory(run) {
  const { memory } = run.status;
  define(byId("memory-figures"), [
    ["process", bytes(memory.anonymous_bytes)],
    ["promised to vectors", bytes(memory.reserved_bytes)],
    ["allowed for them", bytes(memory.limit_bytes)],
    ["a further worker", bytes(memory.worker_bytes)],
  ]);
}

function learningRate({ next_eta, settings }) {
  if (!settings.eta) return settings.rule === "auto" ? "the first worker decides" : "that of each worker’s optimizer";
  if (settings.recipe) return `${plain(settings.eta)} of ${settings.recipe.optimizer}, and its schedule`;
  return `${plain(next_eta)} now; ${plain(settings.eta)} set, ${word(settings.eta_schedule, "ETA_SCHEDULE_")}`;
}

export function showFacts(run) {
  const { status } = run;
  const { settings, checkpoint, version } = status;
  const rule = Object.entries(settings.rule_settings ?? {}).sort().map(([name, value]) => `${name} ${Number(value.toPrecision(6))}`);
  const connected = run.workers.filter((one) => ["JOINED", "TRAINING"].some((state) => one.state.endsWith(state)));
  define(byId("facts-list"), [
    ["Run", status.run_name ? `${status.run_name} (id ${status.run_id})` : status.run_id, "Its name, which --run gives, and its id, which it keeps over restarts."],
    ["Update rule", status.rule.replace(/^rule /, ""), "What the server makes of a worker’s delta, and who decided that."],
    ["Rule settings", rule.join(", ") || "none", "Numbers of the update rule."],
    ["Learning rate", learningRate(status), "Eta of the next gradient, and how it follows the clock."],
    ["Budget", budget(settings.budget, run), "When the run is finished."],
    ["Version", version.clock ? `clock ${count(version.clock)}` : "no parameters yet", "The clock counts applied commits; each makes a version."],
    ["Model", status.parameter_count ? `${count(status.parameter_count)} parameters in ${count(status.tensor_count)} ${status.tensor_count === 1 ? "tensor" : "tensors"}` : "not known yet", "What the first worker brought."],
    ["Order", `${word(settings.order, "SERVING_ORDER_")}, from ${settings.min_workers} ${settings.min_workers === 1 ? "worker" : "workers"} on`, "In which order commits are served, and how many workers it begins with."],
    ["Durability", checkpoint.durability, "What a crash may cost: commit: nothing acknowledged; interval: what came after the checkpoint; none: all."],
    ["Checkpoint", checkpoint.path ? `${checkpoint.path.split("/").pop()}, ${duration(checkpoint.seconds_ago)} ago` : "none yet", "The newest that was written, and when."],
    ["Best evaluation", evaluation(status.best_evaluation), "Accuracy on held-out samples, and the version that had it."],
    ["Applied", applied(status), "Commits, and in how much time of training."],
    ["Exchange", exchange(connected), "How workers’ last commits came. gRPC where the lane is on: check that workers can reach its port."],
    ["Seed", String(settings.seed), "First parameters and the order of data follow from it."],
  ]);
}

function budget(seen = {}, run) {
  const parts = [];
  if (seen.commits > 0) parts.push(`${count(seen.commits)} commits`);
  if (seen.steps > 0) parts.push(`${count(seen.steps)} commits a worker`);
  if (seen.epochs > 0) parts.push(`${number(seen.epochs)} passes a worker`);
  if (!parts.length) return "none: until somebody ends it";
  return `${parts.join(", ")}${run.progress ? `; ${Math.floor(100 * run.progress.part)} % spent` : ""}`;
}

function exchange(workers) {
  const ways = { TRANSPORT_KIND_LANE: "lane", TRANSPORT_KIND_GRPC: "gRPC", TRANSPORT_KIND_SHARED_MEMORY: "shared memory" };
  const parts = Object.entries(ways).map(([kind, name]) => [name, workers.filter((one) => one.transport === kind).length]);
  return parts.filter(([, number]) => number).map(([name, number]) => `${number} over ${name}`).join(", ") || "no commit yet";
}

function evaluation(seen) {
  return seen ? `${percent(seen.accuracy)}, loss ${lossOf(seen)}, at clock ${count(seen.version?.clock)}, by ${seen.evaluator || "an evaluator"}` : "none yet";
}

function lossOf(seen) {
  const bits = seen.bits_per_character;
  return `${number(seen.loss)}${bits === undefined ? "" : `, ${number(bits)} bits a character`}`;
}

function applied(status) {
  const own = status.commits_of_process;
  const rest = own === status.commits ? "" : `, ${count(own)} of them by this server process`;
  return `${count(status.commits)} commits in ${duration(status.run_seconds)}${rest}`;
}

/** Above all: problems, workers that need a look, and how the run ended. Renewed only when that changes: it is read aloud. */
export function notices(run, link) {
  const found = [];
  if (link.text) found.push(["lost", link.text]);
  if (!run.status) return found;
  if (run.state === "finished") {
    const best = run.status.best_evaluation;
    const accuracy = best ? `; best test accuracy ${percent(best.accuracy)}` : "";
    found.push(["finished", `The run is finished: ${applied(run.status)}${accuracy}.`]);
  }
  // Without the seconds, which would have it read aloud again and again.
  for (const { severity, workers = [], text, fix } of run.status.problems ?? []) {
    const names = workers.length ? `${workers.join(", ")}: ` : "";
    const kind = severity === "PROBLEM_SEVERITY_CRITICAL" ? "gone" : "look";
    found.push([kind, `${names}${text}. ${fix.charAt(0).toUpperCase()}${fix.slice(1)}.`]);
  }
  // Problems name workers that are silent or gone.
  const troubled = run.workers.filter((one) => ["slow", "muted"].includes(condition(one)));
  if (troubled.length > 3) {
    found.push(["look", `${troubled.length} workers need a look: ${troubled.slice(0, 6).map((one) => `${one.name} (${condition(one)})`).join(", ")}${troubled.length > 6 ? " and others" : ""}.`]);
  } else {
    for (const one of troubled) found.push(["look", `${one.name} is ${condition(one)}. ${SHORT[condition(one)]}`]);
  }
  return found;
}

const SHORT = {
  slow: "It commits less than half as often as the median worker.",
  muted: "Nearly all that it commits is blocked: others had moved the parameters on.",
};

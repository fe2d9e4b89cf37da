// What is known of the run: the newest status, and the history as the events have built it up.

const LIVE = new Set(["WORKER_STATE_JOINED", "WORKER_STATE_TRAINING", "WORKER_STATE_FINISHED"]);

export const CONDITIONS = ["gone", "silent", "slow", "muted"];

export class Run {
  constructor() {
    this.status = null;
    this.hasFactors = null; // whether the rule has a pi for each element; null: not known yet
    this.intervals = [];
    this.evaluations = [];
    this.tensors = { names: [], columns: [] };
  }

  takeStatus(status) {
    this.status = status;
    // A run that is finished has no further seconds, so the history does not tell of what is evaluated then.
    if (status.last_evaluation) this.#addEvaluations([status.last_evaluation]);
  }

  takeHistory(history) {
    this.hasFactors = history.has_factors;
    if (history.whole) {
      this.intervals = [];
      this.evaluations = [];
      this.tensors = { names: [], columns: [] };
    }
    append(this.intervals, history.intervals, (one) => one.ends);
    this.#addEvaluations(history.evaluations);
    const { names = [], columns = [] } = history.tensors ?? {};
    if (names.length) this.tensors.names = names;
    append(this.tensors.columns, columns, (one) => one.run_seconds);
  }

  #addEvaluations(evaluations) {
    const key = (one) => `${one.version?.clock} ${one.evaluator}`;
    const known = new Set(this.evaluations.map(key));
    this.evaluations.push(...evaluations.filter((one) => !known.has(key(one))));
    this.evaluations.sort((one, other) => one.run_seconds - other.run_seconds);
  }

  get workers() {
    return this.status?.workers ?? [];
  }

  get rule() {
    return this.status?.settings?.rule ?? "";
  }

  get state() {
    return (this.status?.run_state ?? "").replace("RUN_STATE_", "").toLowerCase();
  }

  get keepsTelemetry() {
    return this.status?.keeps_telemetry ?? true;
  }

  /** How much of the budget is spent, 0 to 1, and the rest in commits; null: there is none that can be counted. */
  get progress() {
    const { status } = this;
    const budget = status?.settings?.budget ?? {};
    if (budget.commits > 0) return portion(status.commits, budget.commits);
    if (budget.steps > 0) {
      const wanted = this.workers.filter(isLive);
      if (!wanted.length) return this.state === "finished" ? { part: 1, left: 0 } : null;
      const done = wanted.reduce((sum, one) => sum + Math.min(one.commits, budget.steps), 0);
      return portion(done, budget.steps * wanted.length);
    }
    return this.state === "finished" ? { part: 1, left: 0 } : null;
  }
}

function portion(done, all) {
  return { part: Math.min(1, done / all), left: Math.max(0, all - done) };
}

// News may repeat what is known already.
function append(list, news, moment) {
  const last = list.length ? moment(list[list.length - 1]) : -1;
  list.push(...(news ?? []).filter((one) => moment(one) > last));
}

export const isLive = (worker) => LIVE.has(worker.state);

/** "gone", "silent", "slow" or "muted"; "" for one that needs no look. */
export function condition(worker) {
  const name = String(worker.condition ?? "").replace("WORKER_CONDITION_", "").toLowerCase();
  return CONDITIONS.includes(name) ? name : "";
}

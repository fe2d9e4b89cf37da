// What is known of the run: the newest status, and the history as the events have built it up.

const LIVE = new Set(["WORKER_STATE_JOINED", "WORKER_STATE_TRAINING", "WORKER_STATE_FINISHED"]);

// As the server's rates (RunStatus.commits_per_second).
const RATE_SECONDS = 10;

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

  /**
   * Commits a second over time: [seconds, rates]. A rate is that of the RATE_SECONDS before, or of a whole interval that is
   * longer. The newest one is the server's own, so the chart ends with the figure that the tile shows.
   */
  get rates() {
    const seconds = [];
    const rates = [];
    let first = 0;
    this.intervals.forEach((one, index) => {
      while (first < index && one.ends - this.intervals[first + 1].begins >= RATE_SECONDS) first += 1;
      const within = this.intervals.slice(first, index + 1);
      seconds.push(one.ends);
      rates.push(within.reduce((sum, other) => sum + other.commits, 0) / (one.ends - within[0].begins));
    });
    const { run_seconds: now, commits_per_second: rate } = this.status ?? {};
    if (!seconds.length || !(now > 0)) return [seconds, rates];
    while (seconds.length && seconds[seconds.length - 1] >= now) {
      seconds.pop();
      rates.pop();
    }
    return [[...seconds, now], [...rates, rate]];
  }

  /** How much of the budget is spent, 0 to 1; null: there is none that can be counted. */
  get progress() {
    const { status } = this;
    const budget = status?.settings?.budget ?? {};
    if (budget.commits > 0) return portion(status.commits, budget.commits);
    if (budget.steps > 0) {
      const wanted = this.workers.filter(isLive);
      if (!wanted.length) return this.state === "finished" ? { part: 1 } : null;
      const done = wanted.reduce((sum, one) => sum + Math.min(one.commits, budget.steps), 0);
      return portion(done, budget.steps * wanted.length);
    }
    return this.state === "finished" ? { part: 1 } : null;
  }
}

function portion(done, all) {
  return { part: Math.min(1, done / all) };
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

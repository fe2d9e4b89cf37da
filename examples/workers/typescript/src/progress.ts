/** What a worker tells people: lines on stdout about the training, on stderr about trouble. */

import type { Verdict } from './generated/gemps/v1/commit.js';

export class Progress {
  readonly #begun = performance.now();
  #steps = 0;
  #dropped = 0;
  #toldAt = this.#begun;
  #stepsTold = 0;

  /** `interval`: seconds between two lines about the training; 0: one for each step. */
  constructor(
    private readonly worker: string,
    private readonly interval: number,
  ) {}

  say(text: string): void {
    console.log(`${this.worker}: ${text}`);
  }

  trouble(text: string): void {
    console.error(`${this.worker}: ${text}`);
  }

  /** A step is done; without a verdict its delta does not count, or its outcome is unknown. */
  step(loss: number, eta: number, isApplied: boolean, verdict: Verdict | undefined): void {
    this.#steps++;
    if (!isApplied) this.#dropped++;
    const now = performance.now();
    const seconds = (now - this.#toldAt) / 1000;
    if (verdict === undefined || (this.#stepsTold > 0 && seconds < this.interval)) return;
    const rate = this.#stepsTold > 0 ? `, ${((this.#steps - this.#stepsTold) / seconds).toFixed(0)} steps/s` : '';
    this.say(
      `step ${this.#steps}, loss ${loss.toFixed(4)}, staleness ${verdict.staleness}, ` +
        `pi ${verdict.statistics?.meanPi.toFixed(2) ?? '-'}, eta ${eta}, version ${verdict.version?.clock ?? '-'}${rate}`,
    );
    this.#toldAt = now;
    this.#stepsTold = this.#steps;
  }

  summary(how: string): void {
    const seconds = (performance.now() - this.#begun) / 1000;
    const dropped = this.#dropped > 0 ? `, ${this.#dropped} of them without effect` : '';
    this.say(`${how}: ${this.#steps} steps in ${seconds.toFixed(1)} s${dropped}`);
  }
}

/** How long to wait after a failure, and when to give up. All times are in milliseconds. */

import { Failure } from './failure.js';

const FIRST_PAUSE = 100;
const LONGEST_PAUSE = 2_000;
/** For how long the server may be away. */
const PATIENCE = 300_000;
/** If the server refuses more deltas in a row for their content, they are computed wrongly or the run diverges. */
const MOST_REFUSED = 5;

export class Backoff {
  #pause = FIRST_PAUSE;
  #refused = 0;
  #awaySince: number | undefined;

  /** The server answered a Join. */
  answered(): void {
    this.#awaySince = undefined;
  }

  /** A commit was applied. */
  applied(): void {
    this.#pause = FIRST_PAUSE;
    this.#refused = 0;
  }

  /** The time to wait before the worker joins again. Throws the failure if the worker must stop. */
  after(failure: Failure, now: number): number {
    if (failure.remedy !== 'rejoin') throw failure;
    if (failure.reason === 'BAD_VALUE' || failure.reason === 'CHECKSUM') this.#refused++;
    this.#awaySince = failure.reason === '' ? (this.#awaySince ?? now) : undefined;
    if (this.#refused > MOST_REFUSED || now - (this.#awaySince ?? now) > PATIENCE) throw failure;
    const pause = this.#pause * (0.5 + 0.5 * Math.random());
    this.#pause = Math.min(2 * this.#pause, LONGEST_PAUSE);
    return failure.delay + pause;
  }
}

/** How long and how often to try again. Which failures may be repeated is decided where the calls are made. */

import { setTimeout as sleep } from 'node:timers/promises';

import { type Refusal, Stopped, type Torn, Unavailable } from './errors.js';
import type { ClientSettings } from './settings.js';

export class Patience {
  #failingSince: number | undefined;
  #pause: number;
  #reported = false;

  constructor(
    private readonly settings: ClientSettings,
    private readonly tell: (text: string) => void,
    private readonly stop: AbortSignal,
    private readonly clock: () => number = () => performance.now(),
    private readonly pauseFor: (ms: number) => Promise<unknown> = (ms) => sleep(ms, undefined, { signal: stop }),
  ) {
    this.#pause = settings.backoffFirst;
  }

  /** A call broke: sleeps before the next attempt. Throws Unavailable when that has gone on for too long. */
  async torn(torn: Torn): Promise<void> {
    await this.failed(torn.message, torn.retryAfterMs);
  }

  /** As `torn`, for whatever reason; `atLeast`: milliseconds that the server asked for. */
  async failed(why: string, atLeast = 0): Promise<void> {
    const now = this.clock();
    this.#failingSince ??= now;
    const elapsed = now - this.#failingSince;
    if (elapsed >= this.settings.patience) {
      throw new Unavailable(
        `no gemps server has done it for ${Math.round(elapsed / 1000)} s (${why}): check that gemps serve runs there, ` +
          'and that this machine reaches the port',
      );
    }
    this.#say(`trying again for up to ${this.settings.patience / 1000} s: ${why}`);
    const jittered = this.#pause * (0.5 + Math.random());
    this.#pause = Math.min(2 * this.#pause, this.settings.backoffLimit);
    await this.#sleep(Math.max(jittered, atLeast));
  }

  /**
   * The server refused, and asked to come back: sleeps that long, and a little more. An answering server does not use
   * up the patience, but for damage: what comes damaged each time is no passing trouble. Throws the refusal when it
   * does not ask for that.
   */
  async asked(refusal: Refusal): Promise<void> {
    if (refusal.retryAfterMs === undefined) throw refusal;
    if (refusal.reason === 'CHECKSUM') return this.failed(refusal.message, refusal.retryAfterMs);
    this.#failingSince = undefined;
    this.#say(`the server asks to wait: ${refusal.message}`);
    return this.#sleep(refusal.retryAfterMs * (1 + Math.random() / 4));
  }

  /** A torn transfer came further than before: patience starts anew. */
  movedOn(): void {
    this.#failingSince = undefined;
  }

  /** A call got through to its end. */
  succeeded(): void {
    if (this.#reported) this.tell('the server answers again');
    this.#reported = false;
    this.#failingSince = undefined;
    this.#pause = this.settings.backoffFirst;
  }

  /** Once for each trouble: a line for every attempt would be a flood. */
  #say(text: string): void {
    if (!this.#reported) this.tell(text);
    this.#reported = true;
  }

  async #sleep(ms: number): Promise<void> {
    try {
      await this.pauseFor(ms);
    } catch (error) {
      throw this.stop.aborted ? new Stopped() : error;
    }
  }
}

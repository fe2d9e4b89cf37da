/** A worker's side of gemps.v1: joins, gets parameters, commits deltas, leaves. Nobody above it sees a retry. */

import { setInterval } from 'node:timers';

import type { Outcome } from './commit.js';
import type { DeltaSettings } from './delta.js';
import type { ModelState } from './payload.js';
import { Servers } from './servers.js';
import type { Identity, Session } from './session.js';
import { type ClientSettings, DEFAULTS } from './settings.js';

export class Client {
  readonly #servers: Servers;
  #heartbeats: NodeJS.Timeout | undefined;
  #isBusy = false;

  /**
   * @param address HOST:PORT
   * @param tell Takes a line about each trouble, and its end.
   * @param stop Ends everything but leaving: what is under way throws Stopped.
   */
  constructor(
    address: string,
    private readonly identity: Identity,
    tell: (text: string) => void,
    private readonly stop: AbortSignal,
    private readonly settings: ClientSettings = DEFAULTS,
  ) {
    this.#servers = new Servers(address, { identity, tell, stop, settings });
  }

  /** From which the first parameters and the order of samples follow. */
  get seed(): number {
    return Number(BigInt.asUintN(32, this.#session.joined.settings?.seed ?? 0n));
  }

  get rank(): number {
    return this.#session.joined.rank;
  }

  /** The newest values that came from the server. */
  get state(): ModelState {
    return this.#servers.state;
  }

  /** As the server sent them last. */
  get deltaSettings(): DeltaSettings {
    const {
      localSteps = 0,
      normaliseLocalSteps = false,
      localRate = 1,
      scaleLocalSteps = false,
    } = this.#session.joined.settings ?? {};
    return {
      eta: this.#session.eta,
      localSteps: Math.max(1, localSteps),
      localRate: scaleLocalSteps ? 0 : localRate, // 0 is the alternative to scaling
      normalise: normaliseLocalSteps,
    };
  }

  get isFinished(): boolean {
    return this.#session.isFinished;
  }

  /** Join the run, and get its parameters; `firstState` makes them where there are none yet. */
  async start(firstState: (seed: number) => ModelState): Promise<void> {
    await this.#busy(() => this.#servers.start(firstState));
    this.#heartbeats = setInterval(() => this.#beat(), this.settings.heartbeatInterval).unref();
  }

  /** A line about the membership. */
  describe(): string {
    const { settings, rank, shards } = this.#session.joined;
    const { delta, parameters } = this.#session.formats;
    const servers = shards.length > 0 ? `, ${1 + shards.length} servers` : '';
    return (
      `joined as rank ${rank}, rule ${settings?.rule ?? '?'}, eta ${this.#session.eta}, ` +
      `${this.identity.layout.parameterCount} parameters, deltas in ${delta.codec.name}, ` +
      `parameters in ${parameters.codec.name}${servers}`
    );
  }

  /** Commit `delta`, float32 of every parameter, with the buffers as they are now. Throws RunFinished. */
  commit(delta: Float32Array, buffers: Uint8Array, loss: number | undefined, samples: number): Promise<Outcome> {
    return this.#busy(() => this.#servers.commit({ parameters: delta, buffers }, loss, samples));
  }

  /** Leave the run and close the connection. */
  async leave(reason: string): Promise<void> {
    clearInterval(this.#heartbeats);
    await this.#servers.leave(reason);
  }

  /** At the primary, whose settings, learning rate and run state are those of the run. */
  get #session(): Session {
    return this.#servers.primary;
  }

  async #busy<T>(work: () => Promise<T>): Promise<T> {
    this.#isBusy = true;
    try {
      return await work();
    } finally {
      this.#isBusy = false;
    }
  }

  /** Keeps the session of a worker that computes for long. What fails here the next call finds out by itself. */
  #beat(): void {
    if (this.#isBusy || this.#servers.hasOpenStream || this.stop.aborted) return;
    this.#session.probe().catch(() => undefined);
  }
}

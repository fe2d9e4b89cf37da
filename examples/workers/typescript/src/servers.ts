/**
 * The servers that hold the model: usually one; or the primary and other shards (shards.proto), each with its range of
 * the parameters. A single server's session is kept by session.ts. Of several, a session that is lost at one is over at
 * all: then everything begins anew here, from Join on, and a pull tells whether the last delta was applied.
 */

import { randomBytes } from 'node:crypto';

import type { Outcome } from './commit.js';
import { Connection, type Worker } from './connection.js';
import { SessionLost, Stopped, Unavailable } from './errors.js';
import { initialize } from './initialize.js';
import { Patience } from './patience.js';
import type { ModelState } from './payload.js';
import { complete, pull } from './pull.js';
import type { Session } from './session.js';
import { Shard, together } from './shard.js';

/** How long the other servers may take to say what one has said, in milliseconds. */
const SETTLE = 1_000;
/** After so long without an answer, a shard may have another address: the primary knows. */
const SHARD_PATIENCE = 5_000;

export class Servers {
  readonly #worker: Worker;
  readonly #patience: Patience;
  #primary: Connection;
  #others: readonly Connection[] = [];
  /** The newest values that came, or those that Initialize would upload. */
  state: ModelState = { parameters: new Float32Array(0), buffers: new Uint8Array(0) };

  constructor(
    private readonly address: string,
    worker: Omit<Worker, 'id'>,
  ) {
    this.#worker = { id: randomBytes(16), ...worker };
    this.#patience = new Patience(worker.settings, worker.tell, worker.stop);
    this.#primary = new Connection(address, this.#worker);
  }

  get primary(): Session {
    return this.#primary.session;
  }

  /** Whether a stream of commits keeps the session alive. */
  get hasOpenStream(): boolean {
    return this.#primary.committer.hasOpenStream;
  }

  /** Join the run; `firstState` makes the values to upload where there are none. Throws Refusal, Unavailable. */
  async start(firstState: (seed: number) => ModelState): Promise<void> {
    await this.primary.join();
    const { settings, hasParameters } = this.primary.joined;
    this.state = firstState(Number(BigInt.asUintN(32, settings?.seed ?? 0n)));
    if (this.primary.isFinished && !hasParameters) return; // none will come
    try {
      await this.#joinOthers();
      await this.#pull();
    } catch (error) {
      if (!(error instanceof SessionLost)) throw error;
      await this.#beginAnew(error.message);
    }
  }

  /** See Committer.commit. */
  async commit(delta: ModelState, loss: number | undefined, samples: number): Promise<Outcome> {
    const sequence = this.primary.lastApplied + 1n;
    const id = this.#others.length > 0 ? newCommitId() : 0n;
    try {
      const [outcome] = await this.#everywhere(this.#all, ({ session, committer }) => {
        const payload = session.formats.delta.encode(session.shard.partOf(delta));
        return committer.commit(payload, loss, samples, id);
      });
      this.#install();
      return outcome;
    } catch (error) {
      if (!(error instanceof SessionLost)) throw error;
      await this.#beginAnew(error.message);
      const isApplied = this.primary.lastApplied >= sequence;
      if (!isApplied) this.#worker.tell(`one delta was dropped, fresh parameters were pulled: ${error.message}`);
      return { isApplied, verdict: undefined };
    }
  }

  /** Leave, at the primary alone, and close the connections. */
  async leave(reason: string): Promise<void> {
    for (const { committer } of this.#all) committer.close();
    await this.primary.leave(reason);
    this.#close();
  }

  get #all(): readonly Connection[] {
    return [this.#primary, ...this.#others];
  }

  /** Join the servers that the primary named. */
  async #joinOthers(): Promise<void> {
    const { shards } = this.primary.joined;
    const worker = { ...this.#worker, settings: { ...this.#worker.settings, patience: SHARD_PATIENCE } };
    this.#others = shards.map((shard, i) => {
      const place = new Shard(i + 1, 1 + shards.length);
      return new Connection(shard.startsWith(':') ? hostOf(this.address) + shard : shard, worker, place);
    });
    await this.#everywhere(this.#others, ({ session }) => session.join());
  }

  /** Get the parameters of one clock from all; the first ones are uploaded where there are none. */
  async #pull(): Promise<void> {
    for (const { session } of this.#all) session.state = session.shard.partOf(this.state);
    if (!this.primary.joined.hasParameters) await this.#everywhere(this.#all, ({ session }) => initialize(session));
    await pull(this.primary);
    const clock = this.primary.held?.clock ?? 0n;
    await this.#everywhere(this.#others, ({ session }) =>
      complete(session, undefined, { incarnation: session.joined.incarnation, clock }),
    );
    this.#install();
  }

  /** All have answered. Throws SessionLost where they did so with different clocks. */
  #install(): void {
    const sessions = this.#all.map(({ session }) => session);
    if (new Set(sessions.map(({ held }) => held?.clock)).size > 1)
      throw new SessionLost('the servers differ in clocks');
    this.state = together(sessions.map(({ state }) => state));
    this.#patience.succeeded();
  }

  /** Join and pull everywhere; afterwards the primary's `lastApplied` is right. */
  async #beginAnew(why: string): Promise<void> {
    for (;;) {
      this.#worker.tell(`joining again: ${why}`);
      this.#close();
      this.#others = [];
      this.#primary = new Connection(this.address, this.#worker);
      try {
        await this.#patience.failed(why);
        await this.primary.join();
        await this.#joinOthers();
        await this.#pull();
        await this.primary.heartbeat(); // only now: what was under way came before the pull
        for (const { session } of this.#others) session.lastApplied = this.primary.lastApplied;
        return;
      } catch (error) {
        if (!(error instanceof SessionLost)) throw error;
        why = error.message;
      }
    }
  }

  /**
   * Call servers at once. What one refuses all refuse, so when one has failed the others have a moment to say so, too;
   * then their calls are ended. Throws SessionLost, unless a server gave an answer that counts for all.
   */
  async #everywhere<T>(servers: readonly Connection[], call: (server: Connection) => Promise<T>): Promise<T[]> {
    const errors: unknown[] = [];
    let timer: NodeJS.Timeout | undefined;
    const answers = servers.map((server) =>
      call(server).catch((error: unknown) => {
        const isAway = error instanceof Unavailable && server !== this.#primary;
        errors.push(isAway ? new SessionLost(error.message) : error);
        timer ??= setTimeout(() => servers.forEach((one) => one.interrupt()), SETTLE);
        return undefined;
      }),
    );
    const found = await Promise.all(answers);
    clearTimeout(timer);
    if (errors.length === 0) return found as T[];
    if (this.#worker.stop.aborted) throw new Stopped();
    throw errors.find((one) => !(one instanceof SessionLost || one instanceof Stopped)) ?? errors[0];
  }

  #close(): void {
    for (const one of this.#all) one.close();
  }
}

function hostOf(address: string): string {
  return address.slice(0, address.lastIndexOf(':'));
}

/** Random, and not 0, which stands for none. */
function newCommitId(): bigint {
  return randomBytes(8).readBigUInt64LE() | 1n;
}

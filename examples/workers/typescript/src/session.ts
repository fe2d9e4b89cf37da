/** This worker's membership: how it is gained, kept, lost and regained. Commit, pull and initialize build on it. */

import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';

import { ask, type Method } from './calls.js';
import { LOST_SESSION, Misbehaved, Refusal, SessionLost, Torn } from './errors.js';
import type { ParameterServerServiceClient } from './generated/gemps/v1/parameter_server.js';
import { RunState } from './generated/gemps/v1/run.js';
import { JoinRequest } from './generated/gemps/v1/session.js';
import type { HeartbeatRequest, HeartbeatResponse, JoinResponse } from './generated/gemps/v1/session.js';
import type { Version, WireType } from './generated/gemps/v1/transfer.js';
import type { Layout } from './layout.js';
import type { Patience } from './patience.js';
import { type ModelState, PayloadFormat } from './payload.js';
import type { Receiver } from './receiver.js';
import type { ClientSettings } from './settings.js';
import { Shard } from './shard.js';
import { type Codec, codecOf, codecOfWire, type WireTypeName } from './wire-types.js';

const LARGEST_CHUNK = 2 << 20;
const AGENT = 'gemps-typescript/0.1.0';

export interface Identity {
  readonly name: string;
  readonly layout: Layout;
  /** What to offer, best first. */
  readonly deltaWireTypes: readonly WireTypeName[];
  readonly parameterWireTypes: readonly WireTypeName[];
  /** 0: unknown. */
  readonly stepsPerEpoch: number;
}

/** What everything that makes calls needs. */
export interface Context {
  readonly calls: ParameterServerServiceClient;
  readonly settings: ClientSettings;
  readonly patience: Patience;
  readonly stop: AbortSignal;
  readonly tell: (text: string) => void;
}

/** Payloads of a membership: of a delta, and of the parameters that come back. */
interface Formats {
  readonly delta: PayloadFormat;
  readonly parameters: PayloadFormat;
}

export class Session {
  /** Parameters that this worker holds and the server knows it to hold; undefined when that is open: pull. */
  held: Version | undefined;
  /** The newest values that came, and what Initialize would upload; kept when `held` is lost. */
  state: ModelState = { parameters: new Float32Array(0), buffers: new Uint8Array(0) };
  /** The newest sequence that the server is known to have applied. */
  lastApplied = 0n;
  /** The learning rate of the next commit, as Join or the last verdict gave it. */
  eta = 0;
  runState: RunState = RunState.WAITING;
  #joined: JoinResponse | undefined;
  #formats: Formats | undefined;
  #isMember = false;

  /**
   * @param id 16 random bytes: a secret, the same over reconnects and restarts, and at all servers of a model.
   * @param shard What the server holds; the primary says in Join how many there are.
   */
  constructor(
    readonly context: Context,
    readonly identity: Identity,
    readonly id: Uint8Array,
    public shard = new Shard(),
  ) {}

  /** What the last Join returned. */
  get joined(): JoinResponse {
    if (this.#joined === undefined) throw new Error('join() first');
    return this.#joined;
  }

  get formats(): Formats {
    if (this.#formats === undefined) throw new Error('join() first');
    return this.#formats;
  }

  /** A transfer is complete: its values are what this worker holds. */
  install(state: ModelState, { version }: Receiver): void {
    this.state = state;
    this.held = version;
  }

  get isFinished(): boolean {
    return this.runState === RunState.FINISHED;
  }

  /** Join, or join again under the same id; waits for a server that is not there yet. Throws Refusal. */
  async join(): Promise<void> {
    const { calls } = this.context;
    const response = await this.#insist(calls.join.bind(calls), this.#joinRequest());
    this.#isMember = true;
    const { chunkBytes, incarnation } = response;
    const delta = chosen(response.deltaWireType, this.identity.deltaWireTypes);
    const parameters = chosen(response.parameterWireType, this.identity.parameterWireTypes);
    if (response.settings === undefined) throw new Misbehaved('the server sent no settings of the run');
    if (chunkBytes > LARGEST_CHUNK || chunkBytes < Math.max(delta.elementBytes, parameters.elementBytes)) {
      throw new Misbehaved(`the server wants chunks of ${chunkBytes} bytes`);
    }
    if (this.#joined?.incarnation !== incarnation) this.held = undefined;
    this.#joined = response;
    if (this.shard.index === 0) this.shard = new Shard(0, 1 + response.shards.length);
    const layout = this.shard.layoutOf(this.identity.layout);
    this.#formats = { delta: new PayloadFormat(layout, delta), parameters: new PayloadFormat(layout, parameters) };
    this.lastApplied = response.lastAppliedSequence;
    this.eta = response.nextEta;
    this.runState = response.runState;
  }

  /**
   * Join again after the server lost the session, was restarted, or counts otherwise than we do. Throws SessionLost if
   * there are several servers.
   */
  async rejoin(why: string): Promise<void> {
    this.stale(why);
    this.context.tell(`joining again: ${why}`);
    await this.context.patience.failed(why);
    await this.join();
    this.stale(why);
  }

  /** What this worker holds is in doubt: pull. Throws SessionLost if that takes several servers. */
  stale(why: string): void {
    this.held = undefined;
    if (this.shard.isPart) throw new SessionLost(why);
  }

  /** Ask where the session stands, after a torn call; afterwards `lastApplied` is right. Joins again where needed. */
  async heartbeat(): Promise<void> {
    let response: HeartbeatResponse;
    try {
      response = await this.#insist(this.#heartbeat, { sessionId: this.id, batches: [] });
    } catch (error) {
      if (error instanceof Refusal && LOST_SESSION.has(error.reason)) return this.rejoin(error.message);
      throw error;
    }
    if (response.incarnation !== this.joined.incarnation) return this.rejoin('the server was restarted');
    this.lastApplied = response.lastAppliedSequence;
    this.runState = response.runState;
  }

  /** One heartbeat, without insisting: the last applied sequence. Throws Torn when the server cannot be counted on. */
  async probe(): Promise<bigint> {
    const { settings, stop } = this.context;
    const beat = ask(this.#heartbeat, { sessionId: this.id, batches: [] }, settings.progressTimeout, stop);
    const response = await beat.catch((error: Error) => {
      throw new Torn(`silence, and no heartbeat either (${error.message})`);
    });
    if (response.incarnation !== this.joined.incarnation) throw new Torn('the server was restarted');
    this.runState = response.runState;
    return response.lastAppliedSequence;
  }

  /**
   * SUPERSEDED means a newer call of our own, or another process that took over our name. Then the heartbeat is
   * refused, too: throws the refusal. Else waits before the next attempt.
   */
  async confirmSuperseded(refusal: Refusal): Promise<void> {
    try {
      await this.#insist(this.#heartbeat, { sessionId: this.id, batches: [] });
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this.#isMember = false;
      throw new Refusal(refusal.reason, `another process joined as ${this.identity.name}: give each worker a name`);
    }
    await this.context.patience.failed(refusal.message);
  }

  /** Say goodbye once; a server that does not hear it finds out by itself. */
  async leave(reason: string): Promise<void> {
    if (!this.#isMember) return;
    this.#isMember = false;
    const { calls, settings, tell } = this.context;
    const request = { sessionId: this.id, reason };
    // Not by the signal that stopped this worker: leaving is what it still has to do.
    const done = ask(calls.leave.bind(calls), request, settings.leaveTimeout, new AbortController().signal);
    await done.catch((error: Error) => tell(`left without the server hearing of it (${error.message})`));
  }

  get #heartbeat(): Method<HeartbeatRequest, HeartbeatResponse> {
    const { calls } = this.context;
    return calls.heartbeat.bind(calls);
  }

  #joinRequest(): JoinRequest {
    const { name, layout, deltaWireTypes, parameterWireTypes, stepsPerEpoch } = this.identity;
    return JoinRequest.fromPartial({
      sessionId: this.id,
      workerName: name,
      hostId: hostId(),
      layout: layout.toMessage(),
      deltaWireTypes: deltaWireTypes.map((one) => codecOf(one).wireType),
      parameterWireTypes: parameterWireTypes.map((one) => codecOf(one).wireType),
      agent: AGENT,
      device: 'cpu',
      stepsPerEpoch: BigInt(stepsPerEpoch),
    });
  }

  /** Makes a unary call until it is answered; refusals that ask to come back are obeyed, others are thrown. */
  async #insist<Request, Response>(method: Method<Request, Response>, request: Request): Promise<Response> {
    const { settings, patience, stop } = this.context;
    for (;;) {
      try {
        return await ask(method, request, settings.progressTimeout, stop);
      } catch (error) {
        if (error instanceof Torn) await patience.torn(error);
        else if (error instanceof Refusal) await patience.asked(error);
        else throw error;
      }
    }
  }
}

function chosen(wireType: WireType, offered: readonly WireTypeName[]): Codec {
  const codec = codecOfWire(wireType);
  if (codec === undefined || !offered.includes(codec.name)) {
    throw new Misbehaved(`the server chose wire type ${wireType}, which was not offered`);
  }
  return codec;
}

/** Names the machine: containers on one share its devices, and must give the same (session.proto). */
function hostId(): string {
  try {
    return readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
  } catch {
    return hostname();
  }
}

/**
 * A worker's session with the server: the calls of worker.proto.
 *
 * `begin` is the first half of the one rule for failures: Join, Initialize if the server has no parameters, Pull. After
 * it `commit` sends one gradient after the other, all on one stream, and takes the parameters that come back. Each
 * method throws what its call failed with, as gRPC's error or as a Failure. After a failure that is not final call
 * `begin` again: it drops the stream, learns from Join which sequence was applied last, and pulls. So nothing is ever
 * repeated, and a delta whose commit failed is given up.
 *
 * One method runs at a time, except for `leave`, after which the others fail.
 */

import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { Readable, type Writable } from 'node:stream';

import { type ClientDuplexStream, Metadata, type ServiceError } from '@grpc/grpc-js';

import { crc32c } from './crc32c.js';
import { Failure } from './failure.js';
import { CommitHeader, CommitRequest, type CommitResponse, type Verdict } from './generated/gemps/v1/commit.js';
import { InitializeRequest, type InitializeResponse, PullRequest } from './generated/gemps/v1/parameters.js';
import { RunState } from './generated/gemps/v1/run.js';
import { JoinRequest, JoinResponse, LeaveRequest, type LeaveResponse } from './generated/gemps/v1/session.js';
import { type Version, WireType } from './generated/gemps/v1/transfer.js';
import type { WorkerServiceClient } from './generated/gemps/v1/worker.js';
import type { Model, Step, Task } from './task.js';
import { chunksOf, type Parts, payloadOf, receive } from './transfer.js';

/** Payloads up to this size go whole, in the message of their header (commit.proto). */
const WHOLE_BYTES = 64 * 1024;
const JOIN_DEADLINE = 60_000;
const LEAVE_DEADLINE = 20_000;
/** Equal in all containers of a machine, so that the server can number the machine's workers. */
const BOOT_ID = '/proc/sys/kernel/random/boot_id';

export class Session {
  joined = JoinResponse.create();
  isFinished = false;
  /** The newest parameters, and their version; before the first pull those that Initialize would upload. */
  model: Model;
  version: Version | undefined;
  /** Set by leave(): resolves when the session has ended. */
  left: Promise<void> | undefined;
  readonly #request: JoinRequest;
  #lastApplied = 0n;
  #nextEta = 0;
  #stream: CommitStream | undefined;

  constructor(
    private readonly client: WorkerServiceClient,
    name: string,
    task: Task,
  ) {
    this.model = task.first;
    this.#request = JoinRequest.create({
      sessionId: randomBytes(16),
      workerName: name,
      hostId: existsSync(BOOT_ID) ? readFileSync(BOOT_ID, 'utf8').trim() : hostname(),
      layout: task.layout,
      stepsPerEpoch: BigInt(task.stepsPerEpoch),
      agent: 'gemps-typescript/0.2.0',
    });
  }

  /** Join, Initialize if needed, Pull. If the run is finished, Join alone. */
  async begin(): Promise<void> {
    this.#stream?.call.cancel();
    this.#stream = undefined;
    const options = { deadline: Date.now() + JOIN_DEADLINE };
    this.joined = await answer((done) => this.client.join(this.#request, new Metadata(), options, done));
    this.#lastApplied = this.joined.lastAppliedSequence;
    this.#nextEta = this.joined.nextEta;
    this.isFinished = this.joined.runState === RunState.FINISHED;
    if (this.isFinished) return;
    if (!this.joined.hasParameters) await this.#initialize();
    await this.#take(this.client.pull(PullRequest.create({ sessionId: this.#request.sessionId })));
  }

  /** Sends a gradient, and takes the parameters that come back with the verdict. After `begin`. */
  async commit({ gradient, loss, samples }: Step): Promise<Verdict> {
    this.#stream ??= new CommitStream(this.client.commit());
    const stream = this.#stream;
    const payload = payloadOf(gradient);
    const footer = { crc32c: crc32c(payload) };
    const header = CommitHeader.create({
      sessionId: this.#request.sessionId,
      sequence: this.#lastApplied + 1n,
      baseVersion: this.version,
      wireType: WireType.FLOAT32,
      byteCount: BigInt(payload.length),
      loss,
      samples: BigInt(samples),
      scale: Math.fround(-this.#nextEta), // the server multiplies: the delta is -eta times the gradient
    });
    if (payload.length <= WHOLE_BYTES) {
      await stream.send({ header, chunk: payload, footer });
    } else {
      await stream.send({ header });
      const { proceed } = await stream.receive();
      if (proceed?.sequence !== header.sequence) throw new Failure('bug', 'the server did not say proceed');
      for (const chunk of chunksOf(payload, this.joined.chunkBytes)) await stream.send({ chunk });
      await stream.send({ footer });
    }
    const first = await stream.receive();
    const { verdict } = first;
    if (verdict?.sequence !== header.sequence) throw new Failure('bug', 'the server sent no verdict on this commit');
    await this.#take(stream.partsFrom(first));
    this.#lastApplied = verdict.sequence;
    this.#nextEta = verdict.nextEta;
    this.isFinished = verdict.runState === RunState.FINISHED;
    return verdict;
  }

  /** Ends the session. Never throws: that of a worker that is gone the server ends by itself. */
  leave(reason: string): Promise<void> {
    if (this.isFinished) this.#stream?.call.end();
    else this.#stream?.call.cancel();
    const request = LeaveRequest.create({ sessionId: this.#request.sessionId, reason });
    const options = { deadline: Date.now() + LEAVE_DEADLINE };
    const call = answer<LeaveResponse>((done) => this.client.leave(request, new Metadata(), options, done));
    this.left = call.catch(() => undefined).then(() => this.client.close());
    return this.left;
  }

  /** Whether this upload is accepted or another worker's was first: Pull follows. */
  async #initialize(): Promise<void> {
    const { sessionId } = this.#request;
    const payload = payloadOf(this.model);
    const chunks = chunksOf(payload, this.joined.chunkBytes);
    const messages = function* (): Generator<InitializeRequest> {
      yield InitializeRequest.create({ header: { sessionId, byteCount: BigInt(payload.length) } });
      for (const chunk of chunks) yield InitializeRequest.create({ chunk });
      yield InitializeRequest.create({ footer: { crc32c: crc32c(payload) } });
    };
    await answer<InitializeResponse>((done) => {
      Readable.from(messages()).pipe(this.client.initialize(done) as unknown as Writable);
    });
  }

  async #take(messages: AsyncIterable<Parts>): Promise<void> {
    ({ model: this.model, version: this.version } = await receive(messages, this.model, this.joined.layoutDigest));
  }
}

/** The Commit call, one message after the other in both directions. */
class CommitStream {
  readonly #messages: AsyncIterator<CommitResponse, void>;
  readonly #ended: Promise<unknown>;

  constructor(readonly call: ClientDuplexStream<CommitRequest, CommitResponse>) {
    this.#messages = call[Symbol.asyncIterator]() as AsyncIterator<CommitResponse, void>;
    this.#ended = new Promise((resolve) => call.once('status', resolve).on('error', resolve));
  }

  /** Resolves when gRPC has room for the next message, or when the call has ended: receive() then says why. */
  async send(parts: Partial<CommitRequest>): Promise<void> {
    const hasRoom = this.call.write(CommitRequest.create(parts));
    if (!hasRoom) await Promise.race([once(this.call, 'drain'), this.#ended]);
  }

  async receive(): Promise<CommitResponse> {
    const { done, value } = await this.#messages.next();
    if (done) throw new Failure('rejoin', 'the stream of commits ended');
    return value;
  }

  /** The reply whose first message is there already. */
  async *partsFrom(message: CommitResponse): AsyncGenerator<Parts> {
    for (; ; message = await this.receive()) yield { ...message, header: message.parameters };
  }
}

/** The answer of a call that has one, or the error that it failed with. */
function answer<T>(start: (done: (error: ServiceError | null, response: T) => void) => unknown): Promise<T> {
  return new Promise((resolve, reject) => {
    start((error, response) => (error === null ? resolve(response) : reject(error)));
  });
}

/**
 * Exactly one commit for one delta, whatever breaks on the way (commit.proto has the table).
 *
 *   the verdict came          the delta is applied: the rest of the parameters is pulled, from where the reply was torn
 *   no verdict came           a heartbeat tells the last applied sequence: if it is this one, its header alone brings the
 *                             stored verdict; if not, the identical bytes are sent again, on a new stream
 *   the session was lost, or  joining again tells the last applied sequence, possibly from the server's checkpoint; then
 *   the server restarted      pull, because the snapshot is gone; the delta is dropped unless it was applied
 *   refused, with RetryInfo   wait that long, then the identical bytes again
 *   refused as stale          pull, and drop the delta: a gradient of other parameters must not be applied
 *
 * With several servers each has its piece of the delta, and what needs a pull throws SessionLost (servers.ts).
 */

import type { ClientDuplexStream } from '@grpc/grpc-js';

import { broken, Incoming, patiently, send } from './calls.js';
import { crc32c } from './crc32c.js';
import { LOST_SESSION, Misbehaved, Refusal, RunFinished, Torn } from './errors.js';
import { CommitHeader } from './generated/gemps/v1/commit.js';
import type { CommitRequest, CommitResponse, Verdict } from './generated/gemps/v1/commit.js';
import { RunState } from './generated/gemps/v1/run.js';
import type { Footer } from './generated/gemps/v1/transfer.js';
import type { PayloadFormat } from './payload.js';
import { complete, pull } from './pull.js';
import { Damaged, Receiver } from './receiver.js';
import type { Session } from './session.js';

/** Payloads up to this go whole, in the header's message, without waiting for proceed (commit.proto). */
const WHOLE_LIMIT = 64 << 10;

export interface Outcome {
  /** Whether the delta counts; false: it was dropped, since the server was restarted or the like. */
  readonly isApplied: boolean;
  /** What the server said of it; undefined where it was dropped, or the answer was lost for good. */
  readonly verdict: Verdict | undefined;
}

/** The commits of a session, one at a time, on one stream that lives as long as the worker. */
export class Committer {
  #stream: Stream | undefined;

  constructor(private readonly session: Session) {}

  /** Whether a stream is open, which keeps the session alive by itself. */
  get hasOpenStream(): boolean {
    return this.#stream?.isOpen ?? false;
  }

  /** End the stream, if there is one. */
  close(): void {
    this.#stream?.cancel();
    this.#stream = undefined;
  }

  /**
   * Commit a delta (bytes of the session's delta format) of the parameters that the session holds. Afterwards the
   * session holds fresh ones. Throws RunFinished; Refusal where repeating would not help; Unavailable; SessionLost.
   * `id` is the same for all pieces of a delta.
   */
  async commit(payload: Uint8Array, loss: number | undefined, samples: number, id = 0n): Promise<Outcome> {
    const { session } = this;
    const { patience, tell } = session.context;
    if (session.held === undefined) throw new Error('pull() first: a delta needs parameters to be of');
    const delta = new Outgoing(session, payload, loss, samples, id);
    let isApplied = false; // the server says so: its header alone brings the stored verdict
    let hasPulled = false; // since the session was lost: fresh parameters are here already
    for (;;) {
      const reply: Reply = { receiver: new Receiver(session.formats.parameters), verdict: undefined };
      let why: string;
      try {
        this.#stream = this.hasOpenStream ? this.#stream! : new Stream(session);
        await this.#stream.exchange(delta, reply, isApplied);
        patience.succeeded();
        return this.#settled(reply);
      } catch (error) {
        this.close();
        if (reply.verdict !== undefined) this.#note(reply.verdict);
        if (error instanceof Torn) {
          why = error.message;
          await patience.torn(error);
          if (reply.verdict !== undefined) {
            const wanted = session.shard.isPart ? reply.verdict.version : undefined;
            await complete(session, reply.receiver.version === undefined ? undefined : reply.receiver, wanted);
            return { isApplied: true, verdict: reply.verdict };
          }
          await session.heartbeat();
        } else if (error instanceof Refusal) {
          why = error.message;
          if (hasPulled && isApplied && isLastWord(error)) return { isApplied, verdict: undefined };
          await this.#recover(error);
        } else throw error;
      }
      if (session.held === undefined) {
        await pull(session);
        hasPulled = true;
      }
      isApplied = session.lastApplied === delta.sequence;
      if (hasPulled && !isApplied) {
        tell(`one delta was dropped, fresh parameters were pulled: ${why}`);
        return { isApplied, verdict: undefined };
      }
    }
  }

  #settled({ receiver, verdict, state }: Reply): Outcome {
    if (verdict === undefined || state === undefined) throw new Misbehaved('parameters came without a verdict');
    this.#note(verdict);
    this.session.install(state, receiver);
    return { isApplied: true, verdict };
  }

  #note(verdict: Verdict): void {
    this.session.lastApplied = verdict.sequence;
    this.session.eta = verdict.nextEta;
    this.session.runState = verdict.runState;
  }

  /** Does what the refusal asks for, so that the next attempt may succeed; throws it where nothing would help. */
  async #recover(refusal: Refusal): Promise<void> {
    const { session } = this;
    if (refusal.reason === 'RUN_FINISHED') {
      session.runState = RunState.FINISHED;
      throw new RunFinished(refusal.message);
    }
    if (refusal.reason === 'STALE_BASE') session.stale(refusal.message);
    else if (LOST_SESSION.has(refusal.reason) || refusal.reason === 'SEQUENCE_GAP') {
      await session.rejoin(refusal.message);
    } else if (refusal.reason === 'SUPERSEDED') await session.confirmSuperseded(refusal);
    else await session.context.patience.asked(refusal);
  }
}

/** Whether a refusal of the question for a stored verdict leaves no hope for an answer. */
function isLastWord({ reason, retryAfterMs }: Refusal): boolean {
  return (
    retryAfterMs === undefined && !LOST_SESSION.has(reason) && reason !== 'SEQUENCE_REUSED' && reason !== 'SUPERSEDED'
  );
}

interface Reply {
  readonly receiver: Receiver;
  verdict: Verdict | undefined;
  state?: ReturnType<Receiver['finish']>;
}

/** One delta on its way: the same header and the same bytes in every attempt. */
class Outgoing {
  readonly sequence: bigint;
  readonly #header: CommitHeader;
  readonly #format: PayloadFormat;
  readonly #chunkBytes: number;
  readonly #crc: number;

  constructor(
    session: Session,
    readonly payload: Uint8Array,
    loss: number | undefined,
    samples: number,
    id: bigint,
  ) {
    this.sequence = session.lastApplied + 1n;
    this.#format = session.formats.delta;
    this.#chunkBytes = session.joined.chunkBytes;
    this.#crc = crc32c(payload);
    this.#header = CommitHeader.fromPartial({
      sessionId: session.id,
      sequence: this.sequence,
      baseVersion: session.held,
      wireType: this.#format.codec.wireType,
      byteCount: BigInt(payload.length),
      loss,
      samples: BigInt(samples),
      payloadCrc32c: this.#crc, // a repeat must have it; a first attempt may
      commitId: id,
    });
  }

  /** Whether the first message is all that the server needs. */
  get isWhole(): boolean {
    return this.payload.length <= WHOLE_LIMIT;
  }

  /** The header alone: of a large commit, and the question for the stored verdict of one that was applied. */
  header(): CommitRequest {
    return { header: this.#header, chunk: undefined, footer: undefined };
  }

  /** A small commit. */
  whole(): CommitRequest {
    const hasData = this.payload.length > 0;
    return {
      header: this.#header,
      chunk: hasData ? { offset: 0n, data: this.payload } : undefined,
      footer: this.#footer(hasData ? 1 : 0),
    };
  }

  /** What follows a large commit's header, and a small one's that was sent alone, when the server says proceed. */
  *chunks(): Generator<CommitRequest> {
    const chunks = this.#format.chunks(this.#chunkBytes);
    for (const [start, end] of chunks) {
      yield {
        header: undefined,
        chunk: { offset: BigInt(start), data: this.payload.subarray(start, end) },
        footer: end === this.payload.length ? this.#footer(chunks.length) : undefined,
      };
    }
    if (chunks.length === 0) yield { header: undefined, chunk: undefined, footer: this.#footer(0) };
  }

  #footer(chunkCount: number): Footer {
    return { byteCount: BigInt(this.payload.length), chunkCount: BigInt(chunkCount), crc32c: this.#crc };
  }
}

/** One Commit call. After an error it is dead; nothing here repeats anything. */
class Stream {
  readonly #call: ClientDuplexStream<CommitRequest, CommitResponse>;
  readonly #incoming: Incoming<CommitResponse>;

  constructor(private readonly session: Session) {
    this.#call = session.context.calls.commit();
    this.#incoming = new Incoming<CommitResponse>(this.#call as ClientDuplexStream<never, CommitResponse>);
  }

  get isOpen(): boolean {
    return this.#incoming.isOpen;
  }

  cancel(): void {
    this.#call.cancel();
  }

  /** Send a commit and receive everything up to the reply's footer; `reply` says how far an attempt got that failed. */
  async exchange(delta: Outgoing, reply: Reply, headerOnly: boolean): Promise<void> {
    let mayProceed = headerOnly || !delta.isWhole;
    await this.#send(headerOnly || !delta.isWhole ? delta.header() : delta.whole());
    try {
      for (;;) {
        const message = await this.#next(delta, reply);
        if (message.proceed !== undefined) {
          if (!mayProceed || message.proceed.sequence !== delta.sequence) throw new Misbehaved('an unexpected proceed');
          mayProceed = false;
          for (const chunk of delta.chunks()) if (this.isOpen) await this.#send(chunk);
        }
        if (message.verdict !== undefined) {
          const { sequence } = message.verdict;
          if (sequence !== delta.sequence) throw new Misbehaved(`a verdict on ${sequence}, not on ${delta.sequence}`);
          reply.verdict = message.verdict;
        }
        if (message.parameters !== undefined) reply.receiver.announce(message.parameters);
        if (message.chunk !== undefined) reply.receiver.add(message.chunk);
        if (message.footer !== undefined) {
          reply.state = reply.receiver.finish(message.footer);
          return;
        }
      }
    } catch (error) {
      if (!(error instanceof Damaged)) throw error;
      reply.receiver.reset();
      throw new Torn(`the reply arrived damaged: ${error.message}`);
    }
  }

  /** gRPC takes a message as far as the server's window allows: that is the flow control. */
  #send(message: CommitRequest): Promise<void> {
    const { settings, stop } = this.session.context;
    const call = this.#call as ClientDuplexStream<CommitRequest, never>;
    const stalled = broken('the delta stopped moving');
    return patiently(send(call, message), call, settings.progressTimeout, stalled, stop);
  }

  async #next(delta: Outgoing, reply: Reply): Promise<CommitResponse> {
    const { settings, stop } = this.session.context;
    const isMoving = reply.verdict !== undefined;
    // A commit may wait for others for as long as they compute: then a heartbeat tells whether the server is there.
    const alive = async (): Promise<void> => {
      if ((await this.session.probe()) >= delta.sequence) throw new Torn('applied, but no verdict came');
    };
    const silence = isMoving ? settings.progressTimeout : settings.heartbeatInterval;
    const onSilence = isMoving ? broken('the reply stopped coming') : alive;
    const message = await patiently(this.#incoming.next(), this.#call, silence, onSilence, stop);
    if (message === undefined) throw new Torn('the stream ended without a footer');
    return message;
  }
}

/** Getting parameters, and bringing a torn transfer to its end. */

import { broken, Incoming, patiently } from './calls.js';
import { LOST_SESSION, Misbehaved, Refusal, Torn } from './errors.js';
import type { PullRequest, PullResponse } from './generated/gemps/v1/parameters.js';
import { type Version, WireType } from './generated/gemps/v1/transfer.js';
import { initialize } from './initialize.js';
import type { ModelState } from './payload.js';
import { Damaged, Receiver } from './receiver.js';
import type { Session } from './session.js';

/** The current parameters, from the start. */
export async function pull(session: Session): Promise<void> {
  await complete(session, undefined);
}

/**
 * Bring a transfer to its end: from where it was torn as long as the server's snapshot is the same, else from the start.
 * Afterwards the session holds what came. Initializes where a restarted server has no parameters. `wanted`: of several
 * servers, the version to bring.
 */
export async function complete(session: Session, torn: Receiver | undefined, wanted?: Version): Promise<void> {
  const { patience } = session.context;
  let receiver = torn;
  session.held = undefined; // until it is complete, what the server keeps for this session is open
  for (;;) {
    if (!session.joined.hasParameters && receiver === undefined && wanted === undefined) await initialize(session);
    // Anew after each Join, which may have settled another wire type.
    receiver ??= new Receiver(session.formats.parameters);
    const before = receiver.received;
    try {
      const state = await receive(session, receiver, wanted);
      session.install(state, receiver);
      patience.succeeded();
      return;
    } catch (error) {
      if (error instanceof Torn) {
        if (receiver.received > before) patience.movedOn();
        await patience.torn(error);
      } else if (error instanceof Refusal) {
        if (await startsOver(session, error, receiver)) receiver = undefined;
      } else throw error;
    }
  }
}

/** What the refusal of a pull asks for, so that the next attempt may succeed. Returns whether that is a new transfer. */
async function startsOver(session: Session, refusal: Refusal, receiver: Receiver): Promise<boolean> {
  if (refusal.reason === 'STALE_BASE' && (receiver.version !== undefined || session.shard.isPart)) {
    session.stale(refusal.message);
    return true;
  }
  if (LOST_SESSION.has(refusal.reason) || refusal.reason === 'NOT_INITIALIZED') {
    await session.rejoin(refusal.message);
    return true;
  }
  if (refusal.reason === 'SUPERSEDED') await session.confirmSuperseded(refusal);
  else await session.context.patience.asked(refusal);
  return false;
}

/** One Pull into `receiver`, which keeps what arrived when the stream breaks. */
async function receive(session: Session, receiver: Receiver, wanted?: Version): Promise<ModelState> {
  const { calls, settings, stop } = session.context;
  const call = calls.pull(request(session, receiver, wanted));
  const incoming = new Incoming<PullResponse>(call);
  try {
    for (let isFirst = true; ; isFirst = false) {
      // Whoever waits for its turn waits long, at a server that answers; within a transfer silence is a broken path.
      const silence = isFirst ? settings.heartbeatInterval : settings.progressTimeout;
      const onSilence = isFirst ? async () => void (await session.probe()) : broken('the parameters stopped coming');
      const message = await patiently(incoming.next(), call, silence, onSilence, stop);
      if (message === undefined) throw new Torn('the stream ended without a footer');
      if (message.notModified !== undefined) throw new Misbehaved('not modified, and no version was named');
      if (message.header !== undefined) receiver.announce(message.header);
      if (message.chunk !== undefined) receiver.add(message.chunk);
      if (message.footer !== undefined) return receiver.finish(message.footer);
    }
  } catch (error) {
    if (!(error instanceof Damaged)) throw error;
    receiver.reset();
    throw new Torn(`the parameters arrived damaged: ${error.message}`);
  } finally {
    call.cancel();
  }
}

function request(session: Session, receiver: Receiver, wanted?: Version): PullRequest {
  return {
    sessionId: session.id,
    knownVersion: undefined,
    resumeVersion: receiver.version ?? wanted,
    resumeOffset: receiver.version === undefined ? 0n : BigInt(receiver.received),
    wireType: WireType.UNSPECIFIED, // Join has settled it
    withLayout: false,
    clock: 0n,
  };
}

/** Uploading first parameters. */

import type { ClientWritableStream } from '@grpc/grpc-js';

import { broken, patiently, send } from './calls.js';
import { crc32c } from './crc32c.js';
import { failure, LOST_SESSION, Misbehaved, Refusal, Torn } from './errors.js';
import { InitializeOutcome, type InitializeRequest, type InitializeResponse } from './generated/gemps/v1/parameters.js';
import { PayloadFormat } from './payload.js';
import type { Session } from './session.js';
import { codecOf } from './wire-types.js';

/**
 * Upload the session's values, unless somebody else's come first. An upload whose answer was lost is sent again, and
 * then finds its own parameters there, which is as good: everyone pulls next.
 */
export async function initialize(session: Session): Promise<void> {
  const { patience } = session.context;
  const format = new PayloadFormat(session.formats.delta.layout, codecOf('float32'));
  const payload = format.encode(session.state);
  while (!session.joined.hasParameters) {
    try {
      const { outcome } = await upload(session, format, payload);
      if (outcome !== InitializeOutcome.ACCEPTED && outcome !== InitializeOutcome.ALREADY_INITIALIZED) {
        throw new Misbehaved(`an upload has the outcome ${outcome}`);
      }
      patience.succeeded();
      session.joined.hasParameters = true;
    } catch (error) {
      if (error instanceof Torn) await patience.torn(error);
      else if (!(error instanceof Refusal)) throw error;
      else if (LOST_SESSION.has(error.reason)) await session.rejoin(error.message);
      else if (error.reason === 'STALE_BASE')
        session.stale(error.message); // another worker's upload
      else if (error.reason === 'SUPERSEDED') await session.confirmSuperseded(error);
      else await patience.asked(error);
    }
  }
}

async function upload(session: Session, format: PayloadFormat, payload: Uint8Array): Promise<InitializeResponse> {
  const { calls, settings, stop } = session.context;
  let call!: ClientWritableStream<InitializeRequest>;
  let isAnswered = false;
  const answered = new Promise<InitializeResponse>((resolve, reject) => {
    call = calls.initialize((error, response) => {
      isAnswered = true;
      if (error === null) resolve(response);
      else reject(failure(error));
    });
  });
  answered.catch(() => undefined); // it may be refused before anybody waits for it
  const stalled = broken('the upload stopped moving');
  for (const message of messages(session, format, payload)) {
    if (isAnswered) break; // others were faster, or it is refused: the rest need not travel
    await patiently(send(call, message), call, settings.progressTimeout, stalled, stop);
  }
  if (!isAnswered) call.end();
  return patiently(answered, call, settings.heartbeatInterval, async () => void (await session.probe()), stop);
}

function* messages(session: Session, format: PayloadFormat, payload: Uint8Array): Generator<InitializeRequest> {
  const header = { sessionId: session.id, byteCount: BigInt(payload.length), adapter: new Uint8Array(0) };
  const chunks = format.chunks(session.joined.chunkBytes);
  yield { header, chunk: undefined, footer: undefined };
  for (const [start, end] of chunks) {
    yield {
      header: undefined,
      chunk: { offset: BigInt(start), data: payload.subarray(start, end) },
      footer: undefined,
    };
  }
  const footer = { byteCount: BigInt(payload.length), chunkCount: BigInt(chunks.length), crc32c: crc32c(payload) };
  yield { header: undefined, chunk: undefined, footer };
}

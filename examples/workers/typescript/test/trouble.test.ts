import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Metadata, status } from '@grpc/grpc-js';

import { patiently } from '../src/calls.js';
import { failure, Refusal, Stopped, Torn, Unavailable } from '../src/errors.js';
import { ErrorInfo, RetryInfo } from '../src/generated/vendored/google/rpc/error_details.js';
import { Status } from '../src/generated/vendored/google/rpc/status.js';
import { Patience } from '../src/patience.js';
import { DEFAULTS } from '../src/settings.js';

function refused(code: status, reason?: string, retryAfter?: number): Torn | Refusal {
  const metadata = new Metadata();
  const details = [];
  if (reason !== undefined) {
    const info = { reason, domain: 'gemps', metadata: {} };
    details.push({ typeUrl: 'type.googleapis.com/google.rpc.ErrorInfo', value: ErrorInfo.encode(info).finish() });
  }
  if (retryAfter !== undefined) {
    const retryDelay = { seconds: BigInt(Math.floor(retryAfter)), nanos: (retryAfter % 1) * 1e9 };
    details.push({
      typeUrl: 'type.googleapis.com/google.rpc.RetryInfo',
      value: RetryInfo.encode({ retryDelay }).finish(),
    });
  }
  const encoded = Status.encode({ code, message: 'why', details }).finish();
  metadata.set('grpc-status-details-bin', Buffer.from(encoded));
  return failure({ code, details: 'why', metadata });
}

/** A clock that sleeping moves on. */
function patience(): { patience: Patience; pauses: number[]; reported: string[] } {
  const pauses: number[] = [];
  const reported: string[] = [];
  let now = 0;
  const sleep = (ms: number): Promise<void> => {
    pauses.push(ms);
    now += ms;
    return Promise.resolve();
  };
  const stop = new AbortController().signal;
  return {
    patience: new Patience(
      DEFAULTS,
      (text) => reported.push(text),
      stop,
      () => now,
      sleep,
    ),
    pauses,
    reported,
  };
}

test('a status with details is a refusal with its reason, and with the delay that it asks for', () => {
  const found = refused(status.RESOURCE_EXHAUSTED, 'WAITING_ROOM', 1.5);
  assert.ok(found instanceof Refusal);
  assert.deepEqual([found.reason, found.retryAfterMs], ['WAITING_ROOM', 1500]);
  const final = refused(status.FAILED_PRECONDITION, 'STALE_BASE');
  assert.ok(final instanceof Refusal && final.retryAfterMs === undefined);
});

test('what gRPC reports of a broken connection, and a phase of the server, may be repeated', () => {
  for (const code of [status.UNAVAILABLE, status.CANCELLED, status.DEADLINE_EXCEEDED, status.INTERNAL]) {
    assert.ok(refused(code) instanceof Torn);
  }
  assert.ok(refused(status.INTERNAL, 'INTERNAL') instanceof Refusal);
  assert.ok(refused(status.UNIMPLEMENTED) instanceof Refusal);
  const draining = refused(status.UNAVAILABLE, 'DRAINING', 2);
  assert.ok(draining instanceof Torn && draining.retryAfterMs === 2000);
});

test('pauses grow, are jittered by half, and never shorter than the server asks for', async () => {
  const { patience: it, pauses } = patience();
  for (let i = 0; i < 20; i++) await it.torn(new Torn('gone'));
  pauses.forEach((pause, i) => {
    const middle = Math.min(100 * 2 ** i, 2000);
    assert.ok(pause >= middle / 2 && pause <= middle * 1.5);
  });
  await it.torn(new Torn('draining', 60_000));
  assert.ok((pauses.at(-1) ?? 0) >= 60_000);
  await it.asked(new Refusal('MEMORY', 'full', 7_000));
  assert.ok((pauses.at(-1) ?? 0) >= 7_000);
});

test('patience ends when a call has failed for too long, and starts anew with a success', async () => {
  const { patience: it, reported } = patience();
  const longTrouble = async (): Promise<void> => {
    for (let i = 0; i < 140; i++) await it.torn(new Torn('gone'));
  };
  await longTrouble();
  it.succeeded();
  await longTrouble();
  await assert.rejects(async () => {
    await longTrouble();
  }, Unavailable);
  assert.deepEqual(reported, [
    'trying again for up to 300 s: gone',
    'the server answers again',
    'trying again for up to 300 s: gone',
  ]);
});

test('a refusal without a delay is not repeated', async () => {
  const { patience: it, pauses } = patience();
  const refusal = new Refusal('MALFORMED', 'a bug');
  await assert.rejects(it.asked(refusal), refusal);
  assert.deepEqual(pauses, []);
});

test('silence is asked about, and ends the call when it is not excused', async () => {
  const never = new Promise<void>(() => undefined);
  const stop = new AbortController();
  let cancelled = 0;
  const call = { cancel: () => void cancelled++ };
  let asked = 0;
  const excuse = (): Promise<void> => (++asked < 3 ? Promise.resolve() : Promise.reject(new Torn('no answer')));
  await assert.rejects(patiently(never, call, 1, excuse, stop.signal), Torn);
  assert.deepEqual([asked, cancelled], [3, 1]);
  const stopped = patiently(never, call, 60_000, excuse, stop.signal);
  stop.abort();
  await assert.rejects(stopped, Stopped);
  assert.equal(cancelled, 2);
  assert.equal(await patiently(Promise.resolve(5), call, 60_000, excuse, new AbortController().signal), 5);
});

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Metadata, status } from '@grpc/grpc-js';

import { Backoff } from '../src/backoff.js';
import { Failure, failureOf } from '../src/failure.js';
import { ErrorInfo, RetryInfo } from '../src/generated/vendored/google/rpc/error_details.js';
import { Status } from '../src/generated/vendored/google/rpc/status.js';

function refusal(reason: string, about: { final?: string; domain?: string; delay?: number } = {}): unknown {
  const { final, domain = 'gemps', delay } = about;
  const details = [
    {
      typeUrl: 'type.googleapis.com/google.rpc.ErrorInfo',
      value: ErrorInfo.encode(
        ErrorInfo.create({ reason, domain, metadata: final === undefined ? {} : { final } }),
      ).finish(),
    },
  ];
  if (delay !== undefined) {
    const retryDelay = { seconds: BigInt(Math.floor(delay)), nanos: (delay % 1) * 1e9 };
    const value = RetryInfo.encode(RetryInfo.create({ retryDelay })).finish();
    details.push({ typeUrl: 'type.googleapis.com/google.rpc.RetryInfo', value });
  }
  const metadata = new Metadata();
  const encoded = Status.encode(Status.create({ code: 9, message: 'because', details })).finish();
  metadata.set('grpc-status-details-bin', Buffer.from(encoded));
  return Object.assign(new Error('because'), { code: status.FAILED_PRECONDITION, details: 'because', metadata });
}

function broken(code: status): unknown {
  return Object.assign(new Error('broken'), { code, details: 'broken', metadata: new Metadata() });
}

test('each refusal has the remedy of the table in errors.proto', () => {
  for (const [error, remedy, delay] of [
    [refusal('STALE_BASE'), 'rejoin', 0],
    [refusal('CHECKSUM'), 'rejoin', 0],
    [refusal('DRAINING', { delay: 1.5 }), 'rejoin', 1500],
    [refusal('WAITING_ROOM', { delay: 2 }), 'rejoin', 2000],
    [refusal('A_NEW_REASON', { delay: 1 }), 'rejoin', 1000],
    [refusal('RUN_FINISHED'), 'finished', 0],
    [refusal('FEATURE', { final: 'true' }), 'final', 0],
    [refusal('NEWER_SESSION', { final: 'true' }), 'final', 0],
    [refusal('SIZE_MISMATCH'), 'bug', 0],
    [refusal('A_NEW_REASON'), 'bug', 0],
    [refusal('STALE_BASE', { domain: 'a proxy' }), 'bug', 0],
    [broken(status.UNAVAILABLE), 'rejoin', 0],
    [broken(status.INTERNAL), 'rejoin', 0],
    [broken(status.UNIMPLEMENTED), 'bug', 0],
  ] as const) {
    const failure = failureOf(error);
    assert.equal(failure.remedy, remedy, failure.message);
    assert.equal(failure.delay, delay, failure.message);
  }
});

test('an error that is none of a call is thrown on', () => {
  assert.throws(() => failureOf(new TypeError('a mistake')), TypeError);
});

test('pauses grow up to 2 s, and are short again after a commit', () => {
  const backoff = new Backoff();
  const torn = new Failure('rejoin', 'torn');
  const pauses = Array.from({ length: 8 }, () => backoff.after(torn, 0));
  pauses.forEach((pause, i) => {
    const most = Math.min(100 * 2 ** i, 2000);
    assert.ok(pause >= most / 2 && pause <= most, `${i}: ${pause}`);
  });
  backoff.applied();
  assert.ok(backoff.after(torn, 0) <= 100);
});

test("the server's advice is waited for", () => {
  const pause = new Backoff().after(new Failure('rejoin', 'later', 'STALLED', 3000), 0);
  assert.ok(pause > 3000 && pause <= 3100);
});

test('a worker gives up when the server is away for five minutes, and not while it answers', () => {
  const torn = new Failure('rejoin', 'torn');
  const away = new Backoff();
  away.after(torn, 0);
  away.after(torn, 300_000);
  assert.throws(() => away.after(torn, 300_001), torn);
  const answering = new Backoff();
  answering.after(torn, 0);
  answering.answered();
  answering.after(torn, 400_000);
  answering.after(new Failure('rejoin', 'full', 'STORAGE_FULL', 1000), 600_000);
  answering.after(torn, 900_000);
});

test('more than five deltas in a row that are refused for their content are too many', () => {
  const backoff = new Backoff();
  const refused = new Failure('rejoin', 'not finite', 'BAD_VALUE');
  for (let i = 0; i < 5; i++) backoff.after(refused, 0);
  assert.throws(() => backoff.after(refused, 0), refused);
  backoff.applied();
  backoff.after(refused, 0);
});

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { crc32c } from '../src/crc32c.js';
import { Misbehaved } from '../src/errors.js';
import type { ParametersHeader } from '../src/generated/gemps/v1/transfer.js';
import { Layout } from '../src/layout.js';
import { type ModelState, PayloadFormat } from '../src/payload.js';
import { Damaged, Receiver } from '../src/receiver.js';
import { codecOf } from '../src/wire-types.js';

const LAYOUT = new Layout([
  { name: 'weight', shape: [20, 30], elementType: 'float32', kind: 'parameter' },
  { name: 'empty', shape: [0, 4], elementType: 'float64', kind: 'parameter' },
  { name: 'steps', shape: [3], elementType: 'int64', kind: 'buffer' },
  { name: 'flags', shape: [5], elementType: 'bool', kind: 'buffer' },
  { name: 'frozen', shape: [7], elementType: 'float16', kind: 'frozen', sha256: 'ab'.repeat(32) },
]);
const STATE: ModelState = {
  parameters: Float32Array.from({ length: 600 }, (_, i) => i / 8),
  buffers: Uint8Array.from({ length: 29 }, (_, i) => i),
};
const FORMAT = new PayloadFormat(LAYOUT, codecOf('float32'));
const VERSION = { incarnation: 7n, clock: 41n };

function header(format: PayloadFormat, changed: Partial<ParametersHeader> = {}): ParametersHeader {
  return {
    version: VERSION,
    wireType: format.codec.wireType,
    byteCount: BigInt(format.byteCount),
    offset: 0n,
    layoutDigest: LAYOUT.digest,
    layout: undefined,
    sharedMemory: undefined,
    buffers: undefined,
    adapter: new Uint8Array(0),
    shards: [],
    baseVersion: undefined,
    ...changed,
  };
}

function sendTo(receiver: Receiver, payload: Uint8Array, chunks: [number, number][]): void {
  for (const [start, end] of chunks) receiver.add({ offset: BigInt(start), data: payload.subarray(start, end) });
}

function footer(payload: Uint8Array, chunkCount: number): { byteCount: bigint; chunkCount: bigint; crc32c: number } {
  return { byteCount: BigInt(payload.length), chunkCount: BigInt(chunkCount), crc32c: crc32c(payload) };
}

test('chunks follow each other, are no larger than asked for, and end at borders', () => {
  for (const name of ['float32', 'bfloat16'] as const) {
    const format = new PayloadFormat(LAYOUT, codecOf(name));
    for (const chunkBytes of [260, 261, 300, 1000, 1 << 20]) {
      let at = 0;
      for (const [start, end] of format.chunks(chunkBytes)) {
        assert.equal(start, at);
        assert.ok(end > start && end - start <= chunkBytes && format.isBorder(end));
        at = end;
      }
      assert.equal(at, format.byteCount);
    }
  }
  assert.deepEqual(new PayloadFormat(new Layout([]), codecOf('float32')).chunks(1024), []);
});

test('borders lie between elements', () => {
  const halves = new PayloadFormat(LAYOUT, codecOf('bfloat16'));
  // 600 elements of 2 bytes; then 3 int64, then 5 bools.
  assert.equal(halves.byteCount, 1200 + 24 + 5);
  const borders = Array.from({ length: halves.byteCount + 1 }, (_, i) => i).filter((i) => halves.isBorder(i));
  const parameters = Array.from({ length: 600 }, (_, i) => 2 * i);
  assert.deepEqual(borders, [...parameters, 1200, 1208, 1216, 1224, 1225, 1226, 1227, 1228, 1229]);
});

test('a payload that arrives whole is the state that was sent', () => {
  const payload = FORMAT.encode(STATE);
  const chunks = FORMAT.chunks(1000);
  const receiver = new Receiver(FORMAT);
  receiver.announce(header(FORMAT));
  sendTo(receiver, payload, chunks);
  assert.deepEqual(receiver.finish(footer(payload, chunks.length)), STATE);
});

test('a torn transfer continues where it ended, with a footer that counts its own chunks', () => {
  const payload = FORMAT.encode(STATE);
  const chunks = FORMAT.chunks(1000);
  const receiver = new Receiver(FORMAT);
  receiver.announce(header(FORMAT));
  sendTo(receiver, payload, chunks.slice(0, 2));
  assert.equal(receiver.received, 2000);
  assert.throws(() => receiver.announce(header(FORMAT)), Misbehaved); // from the start, though it was not asked for
  receiver.announce(header(FORMAT, { offset: 2000n }));
  sendTo(receiver, payload, chunks.slice(2));
  assert.deepEqual(receiver.finish(footer(payload, chunks.length - 2)), STATE);
});

test('a payload without a footer that matches is not believed', () => {
  const payload = FORMAT.encode(STATE);
  const good = footer(payload, 1);
  for (const wrong of [{ crc32c: good.crc32c ^ 1 }, { chunkCount: 2n }, { byteCount: good.byteCount - 1n }]) {
    const receiver = new Receiver(FORMAT);
    receiver.announce(header(FORMAT));
    sendTo(receiver, payload, [[0, payload.length]]);
    assert.throws(() => receiver.finish({ ...good, ...wrong }), Damaged);
  }
  const early = new Receiver(FORMAT);
  early.announce(header(FORMAT));
  sendTo(early, payload, [[0, 400]]);
  assert.throws(() => early.finish(good), Damaged);
});

test('a chunk that is not the next one is refused', () => {
  const receiver = new Receiver(FORMAT);
  const bytes = new Uint8Array(FORMAT.byteCount + 1);
  assert.throws(() => receiver.add({ offset: 0n, data: bytes.subarray(0, 8) }), Damaged);
  receiver.announce(header(FORMAT));
  receiver.add({ offset: 0n, data: bytes.subarray(0, 8) });
  for (const [offset, length] of [
    [0, 8],
    [12, 8],
    [8, 0],
    [8, 3],
    [8, FORMAT.byteCount],
  ]) {
    assert.throws(() => receiver.add({ offset: BigInt(offset), data: bytes.subarray(0, length) }), Damaged);
  }
});

test('parameters of another layout, size, wire type or version are refused', () => {
  for (const changed of [
    { layoutDigest: new Uint8Array(32) },
    { byteCount: 4n },
    { wireType: codecOf('bfloat16').wireType },
    { offset: 4n },
    { version: undefined },
  ]) {
    assert.throws(() => new Receiver(FORMAT).announce(header(FORMAT, changed)), Misbehaved);
  }
});

test('parameters that are not finite, or giants, are not believed', () => {
  for (const bad of [NaN, Infinity, -2e30]) {
    const payload = FORMAT.encode({ ...STATE, parameters: STATE.parameters.with(3, bad) });
    const receiver = new Receiver(FORMAT);
    receiver.announce(header(FORMAT));
    sendTo(receiver, payload, [[0, payload.length]]);
    assert.throws(() => receiver.finish(footer(payload, 1)), Damaged);
  }
});

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { crc32c } from '../src/crc32c.js';
import { Failure } from '../src/failure.js';
import { ParametersHeader, WireType } from '../src/generated/gemps/v1/transfer.js';
import { chunksOf, type Parts, payloadOf, receive } from '../src/transfer.js';

const MODEL = { parameters: Float32Array.of(1, -2.5), buffers: Uint8Array.of(7, 8, 9) };
const PAYLOAD = payloadOf(MODEL);
const DIGEST = new Uint8Array(32).fill(5);
const NOTHING = { header: undefined, chunk: new Uint8Array(0), footer: undefined };
const FOOTER = { ...NOTHING, footer: { crc32c: crc32c(PAYLOAD) } };

function header(changed: Partial<ParametersHeader> = {}): Parts {
  const version = { incarnation: 7n, clock: 3n };
  const fields = { version, wireType: WireType.FLOAT32, byteCount: 11n, layoutDigest: DIGEST, ...changed };
  return { ...NOTHING, header: ParametersHeader.create(fields) };
}

async function received(...messages: Parts[]) {
  const stream = async function* () {
    yield* messages;
  };
  return receive(stream(), MODEL, DIGEST);
}

function chunks(size: number): Parts[] {
  return [...chunksOf(PAYLOAD, size)].map((chunk) => ({ ...NOTHING, chunk }));
}

test('parameters arrive whole, wherever their chunks are cut', async () => {
  for (let size = 1; size <= 12; size++) {
    const { model, version } = await received(header(), ...chunks(size), FOOTER);
    assert.deepEqual({ ...model, buffers: [...model.buffers] }, { ...MODEL, buffers: [7, 8, 9] });
    assert.equal(version?.clock, 3n);
  }
});

test('one message may have all parts', async () => {
  const { model } = await received({ ...header(), chunk: PAYLOAD, footer: FOOTER.footer });
  assert.deepEqual(model.parameters, MODEL.parameters);
});

test('parameters that are damaged, cut short, too long or torn are not accepted', async () => {
  const damaged = Buffer.from(PAYLOAD);
  damaged[3] ^= 1;
  for (const messages of [
    [header(), { ...NOTHING, chunk: damaged }, FOOTER],
    [header(), ...chunks(4).slice(1), FOOTER],
    [header(), ...chunks(4), ...chunks(4), FOOTER],
    [header(), ...chunks(4)],
    [],
  ]) {
    await assert.rejects(received(...messages), (error) => error instanceof Failure && error.remedy === 'rejoin');
  }
});

test('parameters of another layout, size or wire type end the worker', async () => {
  for (const changed of [{ layoutDigest: new Uint8Array(32) }, { byteCount: 12n }, { wireType: WireType.BFLOAT16 }]) {
    await assert.rejects(
      received(header(changed), ...chunks(4), FOOTER),
      (error) => error instanceof Failure && error.remedy === 'bug',
    );
  }
});

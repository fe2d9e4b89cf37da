import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  BadValue,
  codecOf,
  fromBfloat16,
  fromFloat16,
  toBfloat16,
  toFloat16,
  WIRE_TYPE_NAMES,
} from '../src/wire-types.js';
import { bitsOf, float, vectors } from './vectors.js';

test('bfloat16 is rounded as in the shared vectors', () => {
  for (const { float32, bfloat16 } of vectors<{ float32: number; bfloat16: number }>('bfloat16.json')) {
    assert.equal(toBfloat16(float(float32)), bfloat16, float32.toString(16));
  }
});

test('float16 is rounded, and saturates, as in the shared vectors', () => {
  for (const { float32, float16 } of vectors<{ float32: number; float16: number }>('float16.json')) {
    assert.equal(toFloat16(float(float32)), float16, float32.toString(16));
  }
});

test('int8 blocks are those of the shared vectors', () => {
  const codec = codecOf('int8_block');
  for (const { name, float32, encoded } of vectors<{ name: string; float32: number[]; encoded: string }>(
    'int8_block.json',
  )) {
    const values = Float32Array.from(float32, float);
    const bytes = new Uint8Array(codec.byteCount(values.length));
    codec.encode(values, bytes);
    assert.equal(Buffer.from(bytes).toString('hex'), encoded, name);
  }
});

test('every float16 and bfloat16 there is comes back as it was', () => {
  for (let bits = 0; bits < 1 << 16; bits++) {
    if ((bits & 0x7fff) <= 0x7c00) assert.equal(toFloat16(fromFloat16(bits)), bits);
    if ((bits & 0x7fff) <= 0x7f80) assert.equal(toBfloat16(fromBfloat16(bits)), bits);
  }
  assert.ok(Number.isNaN(fromFloat16(toFloat16(NaN))));
  assert.ok(Number.isNaN(fromBfloat16(toBfloat16(NaN))));
});

test('what was encoded is decoded to the nearest that its wire type has', () => {
  const values = Float32Array.from({ length: 700 }, (_, i) => Math.sin(i) * 2 ** ((i % 40) - 25));
  const steps = { float32: 0, float16: 2 ** -11, bfloat16: 2 ** -8, int8_block: 0 };
  for (const name of WIRE_TYPE_NAMES) {
    const codec = codecOf(name);
    const bytes = new Uint8Array(codec.byteCount(values.length) + 1).subarray(1); // at an address that is not aligned
    const decoded = new Float32Array(values.length);
    codec.encode(values, bytes);
    codec.decode(bytes, decoded);
    values.forEach((value, i) => {
      const start = i - (i % 256);
      const largest = Math.max(...values.subarray(start, start + 256).map(Math.abs));
      const limit = name === 'int8_block' ? largest / 250 : Math.abs(value) * steps[name] + 2 ** -25;
      assert.ok(Math.abs(decoded[i] - value) <= limit, `${name} ${value} ${decoded[i]}`);
    });
  }
});

test('an int8 block with an illegal element or scale is refused', () => {
  const codec = codecOf('int8_block');
  for (const bytes of ['0000803f80', '000080bf01', '0000807f01', '0000c07f01']) {
    assert.throws(() => codec.decode(Buffer.from(bytes, 'hex'), new Float32Array(1)), BadValue);
  }
  const one = new Float32Array(1);
  codec.decode(Buffer.from('0000003f81', 'hex'), one);
  assert.equal(bitsOf(one[0]), bitsOf(-63.5));
});

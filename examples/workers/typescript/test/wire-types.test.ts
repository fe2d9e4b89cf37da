import assert from 'node:assert/strict';
import { test } from 'node:test';

import { codecOf, fromBfloat16, toBfloat16, WIRE_TYPE_NAMES } from '../src/wire-types.js';
import { float, vectors } from './vectors.js';

test('bfloat16 is rounded as in the shared vectors', () => {
  for (const { float32, bfloat16 } of vectors<{ float32: number; bfloat16: number }>('bfloat16.json')) {
    assert.equal(toBfloat16(float(float32)), bfloat16, float32.toString(16));
  }
});

test('every bfloat16 there is comes back as it was', () => {
  for (let bits = 0; bits < 1 << 16; bits++) {
    if ((bits & 0x7fff) <= 0x7f80) assert.equal(toBfloat16(fromBfloat16(bits)), bits);
  }
  assert.ok(Number.isNaN(fromBfloat16(toBfloat16(NaN))));
});

test('what was encoded is decoded to the nearest that its wire type has', () => {
  const values = Float32Array.from({ length: 700 }, (_, i) => Math.sin(i) * 2 ** ((i % 40) - 25));
  const steps = { float32: 0, bfloat16: 2 ** -8 };
  for (const name of WIRE_TYPE_NAMES) {
    const codec = codecOf(name);
    const bytes = new Uint8Array(codec.byteCount(values.length) + 1).subarray(1); // at an address that is not aligned
    const decoded = new Float32Array(values.length);
    codec.encode(values, bytes);
    codec.decode(bytes, decoded);
    values.forEach((value, i) => {
      const limit = Math.abs(value) * steps[name] + 2 ** -25;
      assert.ok(Math.abs(decoded[i] - value) <= limit, `${name} ${value} ${decoded[i]}`);
    });
  }
});

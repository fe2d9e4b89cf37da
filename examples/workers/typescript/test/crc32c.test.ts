import assert from 'node:assert/strict';
import { test } from 'node:test';

import { crc32c } from '../src/crc32c.js';
import { vectors } from './vectors.js';

test('checksums are those of the shared vectors', () => {
  for (const { name, hex, crc32c: wanted } of vectors<{ name: string; hex?: string; crc32c: number }>('crc32c.json')) {
    const bytes =
      hex === undefined ? Uint8Array.from({ length: 4099 }, (_, i) => (i * i) % 251) : Buffer.from(hex, 'hex');
    assert.equal(crc32c(bytes), wanted, name);
  }
});

test('a checksum can be taken part by part, wherever the parts end', () => {
  const bytes = Uint8Array.from({ length: 40 }, (_, i) => i * 7);
  for (let cut = 0; cut <= bytes.length; cut++) {
    assert.equal(crc32c(bytes.subarray(cut), crc32c(bytes.subarray(0, cut))), crc32c(bytes));
  }
});

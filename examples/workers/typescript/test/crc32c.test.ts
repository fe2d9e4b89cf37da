import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

import { crc32c } from '../src/crc32c.js';

// From dist/test, where the compiled tests are.
const VECTORS = new URL('../../../../../proto/vectors/crc32c.json', import.meta.url);

test('checksums are those of the vectors that all implementations share', () => {
  const { cases } = JSON.parse(readFileSync(VECTORS, 'utf8')) as {
    cases: { name: string; hex?: string; crc32c: number }[];
  };
  assert.ok(cases.length > 3);
  for (const { name, hex, crc32c: wanted } of cases) {
    const bytes =
      hex === undefined ? Uint8Array.from({ length: 4099 }, (_, i) => (i * i) % 251) : Buffer.from(hex, 'hex');
    assert.equal(crc32c(bytes), wanted, name);
  }
});

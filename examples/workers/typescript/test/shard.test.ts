import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Layout } from '../src/layout.js';
import { Shard, together } from '../src/shard.js';

const LAYOUT = new Layout([
  { name: 'weight', shape: [7, 171], elementType: 'float32', kind: 'parameter' },
  { name: 'bias', shape: [3], elementType: 'float16', kind: 'parameter' },
  { name: 'steps', shape: [], elementType: 'int64', kind: 'buffer' },
]);
const STATE = {
  parameters: Float32Array.from({ length: 1200 }, (_, i) => i),
  buffers: Uint8Array.of(1, 2, 3, 4, 5, 6, 7, 8),
};

test('ranges begin at multiples of 256, and the last shard has the rest and the buffers', () => {
  const shards = [0, 1, 2].map((index) => new Shard(index, 3));
  const parts = shards.map((shard) => shard.partOf(STATE));
  assert.deepEqual(
    parts.map(({ parameters, buffers }) => [parameters[0], parameters.length, buffers.length]),
    [
      [0, 256, 0],
      [256, 512, 0],
      [768, 432, 8],
    ],
  );
  const layouts = shards.map((shard) => shard.layoutOf(LAYOUT));
  assert.deepEqual(
    layouts.map((layout) => [layout.parameterCount, layout.ownBytes('buffer')]),
    [
      [256, 0],
      [512, 0],
      [432, 8],
    ],
  );
  assert.equal(new Set(layouts.map(({ digest }) => Buffer.from(digest).toString('hex'))).size, 3);
  assert.deepEqual(together(parts), STATE);
});

test('a single server holds the whole model', () => {
  assert.equal(new Shard().layoutOf(LAYOUT), LAYOUT);
  assert.deepEqual(new Shard().partOf(STATE), STATE);
});

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { canonicalText, type ElementName, type KindName, Layout } from '../src/layout.js';
import { vectors } from './vectors.js';

interface Case {
  name: string;
  tensors: {
    name: string;
    shape: number[];
    element_type: ElementName;
    kind: KindName;
    aliases?: string[];
    sha256?: string;
  }[];
  digest: string;
}

test('digests are those of the shared vectors', () => {
  for (const { name, tensors, digest } of vectors<Case>('layout_digest.json')) {
    const layout = new Layout(tensors.map(({ element_type, ...rest }) => ({ ...rest, elementType: element_type })));
    assert.equal(Buffer.from(layout.digest).toString('hex'), digest, name);
  }
});

test('lengths are of UTF-8, and aliases in the order of its bytes', () => {
  // U+FF5E comes behind U+1F600 in UTF-16, and before it in UTF-8.
  const aliases = ['\u{1F600}', '\uFF5E', 'b', 'é'];
  const text = canonicalText([{ name: 'ß', shape: [], elementType: 'int64', kind: 'buffer', aliases }]);
  assert.equal(text, 'gemps-layout-1\nbuffer int64 0: 2:ß 1:b 2:é 3:\uFF5E 4:\u{1F600}\n');
});

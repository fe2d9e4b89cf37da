/** The vectors that all workers share (proto/vectors in gemps' checkout). */

import { readFileSync } from 'node:fs';

// From dist/test, where the compiled tests are.
const FOLDER = new URL('../../../../../proto/vectors/', import.meta.url);

export function vectors<Case>(file: string): Case[] {
  const { cases } = JSON.parse(readFileSync(new URL(file, FOLDER), 'utf8')) as { cases: Case[] };
  if (cases.length === 0) throw new Error(`${file} has no cases`);
  return cases;
}

/** The float32 with these bits. */
export function float(bits: number): number {
  return new Float32Array(Uint32Array.of(bits).buffer)[0];
}

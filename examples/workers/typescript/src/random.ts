/** A small generator of random numbers, so that seed and rank decide what a worker does. */

/** Numbers in [0, 1), by SplitMix32 (a Weyl sequence through a finaliser of MurmurHash3's kind). */
export function randomNumbers(...seeds: number[]): () => number {
  let state = 0;
  const next = (): number => {
    state = (state + 0x9e3779b9) | 0;
    let z = Math.imul(state ^ (state >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return (z ^ (z >>> 15)) >>> 0;
  };
  for (const seed of seeds) state = next() ^ seed;
  return () => next() / 2 ** 32;
}

/** 0 .. count - 1 in random order (Fisher and Yates). */
export function permutation(count: number, random: () => number): Uint32Array {
  const order = Uint32Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

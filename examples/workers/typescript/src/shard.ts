/** The part of a model that one of several servers holds (shards.proto). */

import { canonicalText, Layout, type Tensor } from './layout.js';
import type { ModelState } from './payload.js';

/** Ranges begin at multiples of this, so that no block of INT4_BLOCK or SPARSE_BLOCK is cut. */
const ALIGNMENT = 256;

/** Shard `index` of `count`; 0 is the primary, and 0 of 1 is a server that holds the whole model. */
export class Shard {
  constructor(
    readonly index = 0,
    readonly count = 1,
  ) {}

  /** Whether there are others. */
  get isPart(): boolean {
    return this.count > 1;
  }

  /** The layout of this shard's payloads: a range of the parameters; the last shard has the buffers, too. */
  layoutOf(whole: Layout): Layout {
    if (!this.isPart) return whole;
    const [start, end] = this.#range(whole.parameterCount);
    const range: Tensor = { name: 'range', shape: [end - start], elementType: 'float32', kind: 'parameter' };
    const text = `${canonicalText(whole.tensors)}shard ${this.index}/${this.count}\n`;
    return new Layout([range, ...(this.#isLast ? whole.of('buffer') : [])], text);
  }

  /** This shard's part of a whole model's values. */
  partOf({ parameters, buffers }: ModelState): ModelState {
    const [start, end] = this.#range(parameters.length);
    return { parameters: parameters.subarray(start, end), buffers: this.#isLast ? buffers : new Uint8Array(0) };
  }

  get #isLast(): boolean {
    return this.index === this.count - 1;
  }

  #range(elements: number): [number, number] {
    return [this.#cut(elements, this.index), this.#cut(elements, this.index + 1)];
  }

  #cut(elements: number, index: number): number {
    if (index === this.count) return elements;
    return Math.floor(Math.floor((elements * index) / this.count) / ALIGNMENT) * ALIGNMENT;
  }
}

/** The whole model's values, from the parts of all shards in order. */
export function together(parts: readonly ModelState[]): ModelState {
  const [first] = parts;
  if (parts.length === 1) return first;
  const parameters = new Float32Array(parts.reduce((sum, part) => sum + part.parameters.length, 0));
  let start = 0;
  for (const part of parts) {
    parameters.set(part.parameters, start);
    start += part.parameters.length;
  }
  return { parameters, buffers: parts[parts.length - 1].buffers };
}

/** What a payload holds, where it may be cut, and between tensors and its bytes. */

import { elementBytes, elementCount, type Layout } from './layout.js';
import type { Codec } from './wire-types.js';

/** A model's values: of each kind all tensors in layout order, without padding. */
export interface ModelState {
  /** In float32, whatever the element types are: as the service holds them. */
  readonly parameters: Float32Array;
  /** In their own element types, little-endian. */
  readonly buffers: Uint8Array;
}

/** Bytes [start, end) that may be cut each `unit` bytes, counted from `start`. */
interface Region {
  readonly start: number;
  readonly end: number;
  readonly unit: number;
}

/** The form of a payload: parameters as `codec` packs them, then the buffers. */
export class PayloadFormat {
  readonly byteCount: number;
  readonly #regions: readonly Region[];

  constructor(
    readonly layout: Layout,
    readonly codec: Codec,
  ) {
    const parts: { bytes: number; unit: number }[] = [
      { bytes: codec.byteCount(layout.parameterCount), unit: codec.elementBytes },
    ];
    for (const tensor of layout.of('buffer')) {
      const unit = elementBytes(tensor);
      parts.push({ bytes: elementCount(tensor) * unit, unit });
    }
    const regions: Region[] = [];
    let start = 0;
    for (const { bytes, unit } of parts) {
      if (bytes > 0) regions.push({ start, end: start + bytes, unit });
      start += bytes;
    }
    this.#regions = regions;
    this.byteCount = start;
  }

  /** The borders of chunks of at most `chunkBytes`: [start, end) of each, in order. None for an empty payload. */
  chunks(chunkBytes: number): [number, number][] {
    const found: [number, number][] = [];
    let region = 0;
    for (let start = 0; start < this.byteCount;) {
      const wanted = Math.min(start + chunkBytes, this.byteCount);
      while (this.#regions[region].end < wanted) region++;
      const end = this.#borderBefore(this.#regions[region], wanted);
      found.push([start, end]);
      start = end;
    }
    return found;
  }

  /** Whether a chunk may end, or a torn transfer continue, there. */
  isBorder(offset: number): boolean {
    const region = this.#regions.find(({ start, end }) => start <= offset && offset <= end);
    return region === undefined ? offset === 0 : this.#borderBefore(region, offset) === offset;
  }

  /** The last border of the region up to `offset`; its last unit may be a shorter one. */
  #borderBefore({ start, end, unit }: Region, offset: number): number {
    return offset === end ? end : offset - ((offset - start) % unit);
  }

  encode(state: ModelState): Uint8Array {
    const payload = new Uint8Array(this.byteCount);
    const parameters = this.codec.byteCount(this.layout.parameterCount);
    this.codec.encode(state.parameters, payload);
    payload.set(state.buffers, parameters);
    return payload;
  }

  /** The opposite of `encode`. */
  decode(payload: Uint8Array): ModelState {
    const parameters = new Float32Array(this.layout.parameterCount);
    this.codec.decode(payload, parameters);
    return { parameters, buffers: payload.slice(this.codec.byteCount(parameters.length)) };
  }
}

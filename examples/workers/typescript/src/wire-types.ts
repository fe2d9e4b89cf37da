/** How parameters travel: between float32 values and bytes, little-endian (enum WireType in transfer.proto). */

import { WireType } from './generated/gemps/v1/transfer.js';

/** A payload whose bytes are no legal values of its wire type. */
export class BadValue extends Error {}

/** One way to travel: elements are packed into units, and a payload may be cut between two units only. */
export interface Codec {
  readonly name: WireTypeName;
  readonly wireType: WireType;
  readonly unitElements: number;
  readonly unitBytes: number;
  byteCount(elements: number): number;
  /** Writes all of `values` to the start of `into`, which has `byteCount` bytes. */
  encode(values: Float32Array, into: Uint8Array): void;
  /** Fills `into` from the start of `data`. Throws BadValue. */
  decode(data: Uint8Array, into: Float32Array): void;
}

export const WIRE_TYPE_NAMES = ['float32', 'float16', 'bfloat16', 'int8_block'] as const;
export type WireTypeName = (typeof WIRE_TYPE_NAMES)[number];

export function isWireTypeName(name: string): name is WireTypeName {
  return (WIRE_TYPE_NAMES as readonly string[]).includes(name);
}

export function codecOf(name: WireTypeName): Codec {
  return CODECS[name];
}

/** The codec of a wire type that the server chose; undefined for one that this worker does not speak. */
export function codecOfWire(wireType: WireType): Codec | undefined {
  return Object.values(CODECS).find((codec) => codec.wireType === wireType);
}

// Views of the same four bytes, to get at a float's bits.
const FLOAT = new Float32Array(1);
const BITS = new Uint32Array(FLOAT.buffer);

const INFINITY = 0x7f800000;
const LARGEST_FLOAT16 = 65504;
const BLOCK = 256;

function view(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** A codec that packs each element by itself. */
function elementwise(
  name: WireTypeName,
  wireType: WireType,
  bytes: number,
  write: (into: DataView, offset: number, value: number) => void,
  read: (from: DataView, offset: number) => number,
): Codec {
  return {
    name,
    wireType,
    unitElements: 1,
    unitBytes: bytes,
    byteCount: (elements) => elements * bytes,
    encode: (values, into) => {
      const target = view(into);
      for (let i = 0; i < values.length; i++) write(target, i * bytes, values[i]);
    },
    decode: (data, into) => {
      const source = view(data);
      for (let i = 0; i < into.length; i++) into[i] = read(source, i * bytes);
    },
  };
}

/** The bits of the nearest float16, halves to even; finite values beyond its range saturate. */
export function toFloat16(value: number): number {
  FLOAT[0] = Number.isFinite(value) ? Math.max(-LARGEST_FLOAT16, Math.min(LARGEST_FLOAT16, value)) : value;
  const bits = BITS[0];
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (magnitude > INFINITY) return sign | 0x7e00; // not a number
  if (magnitude === INFINITY) return sign | 0x7c00;
  const exponent = (magnitude >>> 23) - 127;
  if (exponent < -25) return sign; // less than half of the smallest
  // A normal float16 drops 13 bits of the significand; a subnormal one has no leading 1, and drops more.
  const dropped = exponent < -14 ? -1 - exponent : 13;
  const significand = exponent < -14 ? (magnitude & 0x7fffff) | 0x800000 : magnitude - (112 << 23);
  return sign | shiftHalfToEven(significand, dropped);
}

/** `bits` / 2 ** `count`, halves to even; a carry runs into the exponent, as it should. */
function shiftHalfToEven(bits: number, count: number): number {
  const odd = (bits >>> count) & 1;
  return (bits + (1 << (count - 1)) - 1 + odd) >>> count;
}

export function fromFloat16(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >>> 10) & 0x1f;
  const significand = bits & 0x3ff;
  if (exponent === 0) return sign * significand * 2 ** -24;
  if (exponent === 0x1f) return significand ? NaN : sign * Infinity;
  return sign * (1024 + significand) * 2 ** (exponent - 25);
}

/** The bits of the nearest bfloat16, halves to even. */
export function toBfloat16(value: number): number {
  FLOAT[0] = value;
  const bits = BITS[0];
  if ((bits & 0x7fffffff) > INFINITY) return 0x7fc0; // the carry could make a number of it
  return shiftHalfToEven(bits, 16) & 0xffff;
}

export function fromBfloat16(bits: number): number {
  BITS[0] = bits << 16;
  return FLOAT[0];
}

function roundHalfToEven(value: number): number {
  const rounded = Math.round(value); // halves upwards
  return rounded - value === 0.5 && rounded % 2 !== 0 ? rounded - 1 : rounded;
}

function encodeBlocks(values: Float32Array, into: Uint8Array): void {
  const target = view(into);
  let at = 0;
  for (let start = 0; start < values.length; start += BLOCK) {
    const block = values.subarray(start, start + BLOCK);
    let largest = 0;
    for (const value of block) largest = Math.max(largest, Math.abs(value));
    const scale = Math.fround(largest / 127);
    target.setFloat32(at, scale, true);
    at += 4;
    for (const value of block) {
      const quotient = scale === 0 ? 0 : roundHalfToEven(Math.fround(value / scale));
      target.setInt8(at++, Math.max(-127, Math.min(127, quotient)));
    }
  }
}

function decodeBlocks(data: Uint8Array, into: Float32Array): void {
  const source = view(data);
  let at = 0;
  for (let start = 0; start < into.length; start += BLOCK) {
    const scale = source.getFloat32(at, true);
    if (!Number.isFinite(scale) || scale < 0 || Object.is(scale, -0)) throw new BadValue(`int8_block: scale ${scale}`);
    at += 4;
    for (let i = start; i < Math.min(start + BLOCK, into.length); i++) {
      const quotient = source.getInt8(at++);
      if (quotient === -128) throw new BadValue(`int8_block: -128 at element ${i}`);
      into[i] = quotient * scale;
    }
  }
}

const CODECS: Readonly<Record<WireTypeName, Codec>> = {
  float32: elementwise(
    'float32',
    WireType.FLOAT32,
    4,
    (into, offset, value) => into.setFloat32(offset, value, true),
    (from, offset) => from.getFloat32(offset, true),
  ),
  float16: elementwise(
    'float16',
    WireType.FLOAT16,
    2,
    (into, offset, value) => into.setUint16(offset, toFloat16(value), true),
    (from, offset) => fromFloat16(from.getUint16(offset, true)),
  ),
  bfloat16: elementwise(
    'bfloat16',
    WireType.BFLOAT16,
    2,
    (into, offset, value) => into.setUint16(offset, toBfloat16(value), true),
    (from, offset) => fromBfloat16(from.getUint16(offset, true)),
  ),
  int8_block: {
    name: 'int8_block',
    wireType: WireType.INT8_BLOCK,
    unitElements: BLOCK,
    unitBytes: BLOCK + 4,
    byteCount: (elements) => elements + 4 * Math.ceil(elements / BLOCK),
    encode: encodeBlocks,
    decode: decodeBlocks,
  },
};

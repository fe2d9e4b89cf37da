/** How parameters travel: between float32 values and bytes, little-endian (enum WireType in transfer.proto). */

import { WireType } from './generated/gemps/v1/transfer.js';

/** One way to travel. */
export interface Codec {
  readonly name: WireTypeName;
  readonly wireType: WireType;
  /** Bytes of an element: a payload may be cut between two of them only. */
  readonly elementBytes: number;
  byteCount(elements: number): number;
  /** Writes all of `values` to the start of `into`, which has `byteCount` bytes. */
  encode(values: Float32Array, into: Uint8Array): void;
  /** Fills `into` from the start of `data`. */
  decode(data: Uint8Array, into: Float32Array): void;
}

export const WIRE_TYPE_NAMES = ['float32', 'bfloat16'] as const;
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
    elementBytes: bytes,
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

/** `bits` / 2 ** `count`, halves to even; a carry runs into the exponent, as it should. */
function shiftHalfToEven(bits: number, count: number): number {
  const odd = (bits >>> count) & 1;
  return (bits + (1 << (count - 1)) - 1 + odd) >>> count;
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

const CODECS: Readonly<Record<WireTypeName, Codec>> = {
  float32: elementwise(
    'float32',
    WireType.FLOAT32,
    4,
    (into, offset, value) => into.setFloat32(offset, value, true),
    (from, offset) => from.getFloat32(offset, true),
  ),
  bfloat16: elementwise(
    'bfloat16',
    WireType.BFLOAT16,
    2,
    (into, offset, value) => into.setUint16(offset, toBfloat16(value), true),
    (from, offset) => fromBfloat16(from.getUint16(offset, true)),
  ),
};

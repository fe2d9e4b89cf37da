/** Which tensors a model has, in which order, and the digest by which two layouts are compared (layout.proto). */

import { createHash } from 'node:crypto';

import { ElementType, Layout as LayoutMessage, TensorKind } from './generated/gemps/v1/layout.js';

const ELEMENTS = {
  float32: { wire: ElementType.FLOAT32, bytes: 4 },
  float64: { wire: ElementType.FLOAT64, bytes: 8 },
  float16: { wire: ElementType.FLOAT16, bytes: 2 },
  bfloat16: { wire: ElementType.BFLOAT16, bytes: 2 },
  int8: { wire: ElementType.INT8, bytes: 1 },
  int16: { wire: ElementType.INT16, bytes: 2 },
  int32: { wire: ElementType.INT32, bytes: 4 },
  int64: { wire: ElementType.INT64, bytes: 8 },
  uint8: { wire: ElementType.UINT8, bytes: 1 },
  bool: { wire: ElementType.BOOL, bytes: 1 },
  other: { wire: ElementType.OTHER, bytes: 0 }, // of frozen tensors, whose bytes never travel
} as const;

const KINDS = {
  parameter: TensorKind.PARAMETER,
  buffer: TensorKind.BUFFER,
  frozen: TensorKind.FROZEN,
} as const;

export type ElementName = keyof typeof ELEMENTS;
export type KindName = keyof typeof KINDS;

export interface Tensor {
  readonly name: string;
  /** Row-major; empty for a scalar. */
  readonly shape: readonly number[];
  readonly elementType: ElementName;
  readonly kind: KindName;
  /** Further names of the same storage. */
  readonly aliases?: readonly string[];
  /** Of a frozen tensor's bytes, in hexadecimal. */
  readonly sha256?: string;
}

/** A model's tensors: all parameters, then all buffers, then all frozen ones. */
export class Layout {
  /** Elements of all parameters together. */
  readonly parameterCount: number;
  /** SHA-256 of the canonical text. */
  readonly digest: Uint8Array;

  constructor(
    readonly tensors: readonly Tensor[],
    text = canonicalText(tensors),
  ) {
    this.parameterCount = this.of('parameter').reduce((sum, tensor) => sum + elementCount(tensor), 0);
    this.digest = createHash('sha256').update(text, 'utf8').digest();
  }

  /** The tensors of one kind, in order. */
  of(kind: KindName): readonly Tensor[] {
    return this.tensors.filter((tensor) => tensor.kind === kind);
  }

  /** Bytes that the tensors of one kind take in their own element types. */
  ownBytes(kind: KindName): number {
    return this.of(kind).reduce((sum, tensor) => sum + elementCount(tensor) * elementBytes(tensor), 0);
  }

  toMessage(): LayoutMessage {
    return LayoutMessage.fromPartial({
      tensors: this.tensors.map(({ name, shape, elementType, kind, aliases, sha256 }) => ({
        name,
        shape: shape.map(BigInt),
        elementType: ELEMENTS[elementType].wire,
        kind: KINDS[kind],
        aliases: [...(aliases ?? [])],
        sha256: Buffer.from(sha256 ?? '', 'hex'),
      })),
    });
  }
}

export function elementCount(tensor: Tensor): number {
  return tensor.shape.reduce((product, dimension) => product * dimension, 1);
}

/** Bytes of one element in the tensor's own type. */
export function elementBytes(tensor: Tensor): number {
  return ELEMENTS[tensor.elementType].bytes;
}

/** The text whose digest names the layout; layout.proto has its grammar. */
export function canonicalText(tensors: readonly Tensor[]): string {
  const lines = tensors.map(({ name, shape, elementType, kind, aliases, sha256 }) => {
    // By their bytes in UTF-8: JavaScript's own order is that of UTF-16.
    const sorted = [...(aliases ?? [])].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
    const names = [name, ...sorted].map((one) => `${Buffer.byteLength(one)}:${one}`);
    const digest = kind === 'frozen' ? `${sha256 ?? ''} ` : '';
    return `${kind} ${elementType} ${shape.length}:${shape.join(',')} ${digest}${names.join(' ')}\n`;
  });
  return `gemps-layout-1\n${lines.join('')}`;
}

export function isElementName(name: string): name is ElementName {
  return Object.hasOwn(ELEMENTS, name);
}

export function isKindName(name: string): name is KindName {
  return Object.hasOwn(KINDS, name);
}

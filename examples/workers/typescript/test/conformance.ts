/**
 * This worker as a candidate of `gemps conformance serve`: it trains the kit's quadratic task, 1/2 sum(theta^2), on
 * whatever layout the kit gives. docs/protocol.md says under "Conformance" what a candidate is.
 */

import { readFileSync } from 'node:fs';

import { connect } from '../src/connection.js';
import { ElementType, TensorKind, TensorSpec } from '../src/generated/gemps/v1/layout.js';
import type { Model, Task } from '../src/task.js';
import { work } from '../src/worker.js';

/** Exit status for what the kit asks for and this worker does not implement. */
const NOT_SPOKEN = 3;

/** Bytes of an element. */
const BYTES: Partial<Record<ElementType, number>> = {
  [ElementType.FLOAT32]: 4,
  [ElementType.FLOAT64]: 8,
  [ElementType.FLOAT16]: 2,
  [ElementType.BFLOAT16]: 2,
  [ElementType.INT8]: 1,
  [ElementType.INT16]: 2,
  [ElementType.INT32]: 4,
  [ElementType.INT64]: 8,
  [ElementType.UINT8]: 1,
  [ElementType.BOOL]: 1,
};

interface File {
  readonly layout: readonly {
    readonly name: string;
    readonly shape: readonly number[];
    readonly element_type: string;
    readonly kind: string;
    readonly aliases?: string[];
    readonly sha256?: string;
  }[];
  readonly delta_wire_types: readonly string[];
  readonly parameter_wire_types: readonly string[];
}

function quadratic({ layout }: File): Task {
  const tensors = layout.map(({ name, shape, element_type, kind, aliases = [], sha256 = '' }) =>
    TensorSpec.create({
      name,
      shape: shape.map(BigInt),
      elementType: ElementType[element_type.toUpperCase() as keyof typeof ElementType],
      kind: TensorKind[kind.toUpperCase() as keyof typeof TensorKind],
      aliases,
      sha256: Buffer.from(sha256, 'hex'),
    }),
  );
  const size = (kind: TensorKind, bytes: (type: ElementType) => number): number =>
    tensors
      .filter((tensor) => tensor.kind === kind)
      .reduce(
        (sum, { shape, elementType }) => sum + bytes(elementType) * shape.map(Number).reduce((a, b) => a * b, 1),
        0,
      );
  const first: Model = {
    parameters: Float32Array.from({ length: size(TensorKind.PARAMETER, () => 1) }, (_, i) => ((i % 509) - 254) / 256),
    buffers: new Uint8Array(size(TensorKind.BUFFER, (type) => BYTES[type] ?? NaN)),
  };
  return {
    layout: { tensors },
    first,
    stepsPerEpoch: 0,
    step: (model) => ({
      gradient: model,
      loss: model.parameters.reduce((sum, theta) => sum + (theta * theta) / 2, 0),
      samples: 0,
    }),
    evaluate: () => 'done',
  };
}

const { GEMPS_CONFORMANCE = '', GEMPS_SERVER = '', GEMPS_WORKER_NAME = '' } = process.env;
const file = JSON.parse(readFileSync(GEMPS_CONFORMANCE, 'utf8')) as File;
const isSpoken = [file.delta_wire_types, file.parameter_wire_types].every((types) => types.includes('float32'));
process.exitCode = isSpoken ? await work(quadratic(file), connect(GEMPS_SERVER, ''), GEMPS_WORKER_NAME, 5) : NOT_SPOKEN;

/** The task of the conformance kit (docs/protocol.md#conformance): loss = 1/2 sum theta^2, so the gradient is theta. */

import { isElementName, isKindName, Layout, type Tensor } from './layout.js';
import type { ModelState } from './payload.js';
import { parseObject, type Step, type Task, TaskError } from './task.js';
import { isWireTypeName, type WireTypeName } from './wire-types.js';

export class Quadratic implements Task {
  readonly name = 'quadratic';
  readonly stepsPerEpoch = 0;

  constructor(readonly layout: Layout) {}

  firstState(): ModelState {
    return {
      parameters: Float32Array.from({ length: this.layout.parameterCount }, (_, i) => ((i % 509) - 254) / 256),
      buffers: new Uint8Array(this.layout.ownBytes('buffer')),
    };
  }

  begin(): void {
    // Nothing is drawn at random.
  }

  step({ parameters, buffers }: ModelState): Step {
    let loss = 0;
    for (const theta of parameters) loss += (theta * theta) / 2;
    return { loss, gradient: parameters, buffers, samples: 0 };
  }

  evaluate(): undefined {
    return undefined;
  }
}

/** What the kit's file asks for: the layout, and the wire types to offer that this worker speaks. */
export interface Conformance {
  readonly layout: Layout;
  readonly deltaWireTypes: WireTypeName[];
  readonly parameterWireTypes: WireTypeName[];
}

/** Throws TaskError where the text is not such a file. */
export function readConformance(text: string, path: string): Conformance {
  const file = parseObject(text, path);
  const tensors = list(file.layout, path, 'layout').map((one) => readTensor(one, path));
  const spoken = (name: string): WireTypeName[] => strings(file[name], path, name).filter(isWireTypeName);
  return {
    layout: new Layout(tensors),
    deltaWireTypes: spoken('delta_wire_types'),
    parameterWireTypes: spoken('parameter_wire_types'),
  };
}

function readTensor(value: unknown, path: string): Tensor {
  const { name, shape, element_type, kind, aliases, sha256 } = value as Record<string, unknown>;
  if (typeof name !== 'string') throw new TaskError(`${path}: a tensor of the layout has no name`);
  if (typeof element_type !== 'string' || !isElementName(element_type)) {
    throw new TaskError(`${path}: ${name} has no known "element_type"`);
  }
  if (typeof kind !== 'string' || !isKindName(kind)) throw new TaskError(`${path}: ${name} has no known "kind"`);
  const dimensions = list(shape, path, 'shape').map(Number);
  if (!dimensions.every((one) => Number.isSafeInteger(one) && one >= 0)) {
    throw new TaskError(`${path}: ${name} has no usable "shape"`);
  }
  return {
    name,
    shape: dimensions,
    elementType: element_type,
    kind,
    aliases: strings(aliases ?? [], path, 'aliases'),
    ...(typeof sha256 === 'string' ? { sha256 } : {}),
  };
}

function list(value: unknown, path: string, name: string): unknown[] {
  if (!Array.isArray(value)) throw new TaskError(`${path}: "${name}" has to be a list`);
  return value as unknown[];
}

function strings(value: unknown, path: string, name: string): string[] {
  const found = list(value, path, name);
  if (!found.every((one) => typeof one === 'string')) throw new TaskError(`${path}: "${name}" has to hold names`);
  return found;
}

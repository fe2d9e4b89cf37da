/** The task that `gemps export-task digits` writes down: handwritten digits, and a perceptron that reads them. */

import { ElementType, type Layout, TensorKind, TensorSpec } from './generated/gemps/v1/layout.js';
import { Perceptron, type Samples } from './perceptron.js';
import type { Model, Step, Task } from './task.js';

/** As the Python worker has it for this task, so that all can train one model. */
const HIDDEN = 64;
const BATCH = 32;

type Part = { inputs: number[][]; labels: number[] };
/** Inputs are divided by `maximum`. */
type File = { features: number; classes: number; maximum: number; train: Part; held_out: Part };

export class Digits implements Task {
  readonly layout: Layout;
  readonly first: Model;
  readonly stepsPerEpoch: number;
  readonly #perceptron: Perceptron;
  readonly #train: Samples;
  readonly #heldOut: Samples;

  /** Throws an error if the text is not such a file. */
  constructor(text: string) {
    const file = JSON.parse(text) as File;
    const { features, classes } = file;
    this.#train = samplesOf(file, file.train);
    this.#heldOut = samplesOf(file, file.held_out);
    this.#perceptron = new Perceptron(features, HIDDEN, classes);
    this.first = { parameters: this.#perceptron.first(), buffers: new Uint8Array(0) };
    this.stepsPerEpoch = Math.max(1, Math.floor(this.#train.labels.length / BATCH));
    this.layout = {
      tensors: [
        tensor('hidden.weight', HIDDEN, features),
        tensor('hidden.bias', HIDDEN),
        tensor('output.weight', classes, HIDDEN),
        tensor('output.bias', classes),
      ],
    };
  }

  /** Of a batch that is drawn at random. */
  step({ parameters, buffers }: Model): Step {
    const { length } = this.#train.labels;
    const batch = Array.from({ length: BATCH }, () => Math.floor(length * Math.random()));
    const { loss, gradient } = this.#perceptron.gradient(parameters, this.#train, batch);
    return { gradient: { parameters: gradient, buffers }, loss, samples: BATCH };
  }

  evaluate({ parameters }: Model): string {
    const accuracy = this.#perceptron.accuracy(parameters, this.#heldOut);
    return `accuracy ${accuracy.toFixed(4)} on ${this.#heldOut.labels.length} samples that were held out`;
  }
}

function tensor(name: string, ...shape: number[]): TensorSpec {
  const kind = TensorKind.PARAMETER;
  return TensorSpec.create({ name, shape: shape.map(BigInt), elementType: ElementType.FLOAT32, kind });
}

function samplesOf({ features, classes, maximum }: File, { inputs, labels }: Part): Samples {
  if (inputs.some((row) => row.length !== features)) throw new Error(`a row of other than ${features} numbers`);
  if (labels.some((label) => !(label >= 0 && label < classes))) throw new Error('a label that is no class');
  if (labels.length === 0 || inputs.length !== labels.length) throw new Error('not as many labels as rows, or none');
  return { inputs: inputs.map((row) => Float32Array.from(row, (one) => one / maximum)), labels };
}

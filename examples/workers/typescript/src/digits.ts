/** The task that `gemps export-task digits` writes down: handwritten digits, and a two-layer perceptron to read them. */

import type { ModelState } from './payload.js';
import { Perceptron, type Samples, type Scores } from './perceptron.js';
import { permutation, randomNumbers } from './random.js';
import { parseObject, type Step, type Task, TaskError } from './task.js';

// That of the Python worker's model for this task, so that all can train one (worker/gem_worker/models/mlp.py).
const HIDDEN = 64;

const NOTHING = new Uint8Array(0);

export class Digits implements Task {
  readonly name: string;
  readonly model: Perceptron;
  readonly stepsPerEpoch: number;
  readonly #train: Samples;
  readonly #heldOut: Samples;
  readonly #gradient: Float32Array;
  #batches: Generator<Uint32Array> | undefined;

  /** Throws TaskError where the text is not such a file. */
  constructor(
    text: string,
    path: string,
    readonly batchSize: number,
  ) {
    const file = parseObject(text, path);
    const { task, features, classes, maximum } = file;
    if (typeof task !== 'string' || !isCount(features) || !isCount(classes) || !isCount(maximum)) {
      throw refusal(path, '"task", "features", "classes" or "maximum" is missing');
    }
    const part = (name: string): Samples => {
      const samples = readSamples(file[name], features, classes, maximum);
      if (samples === undefined) throw refusal(path, `"${name}" has not the inputs and labels that it should`);
      return samples;
    };
    this.name = task;
    this.model = new Perceptron(features, HIDDEN, classes);
    this.#train = part('train');
    this.#heldOut = part('held_out');
    this.#gradient = new Float32Array(this.layout.parameterCount);
    this.stepsPerEpoch = Math.max(1, Math.floor(this.#train.labels.length / batchSize));
  }

  get layout(): Perceptron['layout'] {
    return this.model.layout;
  }

  firstState(seed: number): ModelState {
    return { parameters: this.model.firstParameters(randomNumbers(seed)), buffers: NOTHING };
  }

  begin(seed: number, rank: number): void {
    this.#batches = this.#inRandomOrder(seed, rank);
  }

  step({ parameters, buffers }: ModelState): Step {
    const chosen: Uint32Array | undefined = this.#batches?.next().value;
    if (chosen === undefined) throw new Error('begin() first');
    const loss = this.model.gradient(parameters, this.#train, chosen, this.#gradient);
    return { loss, gradient: this.#gradient, buffers, samples: chosen.length };
  }

  evaluate({ parameters }: ModelState): Scores & { readonly samples: number } {
    return { ...this.model.evaluate(parameters, this.#heldOut), samples: this.#heldOut.labels.length };
  }

  /** Each pass over all samples in another order; samples left over come in another pass. */
  *#inRandomOrder(seed: number, rank: number): Generator<Uint32Array> {
    for (let epoch = 0; ; epoch++) {
      const order = permutation(this.#train.labels.length, randomNumbers(seed, rank, epoch));
      for (let step = 0; step < this.stepsPerEpoch; step++) {
        yield order.subarray(step * this.batchSize, (step + 1) * this.batchSize);
      }
    }
  }
}

function refusal(path: string, what: string): TaskError {
  return new TaskError(`${path}: ${what}; write it anew with gemps export-task digits`);
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) > 0;
}

function readSamples(part: unknown, features: number, classes: number, maximum: number): Samples | undefined {
  const { inputs, labels } = (part ?? {}) as { inputs?: unknown; labels?: unknown };
  if (!Array.isArray(inputs) || !Array.isArray(labels) || inputs.length !== labels.length || !labels.length) {
    return undefined;
  }
  const areLabels = labels.every((label) => Number.isInteger(label) && label >= 0 && label < classes);
  const areInputs = inputs.every(
    (row) => Array.isArray(row) && row.length === features && row.every((one) => typeof one === 'number'),
  );
  if (!areLabels || !areInputs) return undefined;
  return { inputs: Float32Array.from(inputs.flat(), (one: number) => one / maximum), labels: Uint8Array.from(labels) };
}

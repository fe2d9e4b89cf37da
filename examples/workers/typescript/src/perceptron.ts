/** A perceptron of two layers, ReLU between, cross-entropy behind: functions of the concatenated parameters. */

import { Layout, type Tensor } from './layout.js';

export interface Samples {
  /** Row-major, `features` numbers a sample. */
  readonly inputs: Float32Array;
  readonly labels: Uint8Array;
}

export interface Scores {
  /** Mean cross-entropy. */
  readonly loss: number;
  /** Fraction of samples whose largest output is the right one. */
  readonly accuracy: number;
}

export class Perceptron {
  /** Named and shaped as torch.nn.Linear has them: weights [out, in]. */
  readonly layout: Layout;
  readonly #hiddenBias: number;
  readonly #outputWeight: number;
  readonly #outputBias: number;

  constructor(
    readonly features: number,
    readonly hidden: number,
    readonly classes: number,
  ) {
    const parameter = (name: string, ...shape: number[]): Tensor => ({
      name,
      shape,
      elementType: 'float32',
      kind: 'parameter',
    });
    this.layout = new Layout([
      parameter('hidden.weight', hidden, features),
      parameter('hidden.bias', hidden),
      parameter('output.weight', classes, hidden),
      parameter('output.bias', classes),
    ]);
    this.#hiddenBias = hidden * features;
    this.#outputWeight = this.#hiddenBias + hidden;
    this.#outputBias = this.#outputWeight + classes * hidden;
  }

  /** Uniform in +-1 / sqrt(inputs of the layer). */
  firstParameters(random: () => number): Float32Array {
    return Float32Array.from({ length: this.layout.parameterCount }, (_, i) => {
      const bound = 1 / Math.sqrt(i < this.#outputWeight ? this.features : this.hidden);
      return (2 * random() - 1) * bound;
    });
  }

  /** The mean loss over the chosen samples, and its gradient, which is written to `gradient`. */
  gradient(parameters: Float32Array, samples: Samples, chosen: Uint32Array, gradient: Float32Array): number {
    const { features, hidden, classes } = this;
    const activations = new Float64Array(hidden);
    const outputs = new Float64Array(classes);
    const errors = new Float64Array(hidden);
    const share = 1 / chosen.length;
    let loss = 0;
    gradient.fill(0);
    for (const sample of chosen) {
      const start = sample * features;
      const label = samples.labels[sample];
      this.#forward(parameters, samples.inputs, start, activations, outputs);
      loss += softmax(outputs, label) * share;
      // From here on `outputs` are probabilities; less 1 for the right class they are the error of the outputs.
      outputs[label] -= 1;
      errors.fill(0);
      for (let j = 0; j < classes; j++) {
        const error = outputs[j] * share;
        const row = this.#outputWeight + j * hidden;
        gradient[this.#outputBias + j] += error;
        for (let k = 0; k < hidden; k++) {
          gradient[row + k] += error * activations[k];
          errors[k] += error * parameters[row + k];
        }
      }
      for (let k = 0; k < hidden; k++) {
        if (activations[k] <= 0) continue;
        const error = errors[k];
        const row = k * features;
        gradient[this.#hiddenBias + k] += error;
        for (let i = 0; i < features; i++) gradient[row + i] += error * samples.inputs[start + i];
      }
    }
    return loss;
  }

  evaluate(parameters: Float32Array, { inputs, labels }: Samples): Scores {
    const activations = new Float64Array(this.hidden);
    const outputs = new Float64Array(this.classes);
    let loss = 0;
    let right = 0;
    labels.forEach((label, sample) => {
      this.#forward(parameters, inputs, sample * this.features, activations, outputs);
      if (outputs.indexOf(Math.max(...outputs)) === label) right++;
      loss += softmax(outputs, label);
    });
    return { loss: loss / labels.length, accuracy: right / labels.length };
  }

  #forward(
    parameters: Float32Array,
    inputs: Float32Array,
    start: number,
    activations: Float64Array,
    outputs: Float64Array,
  ): void {
    const { features, hidden, classes } = this;
    for (let k = 0; k < hidden; k++) {
      let sum = parameters[this.#hiddenBias + k];
      for (let i = 0; i < features; i++) sum += parameters[k * features + i] * inputs[start + i];
      activations[k] = Math.max(0, sum);
    }
    for (let j = 0; j < classes; j++) {
      let sum = parameters[this.#outputBias + j];
      for (let k = 0; k < hidden; k++) sum += parameters[this.#outputWeight + j * hidden + k] * activations[k];
      outputs[j] = sum;
    }
  }
}

/** Turns outputs into probabilities, in place; returns the cross-entropy of the right class. */
function softmax(outputs: Float64Array, label: number): number {
  const largest = Math.max(...outputs); // so that exp() does not overflow
  const wanted = outputs[label] - largest;
  let sum = 0;
  for (let j = 0; j < outputs.length; j++) sum += outputs[j] = Math.exp(outputs[j] - largest);
  for (let j = 0; j < outputs.length; j++) outputs[j] /= sum;
  return Math.log(sum) - wanted;
}

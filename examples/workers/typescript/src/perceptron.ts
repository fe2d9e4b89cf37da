/** Two linear layers with ReLU between them and cross-entropy behind them, over one array of parameters. */

export interface Samples {
  readonly inputs: readonly Float32Array[];
  readonly labels: readonly number[];
}

/** As torch.nn.Linear: weights [outputs, inputs] from `start` on in the parameters, then biases, up to `end`. */
class Linear {
  readonly end: number;
  readonly #biases: number;

  constructor(
    readonly inputs: number,
    readonly outputs: number,
    readonly start = 0,
  ) {
    this.#biases = start + inputs * outputs;
    this.end = this.#biases + outputs;
  }

  forward(parameters: Float32Array, input: ArrayLike<number>): Float64Array {
    return Float64Array.from({ length: this.outputs }, (_, j) => {
      let sum = parameters[this.#biases + j];
      for (let i = 0, at = this.start + j * this.inputs; i < this.inputs; i++) sum += parameters[at + i] * input[i];
      return sum;
    });
  }

  /** Adds the parameters' gradient to `gradient`, and returns the input's; `error` is the output's. */
  backward(parameters: Float32Array, input: ArrayLike<number>, error: Float64Array, gradient: Float32Array) {
    const back = new Float64Array(this.inputs);
    error.forEach((one, j) => {
      gradient[this.#biases + j] += one;
      for (let i = 0, at = this.start + j * this.inputs; i < this.inputs; i++) {
        gradient[at + i] += one * input[i];
        back[i] += one * parameters[at + i];
      }
    });
    return back;
  }
}

export class Perceptron {
  readonly #hidden: Linear;
  readonly #output: Linear;

  constructor(features: number, hidden: number, classes: number) {
    this.#hidden = new Linear(features, hidden);
    this.#output = new Linear(hidden, classes, this.#hidden.end);
  }

  /** First parameters: uniform in +-1 / sqrt(inputs of the layer). */
  first(): Float32Array {
    return Float32Array.from({ length: this.#output.end }, (_, i) => {
      const { inputs } = i < this.#hidden.end ? this.#hidden : this.#output;
      return (2 * Math.random() - 1) / Math.sqrt(inputs);
    });
  }

  /** The mean loss over the chosen samples, and its gradient. */
  gradient(parameters: Float32Array, { inputs, labels }: Samples, chosen: readonly number[]) {
    const gradient = new Float32Array(parameters.length);
    let loss = 0;
    for (const sample of chosen) {
      const { hidden, probabilities } = this.#forward(parameters, inputs[sample]);
      loss -= Math.log(probabilities[labels[sample]]) / chosen.length;
      probabilities[labels[sample]] -= 1;
      const error = probabilities.map((one) => one / chosen.length);
      const back = this.#output.backward(parameters, hidden, error, gradient);
      const through = back.map((one, k) => (hidden[k] > 0 ? one : 0));
      this.#hidden.backward(parameters, inputs[sample], through, gradient);
    }
    return { loss, gradient };
  }

  /** The fraction of samples whose most probable class is the right one. */
  accuracy(parameters: Float32Array, { inputs, labels }: Samples): number {
    const right = inputs.filter((input, sample) => {
      const { probabilities } = this.#forward(parameters, input);
      return probabilities.indexOf(Math.max(...probabilities)) === labels[sample];
    });
    return right.length / labels.length;
  }

  #forward(parameters: Float32Array, input: Float32Array) {
    const hidden = this.#hidden.forward(parameters, input).map((one) => Math.max(0, one));
    const outputs = this.#output.forward(parameters, hidden);
    const largest = Math.max(...outputs); // so that exp() does not overflow
    const powers = outputs.map((one) => Math.exp(one - largest));
    const sum = powers.reduce((a, b) => a + b);
    return { hidden, probabilities: powers.map((one) => one / sum) };
  }
}

/** What a worker trains. Write a `Task` for your own model: the rest of the worker knows no more of it than this. */

import type { Layout } from './generated/gemps/v1/layout.js';

/** PARAMETERs, or a gradient of them, and the bytes of all BUFFERs; both in the layout's order. */
export interface Model {
  readonly parameters: Float32Array;
  readonly buffers: Uint8Array;
}

export interface Step {
  /** The gradient at the model that the step was given, and the BUFFERs as they are after the step. */
  readonly gradient: Model;
  readonly loss: number;
  /** Training samples that the gradient is of; 0: unknown. */
  readonly samples: number;
}

export interface Task {
  readonly layout: Layout;
  /** What Initialize uploads if the server has no parameters yet. */
  readonly first: Model;
  /** Steps of one pass over the data; 0: unknown. */
  readonly stepsPerEpoch: number;
  step(model: Model): Step;
  /** A line about the model, for people. */
  evaluate(model: Model): string;
}

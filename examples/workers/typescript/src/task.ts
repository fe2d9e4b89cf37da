/** What a worker trains: the loop in main.ts knows no more of it than this. */

import type { Layout } from './layout.js';
import type { ModelState } from './payload.js';
import type { Scores } from './perceptron.js';

export interface Step {
  readonly loss: number;
  /** Of the loss at the parameters that the step was given, in their order. */
  readonly gradient: Float32Array;
  /** The buffers as they are after the step. */
  readonly buffers: Uint8Array;
  /** Training samples; 0: unknown. */
  readonly samples: number;
}

export interface Task {
  readonly name: string;
  readonly layout: Layout;
  /** Steps of one pass over the data; 0: unknown. */
  readonly stepsPerEpoch: number;
  /** What Initialize uploads where there are no parameters yet. */
  firstState(seed: number): ModelState;
  /** Before the first step: from what a worker's order of samples follows. */
  begin(seed: number, rank: number): void;
  step(state: ModelState): Step;
  /** On held-out samples, where there are some. */
  evaluate(state: ModelState): (Scores & { readonly samples: number }) | undefined;
}

/** The task's file, its environment or its options are wrong; the message names the fix. */
export class TaskError extends Error {}

/** The JSON of a file, as an object. Throws TaskError. */
export function parseObject(text: string, path: string): Record<string, unknown> {
  let found: unknown;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new TaskError(`${path} is no JSON (${(error as Error).message})`);
  }
  if (typeof found !== 'object' || found === null || Array.isArray(found)) throw new TaskError(`${path} is no object`);
  return found as Record<string, unknown>;
}

/** From gradients to what is committed: -eta times the gradient, or what a run with local steps asks for. */

import type { ModelState } from './payload.js';
import type { Task } from './task.js';

/** How the run wants its deltas (RunSettings in run.proto). */
export interface DeltaSettings {
  readonly eta: number;
  /** Gradients that go into one commit; from the second on each is of parameters that the worker moved by itself. */
  readonly localSteps: number;
  /** Size of these moves, in eta; 0: none. */
  readonly localRate: number;
  /** Whether their mean is committed, in place of their sum. */
  readonly normalise: boolean;
}

export interface Delta {
  readonly values: Float32Array;
  readonly buffers: Uint8Array;
  /** Of the last step. */
  readonly loss: number;
  readonly samples: number;
}

/** The delta of `state`, which stays as it is; undefined where it is not finite, and must not be sent. */
export function deltaOf(task: Task, state: ModelState, settings: DeltaSettings): Delta | undefined {
  const { eta, localSteps, localRate, normalise } = settings;
  let { parameters, buffers } = state;
  const sum = new Float32Array(parameters.length);
  let samples = 0;
  let loss = 0;
  const factor = Math.fround(-eta);
  const localFactor = Math.fround(-eta * localRate);
  for (let step = 1; step <= localSteps; step++) {
    const done = task.step({ ...state, parameters, buffers });
    ({ buffers, loss } = done);
    samples += done.samples;
    for (let i = 0; i < sum.length; i++) sum[i] += done.gradient[i];
    if (step < localSteps) {
      parameters = parameters.map((value, i) => value + Math.fround(localFactor * done.gradient[i]));
    }
  }
  // A product of two float32 is exact in a JavaScript number, so that it is rounded once, as float32 would.
  const share = normalise ? 1 / localSteps : 1;
  const values = sum.map((gradient) => factor * Math.fround(gradient * share));
  return values.every(Number.isFinite) ? { values, buffers, loss, samples } : undefined;
}

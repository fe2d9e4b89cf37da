import assert from 'node:assert/strict';
import { test } from 'node:test';

import { deltaOf } from '../src/delta.js';
import { Digits } from '../src/digits.js';
import { readOptions, UsageError } from '../src/options.js';
import { Quadratic, readConformance } from '../src/quadratic.js';
import { TaskError } from '../src/task.js';

const FILE = {
  task: 'digits',
  features: 2,
  classes: 2,
  maximum: 16,
  train: { inputs: Array.from({ length: 40 }, (_, i) => [i % 17, (i * 3) % 17]), labels: Array(40).fill(0).with(7, 1) },
  held_out: { inputs: [[16, 0]], labels: [1] },
};

function digits(changed: object = {}): Digits {
  return new Digits(JSON.stringify({ ...FILE, ...changed }), 'digits.json', 16);
}

function quadratic(...shape: number[]): Quadratic {
  const tensor = { name: 'a', shape, element_type: 'float32', kind: 'parameter' };
  const text = JSON.stringify({ layout: [tensor], delta_wire_types: ['float32'], parameter_wire_types: ['float32'] });
  return new Quadratic(readConformance(text, 'task.json').layout);
}

test('a task goes over its samples in whole batches, in an order of its seed and rank', () => {
  const task = digits();
  assert.equal(task.stepsPerEpoch, 2);
  const state = task.firstState(1);
  const losses = (seed: number, rank: number): number[] => {
    task.begin(seed, rank);
    return [1, 2, 3, 4].map(() => task.step(state).loss);
  };
  assert.deepEqual(losses(1, 0), losses(1, 0));
  assert.notDeepEqual(losses(1, 0), losses(1, 1));
  assert.equal(task.step(state).samples, 16);
  assert.equal(task.evaluate(state).samples, 1);
});

test('a file that is no such task is refused with its name and the fix', () => {
  for (const changed of [
    { features: 3 },
    { maximum: undefined },
    { train: undefined },
    { held_out: { inputs: [], labels: [] } },
    { train: { inputs: [[1, 2]], labels: [2] } },
    { train: { inputs: [[1, '2']], labels: [1] } },
  ]) {
    assert.throws(
      () => digits(changed),
      (error) => error instanceof TaskError && /digits\.json.*export-task/.test(error.message),
    );
  }
  assert.throws(() => new Digits('[1', 'digits.json', 16), TaskError);
});

test('the delta of the quadratic task is the float32 product of -eta and the parameters', () => {
  const task = quadratic(600);
  const state = task.firstState();
  assert.deepEqual([...state.parameters.slice(507, 511)], [253 / 256, 254 / 256, -254 / 256, -253 / 256]);
  const values = deltaOf(task, state, { eta: 0.05, localSteps: 1, localRate: 1, normalise: false })?.values;
  const eta = Math.fround(-0.05);
  assert.deepEqual(
    values,
    state.parameters.map((theta) => Math.fround(eta * theta)),
  );
});

test('local steps move the worker by itself, and their gradients are committed together', () => {
  const task = quadratic(1);
  const state = { ...task.firstState(), parameters: Float32Array.of(1) };
  // Gradients 1, 0.5 and 0.25 of parameters that are halved by each step.
  const sum = deltaOf(task, state, { eta: 0.5, localSteps: 3, localRate: 1, normalise: false });
  assert.deepEqual([...(sum?.values ?? [])], [-0.875]);
  const mean = deltaOf(task, state, { eta: 0.5, localSteps: 3, localRate: 1, normalise: true });
  assert.ok(mean !== undefined && Math.abs(mean.values[0] + 0.875 / 3) < 1e-6);
  // At the rate 0 all three are 1.
  const still = deltaOf(task, state, { eta: 0.5, localSteps: 3, localRate: 0, normalise: false });
  assert.deepEqual([...(still?.values ?? [])], [-1.5]);
  assert.deepEqual([...state.parameters], [1]);
});

test('a gradient that is not finite makes no delta', () => {
  const task = quadratic(2);
  const state = { ...task.firstState(), parameters: Float32Array.of(1, Infinity) };
  assert.equal(deltaOf(task, state, { eta: 0.1, localSteps: 1, localRate: 1, normalise: false }), undefined);
});

test('wire types that are not spoken are left out of the offer', () => {
  const text = JSON.stringify({ layout: [], delta_wire_types: ['zstd', 'bfloat16'], parameter_wire_types: ['zstd'] });
  const { deltaWireTypes, parameterWireTypes } = readConformance(text, 'task.json');
  assert.deepEqual([deltaWireTypes, parameterWireTypes], [['bfloat16'], []]);
});

test('flags beat the environment, and what cannot be used is refused with the fix', () => {
  const environment = { GEMPS_SERVER: 'a:1', GEMPS_WORKER_NAME: 'one' };
  const options = readOptions(['--task', 'x.json', '--server', 'b:2'], environment);
  assert.deepEqual([options.server, options.name, options.batchSize], ['b:2', 'one', 32]);
  for (const args of [
    [],
    ['--task', 'x.json', '--server', 'nowhere'],
    ['--task', 'x.json', '--batch-size', '0'],
    ['--task', 'x.json', '--batch-size', '1.5'],
    ['--task', 'x.json', '--delta-wire-type', 'float8'],
    ['--task', 'x.json', '--fly'],
  ]) {
    assert.throws(() => readOptions(args, {}), UsageError, args.join(' '));
  }
});

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Digits } from '../src/digits.js';
import { Perceptron } from '../src/perceptron.js';

const MODEL = new Perceptron(6, 5, 3);
const SAMPLES = {
  inputs: Array.from({ length: 8 }, (_, j) => Float32Array.from({ length: 6 }, (_, i) => ((7 * i + 5 * j) % 11) / 11)),
  labels: [0, 1, 2, 2, 1, 0, 0, 1],
};
const ALL = [...SAMPLES.labels.keys()];
// Not random: a kink of ReLU within a difference would be chance.
const PARAMETERS = MODEL.first().map((_, i) => (((13 * i) % 29) - 14) / 29);

test('the gradient is that of the loss, by differences', () => {
  const { gradient } = MODEL.gradient(PARAMETERS, SAMPLES, ALL);
  const width = 2 ** -13;
  const lossAt = (i: number, offset: number): number =>
    MODEL.gradient(PARAMETERS.with(i, PARAMETERS[i] + offset), SAMPLES, ALL).loss;
  PARAMETERS.forEach((_, i) => {
    const slope = (lossAt(i, width) - lossAt(i, -width)) / (2 * width);
    assert.ok(Math.abs(slope - gradient[i]) < 1e-3, `${i}: ${slope} and ${gradient[i]}`);
  });
  assert.ok(gradient.some((one) => Math.abs(one) > 0.05));
});

test('steps along the gradient learn the samples', () => {
  let parameters = PARAMETERS;
  for (let step = 0; step < 3000; step++) {
    const { gradient } = MODEL.gradient(parameters, SAMPLES, ALL);
    parameters = parameters.map((value, i) => value - 0.5 * gradient[i]);
  }
  assert.equal(MODEL.accuracy(parameters, SAMPLES), 1);
});

test('first parameters lie within the bound of their layer', () => {
  const parameters = new Perceptron(64, 64, 10).first();
  assert.equal(parameters.length, 65 * 64 + 65 * 10);
  assert.ok(parameters.every((value) => Math.abs(value) <= 1 / 8));
  assert.ok(Math.max(...parameters) > 0.12 && Math.min(...parameters) < -0.12);
});

const FILE = {
  features: 2,
  classes: 2,
  maximum: 4,
  train: { inputs: [[1, 2], [3, 4]], labels: [0, 1] }, // prettier-ignore
  held_out: { inputs: [[4, 0]], labels: [1] },
};

test('the layout of the digits is that of the Python worker', () => {
  const { tensors } = new Digits(JSON.stringify(FILE)).layout;
  const shapes = tensors.map(({ name, shape }) => `${name} ${shape.join('x')}`);
  assert.deepEqual(shapes, ['hidden.weight 64x2', 'hidden.bias 64', 'output.weight 2x64', 'output.bias 2']);
});

test('a file of digits that does not fit together is refused', () => {
  for (const changed of [
    { features: 3 },
    { train: undefined },
    { held_out: { inputs: [], labels: [] } },
    { train: { inputs: [[1, 2]], labels: [2] } },
  ]) {
    assert.throws(() => new Digits(JSON.stringify({ ...FILE, ...changed })));
  }
});

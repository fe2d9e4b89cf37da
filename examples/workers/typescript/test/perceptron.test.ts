import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Perceptron } from '../src/perceptron.js';
import { permutation, randomNumbers } from '../src/random.js';

const MODEL = new Perceptron(6, 5, 3);
const SAMPLES = {
  inputs: Float32Array.from({ length: 8 * 6 }, randomNumbers(1)),
  labels: Uint8Array.of(0, 1, 2, 2, 1, 0, 0, 1),
};
const ALL = Uint32Array.from(SAMPLES.labels, (_, i) => i);

test('the layout is that of the Python worker', () => {
  const tensors = new Perceptron(64, 64, 10).layout.tensors.map(({ name, shape }) => `${name} ${shape.join('x')}`);
  assert.deepEqual(tensors, ['hidden.weight 64x64', 'hidden.bias 64', 'output.weight 10x64', 'output.bias 10']);
});

test('the gradient is that of the loss, by differences', () => {
  const parameters = MODEL.firstParameters(randomNumbers(2));
  const gradient = new Float32Array(parameters.length);
  const unused = new Float32Array(parameters.length);
  const loss = MODEL.gradient(parameters, SAMPLES, ALL, gradient);
  assert.ok(Math.abs(loss - MODEL.evaluate(parameters, SAMPLES).loss) < 1e-6);
  const width = 2 ** -13; // so narrow that hardly any kink of ReLU lies within
  const at = (i: number, offset: number): number =>
    MODEL.gradient(parameters.with(i, parameters[i] + offset), SAMPLES, ALL, unused);
  parameters.forEach((_, i) => {
    const slope = (at(i, width) - at(i, -width)) / (2 * width);
    assert.ok(Math.abs(slope - gradient[i]) < 1e-3, `${i}: ${slope} and ${gradient[i]}`);
  });
  assert.ok(gradient.some((one) => Math.abs(one) > 0.05));
});

test('steps along the gradient learn the samples', () => {
  let parameters = MODEL.firstParameters(randomNumbers(3));
  const gradient = new Float32Array(parameters.length);
  for (let step = 0; step < 2000; step++) {
    MODEL.gradient(parameters, SAMPLES, ALL, gradient);
    parameters = parameters.map((value, i) => value - 0.5 * gradient[i]);
  }
  assert.equal(MODEL.evaluate(parameters, SAMPLES).accuracy, 1);
});

test('first parameters lie within the bound of their layer, and follow from the seed', () => {
  const model = new Perceptron(64, 64, 10);
  const parameters = model.firstParameters(randomNumbers(4));
  assert.ok(parameters.every((value) => Math.abs(value) <= 1 / 8));
  assert.ok(Math.max(...parameters) > 0.12 && Math.min(...parameters) < -0.12);
  assert.deepEqual(parameters, model.firstParameters(randomNumbers(4)));
  assert.notDeepEqual(parameters, model.firstParameters(randomNumbers(5)));
});

test('an order of samples has each of them once, and follows from seed, rank and pass', () => {
  const order = permutation(1000, randomNumbers(1, 2, 3));
  assert.deepEqual(
    [...order].sort((a, b) => a - b),
    [...Array(1000).keys()],
  );
  assert.deepEqual(order, permutation(1000, randomNumbers(1, 2, 3)));
  for (const other of [
    [0, 2, 3],
    [1, 0, 3],
    [1, 2, 0],
  ]) {
    assert.notDeepEqual(order, permutation(1000, randomNumbers(...other)));
  }
});

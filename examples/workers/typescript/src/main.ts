/** One worker, from joining to the end of the run. */

import { readFileSync } from 'node:fs';

import { Client } from './client.js';
import { deltaOf } from './delta.js';
import { Digits } from './digits.js';
import { RunFinished, Stopped } from './errors.js';
import { type Options, readOptions, USAGE, UsageError } from './options.js';
import { Progress } from './progress.js';
import { Quadratic, readConformance } from './quadratic.js';
import { DEFAULTS } from './settings.js';
import { type Task, TaskError } from './task.js';
import type { WireTypeName } from './wire-types.js';

const FINISHED = 0;
const FAILED = 1;
const MISUSED = 2;
const NOT_SPOKEN = 3;
const SIGNALS = { SIGINT: 130, SIGTERM: 143 } as const;

/** So many steps in a row without a finite gradient end the training. */
const MAX_SKIPPED = 100;
const DIVERGED = `${MAX_SKIPPED} gradients in a row were not finite: the run diverged; start the server with a smaller --eta`;

interface Work {
  readonly task: Task;
  readonly deltaWireTypes: readonly WireTypeName[];
  readonly parameterWireTypes: readonly WireTypeName[];
}

async function main(): Promise<number> {
  let options: Options;
  let work: Work;
  try {
    options = readOptions(process.argv.slice(2), process.env);
    if (options.help) {
      console.log(USAGE);
      return FINISHED;
    }
    work = readWork(options);
  } catch (error) {
    if (!(error instanceof UsageError || error instanceof TaskError)) throw error;
    console.error(error.message);
    return MISUSED;
  }
  const progress = new Progress(options.name, options.logInterval);
  if (work.deltaWireTypes.length === 0 || work.parameterWireTypes.length === 0) {
    progress.trouble('none of the wire types that are asked for is spoken here');
    return NOT_SPOKEN;
  }
  const stop = new AbortController();
  let code: number = FINISHED;
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.once(signal, () => {
      code = SIGNALS[signal];
      stop.abort();
    });
  }
  try {
    await train(options, work, progress, stop.signal);
    return FINISHED;
  } catch (error) {
    if (error instanceof Stopped) {
      progress.summary(code === SIGNALS.SIGINT ? 'interrupted' : 'terminated');
      return code;
    }
    progress.trouble(error instanceof Error ? error.message : String(error));
    return FAILED;
  }
}

function readWork(options: Options): Work {
  const path = options.conformanceFile ?? options.taskFile ?? '';
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    throw new TaskError(
      `${path} cannot be read (${(error as Error).message}); gemps export-task digits writes such a file`,
    );
  }
  if (options.conformanceFile !== undefined) {
    const { layout, deltaWireTypes, parameterWireTypes } = readConformance(text, path);
    return { task: new Quadratic(layout), deltaWireTypes, parameterWireTypes };
  }
  // Every server speaks float32.
  return {
    task: new Digits(text, path, options.batchSize),
    deltaWireTypes: [...new Set([options.deltaWireType, 'float32' as const])],
    parameterWireTypes: [...new Set([options.parameterWireType, 'float32' as const])],
  };
}

async function train(options: Options, work: Work, progress: Progress, stop: AbortSignal): Promise<void> {
  const { task } = work;
  const client = new Client(
    options.server,
    {
      name: options.name,
      layout: task.layout,
      deltaWireTypes: work.deltaWireTypes,
      parameterWireTypes: work.parameterWireTypes,
      stepsPerEpoch: task.stepsPerEpoch,
    },
    (text) => progress.trouble(text),
    stop,
    { ...DEFAULTS, patience: options.patience * 1000 },
  );
  let reason = 'failed';
  try {
    await client.start((seed) => task.firstState(seed));
    task.begin(client.seed, client.rank);
    progress.say(client.describe());
    await steps(client, task, progress, stop);
    reason = 'finished';
  } catch (error) {
    if (stop.aborted) reason = 'interrupted';
    throw error;
  } finally {
    await client.leave(reason);
  }
  progress.summary('the run is finished');
  const scores = task.evaluate(client.state);
  if (scores !== undefined) {
    const { accuracy, loss, samples } = scores;
    progress.say(`accuracy ${accuracy.toFixed(4)}, loss ${loss.toFixed(4)} on ${samples} samples that were held out`);
  }
}

/** Until the run is finished. */
async function steps(client: Client, task: Task, progress: Progress, stop: AbortSignal): Promise<void> {
  let skipped = 0;
  while (!client.isFinished) {
    if (stop.aborted) throw new Stopped();
    const settings = client.deltaSettings;
    const delta = deltaOf(task, client.state, settings);
    if (delta === undefined) {
      if (++skipped === MAX_SKIPPED) throw new Error(DIVERGED);
      continue; // other samples may have a gradient
    }
    skipped = 0;
    const { values, buffers, loss, samples } = delta;
    try {
      const { isApplied, verdict } = await client.commit(values, buffers, loss, samples);
      progress.step(loss, settings.eta, isApplied, verdict);
    } catch (error) {
      if (error instanceof RunFinished) return;
      throw error;
    }
  }
}

process.exitCode = await main();

/**
 * A worker, from Join to the end of the run. `train` is the one rule for failures (worker.proto): whatever fails, and is
 * not final, the worker waits, joins again with the same session id, pulls, and goes on with a new gradient on a new
 * stream. At most one delta is lost that way, and none is applied twice.
 *
 * session.ts makes the calls, failure.ts reads refusals, backoff.ts says how long to wait; a Task computes.
 */

import { setTimeout as sleep } from 'node:timers/promises';

import { Backoff } from './backoff.js';
import { Failure, failureOf } from './failure.js';
import type { WorkerServiceClient } from './generated/gemps/v1/worker.js';
import { Session } from './session.js';
import type { Task } from './task.js';

const SIGNALS = { SIGINT: 130, SIGTERM: 143 } as const;

/** Trains until the run is finished; the exit status. SIGINT and SIGTERM leave the run and end the process. */
export async function work(task: Task, client: WorkerServiceClient, name: string, interval: number): Promise<number> {
  const session = new Session(client, name, task);
  const say = (text: string): void => console.log(`${name}: ${text}`);
  for (const [signal, status] of Object.entries(SIGNALS)) {
    process.once(signal, () => void session.leave('interrupted').then(() => process.exit(status)));
  }
  try {
    await train(session, task, interval, say);
  } catch (error) {
    await session.leave('failed');
    if (!(error instanceof Failure)) throw error;
    console.error(`${name}: ${error.message}`);
    return error.remedy === 'final' ? 2 : 1;
  }
  await session.leave('finished');
  if (session.version !== undefined) say(task.evaluate(session.model));
  return 0;
}

/** `interval`: seconds between two lines about the training. */
async function train(session: Session, task: Task, interval: number, say: (text: string) => void): Promise<void> {
  const backoff = new Backoff();
  let applied = 0;
  let told = Date.now();
  for (;;) {
    try {
      await session.begin();
      backoff.answered();
      say(`joined with rank ${session.joined.rank}`);
      while (!session.isFinished) {
        const step = task.step(session.model);
        const { staleness } = await session.commit(step);
        backoff.applied();
        applied++;
        if (Date.now() - told >= 1000 * interval) {
          say(`step ${applied}, loss ${step.loss.toFixed(4)}, staleness ${staleness}`);
          told = Date.now();
        }
      }
      break;
    } catch (error) {
      await session.left; // after a signal, which ends the process
      const failure = failureOf(error);
      if (failure.remedy === 'finished') break;
      const pause = backoff.after(failure, Date.now());
      say(`${failure.message}; joining again in ${(pause / 1000).toFixed(1)} s`);
      await sleep(pause);
    }
  }
  say(`the run is finished: ${applied} steps`);
}

/** The command line and the environment. */

import { hostname } from 'node:os';
import { parseArgs } from 'node:util';

import { isWireTypeName, WIRE_TYPE_NAMES, type WireTypeName } from './wire-types.js';

export const USAGE = `usage: node dist/src/main.js --task digits.json [options]

Trains handwritten digits through a gemps parameter server until the run is finished.

  --task FILE                  what gemps export-task digits wrote
  --server HOST:PORT           where gemps serve listens (GEMPS_SERVER; default localhost:50051); no TLS
  --name NAME                  this worker's name, its own in the run (GEMPS_WORKER_NAME; default: host and process)
  --batch-size N               samples a step (default 32)
  --delta-wire-type TYPE       ${WIRE_TYPE_NAMES.join(', ')} (default float32)
  --parameter-wire-type TYPE   the same, for the parameters that come back
  --log-interval SECONDS       between two lines about the training; 0: a line a step (default 5)
  --patience SECONDS           for how long the server may be away (default 300)

With GEMPS_CONFORMANCE=FILE it trains what the conformance kit wants instead (gemps conformance serve).
Exit codes: 0 finished, 1 failed, 2 wrong usage, 3 none of the kit's wire types is spoken here, 130 Ctrl-C,
143 SIGTERM (both leave the run).`;

/** The caller's fault; the message names the fix. */
export class UsageError extends Error {}

export interface Options {
  readonly help: boolean;
  readonly taskFile: string | undefined;
  readonly conformanceFile: string | undefined;
  readonly server: string;
  readonly name: string;
  readonly batchSize: number;
  readonly deltaWireType: WireTypeName;
  readonly parameterWireType: WireTypeName;
  readonly logInterval: number;
  readonly patience: number;
}

/** Throws UsageError. */
export function readOptions(args: string[], environment: NodeJS.ProcessEnv): Options {
  const values = parse(args);
  const server = values.server ?? (environment.GEMPS_SERVER || 'localhost:50051');
  if (!/^[^\s/]+:\d{1,5}$/.test(server)) {
    throw new UsageError(`${server} is no server address: write HOST:PORT, for example localhost:50051`);
  }
  const options = {
    help: values.help ?? false,
    taskFile: values.task,
    conformanceFile: environment.GEMPS_CONFORMANCE || undefined,
    server,
    name: values.name ?? (environment.GEMPS_WORKER_NAME || `typescript-${hostname()}-${process.pid}`),
    batchSize: number('--batch-size', values['batch-size'] ?? '32', 1),
    deltaWireType: wireType('--delta-wire-type', values['delta-wire-type'] ?? 'float32'),
    parameterWireType: wireType('--parameter-wire-type', values['parameter-wire-type'] ?? 'float32'),
    logInterval: number('--log-interval', values['log-interval'] ?? '5', 0),
    patience: number('--patience', values.patience ?? '300', 0),
  };
  if (!Number.isSafeInteger(options.batchSize)) throw new UsageError('--batch-size: give a whole number');
  if (!options.help && options.taskFile === undefined && options.conformanceFile === undefined) {
    throw new UsageError('--task is missing: gemps export-task digits writes digits.json');
  }
  return options;
}

function parse(args: string[]) {
  try {
    return parseArgs({
      args,
      options: {
        help: { type: 'boolean', short: 'h' },
        task: { type: 'string' },
        server: { type: 'string' },
        name: { type: 'string' },
        'batch-size': { type: 'string' },
        'delta-wire-type': { type: 'string' },
        'parameter-wire-type': { type: 'string' },
        'log-interval': { type: 'string' },
        patience: { type: 'string' },
      },
    }).values;
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}

function number(flag: string, text: string, least: number): number {
  const value = Number(text);
  if (text.trim() === '' || !Number.isFinite(value) || value < least) {
    throw new UsageError(`${flag} ${text}: give a number from ${least} on`);
  }
  return value;
}

function wireType(flag: string, name: string): WireTypeName {
  if (!isWireTypeName(name)) throw new UsageError(`${flag} ${name}: there is ${WIRE_TYPE_NAMES.join(', ')}`);
  return name;
}

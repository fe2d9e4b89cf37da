/** The command: trains handwritten digits. */

import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { parseArgs } from 'node:util';

import { connect } from './connection.js';
import { Digits } from './digits.js';
import { work } from './worker.js';

const USAGE = `usage: node dist/src/main.js --task digits.json [options]

Trains handwritten digits through a gemps parameter server until the run is finished.

  --task FILE             what gemps export-task digits wrote
  --server HOST:PORT      where gemps serve listens (GEMPS_SERVER; default localhost:50051)
  --name NAME             this worker's name, its own in the run (GEMPS_WORKER_NAME; default: host and process)
  --credentials FOLDER    certificates and token, as gemps certs makes them (GEMPS_CLIENT_CREDENTIALS; default: no TLS)
  --log-interval SECONDS  between two lines about the training; 0: a line for each step (default 5)

Exit status: 0 the run is finished, 1 failure, 2 wrong usage or a final refusal, 130 SIGINT, 143 SIGTERM.`;

const { GEMPS_SERVER, GEMPS_WORKER_NAME, GEMPS_CLIENT_CREDENTIALS } = process.env;

/** Does what depends on the caller's flags and files; a mistake in them ends the process, with the fix. */
function attempt<T>(fix: string, action: () => T): T {
  try {
    return action();
  } catch (error) {
    console.error(`${(error as Error).message}; ${fix}`);
    process.exit(2);
  }
}

const text = (value: string) => ({ type: 'string', default: value }) as const;
const options = {
  help: { type: 'boolean' },
  task: text('digits.json'),
  server: text(GEMPS_SERVER || 'localhost:50051'),
  name: text(GEMPS_WORKER_NAME || `typescript-${hostname()}-${process.pid}`),
  credentials: text(GEMPS_CLIENT_CREDENTIALS || ''),
  'log-interval': text('5'),
} as const;

const { help, task, server, name, ...rest } = attempt('see --help', () => parseArgs({ options }).values);
if (help) {
  console.log(USAGE);
} else {
  const fix = 'gemps export-task digits writes such a file';
  const digits = attempt(`${task}: ${fix}`, () => new Digits(readFileSync(task, 'utf8')));
  const client = attempt('see --help', () => connect(server, rest.credentials));
  process.exitCode = await work(digits, client, name, Number(rest['log-interval']));
}

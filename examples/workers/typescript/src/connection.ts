/** The channel to the server, with TLS and a token where the operator gave this worker a folder of credentials. */

import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

import { type ClientOptions, credentials, Metadata } from '@grpc/grpc-js';

import { WorkerServiceClient } from './generated/gemps/v1/worker.js';

const OPTIONS: ClientOptions = {
  // Commits may wait for hours. A ping a minute keeps their connection alive, and finds out when the server is gone.
  'grpc.keepalive_time_ms': 60_000,
  'grpc.keepalive_timeout_ms': 20_000,
  'grpc.keepalive_permit_without_calls': 1,
  // gRPC's own pauses between attempts to connect grow to two minutes.
  'grpc.max_reconnect_backoff_ms': 2_000,
};

/** `folder` is what `gemps certs` makes: ca.crt and perhaps client.crt with client.key, and token. Empty: no TLS. */
export function connect(server: string, folder: string): WorkerServiceClient {
  if (!/^[^\s/]+:\d{1,5}$/.test(server)) throw new Error(`${server} is no address: write HOST:PORT`);
  return new WorkerServiceClient(server, folder ? secured(folder) : credentials.createInsecure(), OPTIONS);
}

function secured(folder: string) {
  const read = (name: string): Buffer => readFileSync(join(folder, name));
  const optional = (name: string): Buffer | null => (existsSync(join(folder, name)) ? read(name) : null);
  const tls = credentials.createSsl(read('ca.crt'), optional('client.key'), optional('client.crt'));
  return optional('token') ? credentials.combineChannelCredentials(tls, tokenIn(join(folder, 'token'))) : tls;
}

/** The token goes with every call, and is read for each one, so that the operator can replace it. */
function tokenIn(path: string) {
  return credentials.createFromMetadataGenerator((_, done) => {
    const metadata = new Metadata();
    metadata.set('authorization', `Bearer ${readFileSync(path, 'utf8').trim()}`);
    done(null, metadata);
  });
}

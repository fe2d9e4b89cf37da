/** The client beside a server of this test's own that says little: heartbeats, and how long a worker waits. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import {
  Server,
  ServerCredentials,
  type ServerDuplexStream,
  type ServerWritableStream,
  type UntypedServiceImplementation,
} from '@grpc/grpc-js';

import { Client } from '../src/client.js';
import { crc32c } from '../src/crc32c.js';
import { type CommitRequest, CommitResponse } from '../src/generated/gemps/v1/commit.js';
import { ParameterServerServiceService } from '../src/generated/gemps/v1/parameter_server.js';
import { type PullRequest, PullResponse } from '../src/generated/gemps/v1/parameters.js';
import { RunState } from '../src/generated/gemps/v1/run.js';
import { JoinResponse } from '../src/generated/gemps/v1/session.js';
import { WireType } from '../src/generated/gemps/v1/transfer.js';
import { Layout } from '../src/layout.js';
import { DEFAULTS } from '../src/settings.js';

const LAYOUT = new Layout([{ name: 'a', shape: [2], elementType: 'float32', kind: 'parameter' }]);
const BYTES = Buffer.from('0000803f00000040', 'hex');
const NOTHING = new Uint8Array(0);

/** Joined, pulled, and then: how often it heard of the worker, and what it answers to a commit, and when. */
class Quiet {
  heartbeats = 0;
  lastApplied = 0n;
  answersCommits = true;
  readonly #server = new Server();

  async listen(): Promise<string> {
    this.#server.addService(ParameterServerServiceService, this.#handlers());
    const port = await new Promise<number>((resolve, reject) => {
      this.#server.bindAsync('127.0.0.1:0', ServerCredentials.createInsecure(), (error, found) =>
        error === null ? resolve(found) : reject(error),
      );
    });
    return `127.0.0.1:${port}`;
  }

  close(): void {
    this.#server.forceShutdown();
  }

  #handlers(): UntypedServiceImplementation {
    const parameters = (clock: bigint): Pick<CommitResponse, 'chunk' | 'footer' | 'parameters'> => ({
      parameters: {
        version: { incarnation: 7n, clock },
        wireType: WireType.FLOAT32,
        byteCount: 8n,
        offset: 0n,
        layoutDigest: LAYOUT.digest,
        layout: undefined,
        sharedMemory: undefined,
        buffers: undefined,
        adapter: new Uint8Array(0),
        shards: [],
        baseVersion: undefined,
      },
      chunk: { offset: 0n, data: BYTES },
      footer: { byteCount: 8n, chunkCount: 1n, crc32c: crc32c(BYTES) },
    });
    return {
      join: (_: unknown, answered: (error: null, response: JoinResponse) => void) => {
        const settings = { rule: 'gem', localSteps: 1 };
        answered(
          null,
          JoinResponse.fromPartial({
            incarnation: 7n,
            settings,
            runState: RunState.TRAINING,
            deltaWireType: WireType.FLOAT32,
            parameterWireType: WireType.FLOAT32,
            chunkBytes: 1024,
            hasParameters: true,
          }),
        );
      },
      pull: (call: ServerWritableStream<PullRequest, PullResponse>) => {
        const { parameters: header, ...rest } = parameters(1n);
        call.write(PullResponse.fromPartial({ header, ...rest }));
        call.end();
      },
      heartbeat: (_: unknown, answered: (error: null, response: object) => void) => {
        this.heartbeats++;
        const { lastApplied } = this;
        answered(null, { incarnation: 7n, runState: RunState.TRAINING, lastAppliedSequence: lastApplied, nextEta: 0 });
      },
      commit: (call: ServerDuplexStream<CommitRequest, CommitResponse>) => {
        call.on('data', ({ header }: CommitRequest) => {
          if (!this.answersCommits || header === undefined) return;
          const version = { incarnation: 7n, clock: 2n };
          const verdict = { sequence: header.sequence, version, runState: RunState.TRAINING };
          call.write(CommitResponse.fromPartial({ verdict, ...parameters(2n) }));
        });
        call.on('end', () => call.end());
      },
      leave: (_: unknown, answered: (error: null, response: object) => void) => {
        answered(null, { runState: RunState.TRAINING, lastAppliedSequence: 0n });
      },
    };
  }
}

async function beside(server: Quiet, work: (client: Client) => Promise<void>): Promise<void> {
  const stop = new AbortController();
  const offer = { deltaWireTypes: ['float32'], parameterWireTypes: ['float32'] } as const;
  const identity = { name: 'a', layout: LAYOUT, stepsPerEpoch: 0, ...offer };
  const settings = { ...DEFAULTS, heartbeatInterval: 30, backoffFirst: 1 };
  const client = new Client(await server.listen(), identity, () => undefined, stop.signal, settings);
  try {
    await client.start(() => ({ parameters: new Float32Array(2), buffers: NOTHING }));
    await work(client);
  } finally {
    await client.leave('done');
    server.close();
  }
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await sleep(5);
}

test('a worker that computes for long says that it is alive, until it leaves', async () => {
  const server = new Quiet();
  await beside(server, async (client) => {
    assert.deepEqual([...client.state.parameters], [1, 2]);
    await until(() => server.heartbeats >= 3);
  });
  const before = server.heartbeats;
  await sleep(120);
  assert.equal(server.heartbeats, before);
});

test('an open stream of commits is life enough', async () => {
  const server = new Quiet();
  await beside(server, async (client) => {
    const { isApplied } = await client.commit(Float32Array.of(1, 1), NOTHING, 0.5, 1);
    assert.ok(isApplied);
    await sleep(120); // a heartbeat from before the commit may be on its way
    const before = server.heartbeats;
    await sleep(120);
    assert.equal(server.heartbeats, before);
  });
});

test('a commit waits for as long as heartbeats are answered, and is sent again when its verdict was lost', async () => {
  const server = new Quiet();
  await beside(server, async (client) => {
    server.answersCommits = false;
    let isSettled = false;
    const commit = client.commit(Float32Array.of(1, 1), NOTHING, 0.5, 1).finally(() => (isSettled = true));
    await until(() => server.heartbeats >= 4);
    assert.equal(isSettled, false);
    server.lastApplied = 1n; // it was applied, and the verdict never came
    server.answersCommits = true;
    assert.equal((await commit).isApplied, true);
  });
});

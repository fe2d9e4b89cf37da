/** Payloads: how a model becomes bytes, and how parameters that come in parts are accepted, only as a whole. */

import { crc32c } from './crc32c.js';
import { Failure } from './failure.js';
import { type Footer, type ParametersHeader, type Version, WireType } from './generated/gemps/v1/transfer.js';
import type { Model } from './task.js';

/** The payload of FLOAT32, which is little-endian, as typed arrays are wherever Node.js runs. */
export function payloadOf({ parameters, buffers }: Model): Buffer {
  return Buffer.concat([new Uint8Array(parameters.buffer, parameters.byteOffset, parameters.byteLength), buffers]);
}

export function* chunksOf(payload: Buffer, chunkBytes: number): Generator<Buffer> {
  for (let at = 0; at < payload.length; at += chunkBytes) yield payload.subarray(at, at + chunkBytes);
}

/** What a message has of a transfer, in the order in which it applies. */
export interface Parts {
  readonly header: ParametersHeader | undefined;
  readonly chunk: Uint8Array;
  readonly footer: Footer | undefined;
}

/** Takes messages up to the footer. `like` has the sizes that are expected; `digest` is that of Join. Throws Failure. */
export async function receive(messages: AsyncIterable<Parts>, { parameters, buffers }: Model, digest: Uint8Array) {
  const payload = new Uint8Array(parameters.byteLength + buffers.length);
  let version: Version | undefined;
  let received = 0;
  for await (const { header, chunk, footer } of messages) {
    if (header !== undefined) {
      version = header.version;
      const isExpected =
        Buffer.compare(header.layoutDigest, digest) === 0 && header.byteCount === BigInt(payload.length);
      if (!isExpected || header.wireType !== WireType.FLOAT32) {
        throw new Failure('bug', 'the server sent parameters of another layout or wire type');
      }
    }
    if (received + chunk.length <= payload.length) payload.set(chunk, received);
    received += chunk.length;
    if (footer === undefined) continue;
    if (received !== payload.length || crc32c(payload) !== footer.crc32c) {
      throw new Failure('rejoin', 'the parameters that came do not match their footer', 'CHECKSUM');
    }
    const model = {
      parameters: new Float32Array(payload.buffer, 0, parameters.length),
      buffers: payload.subarray(parameters.byteLength),
    };
    return { model, version };
  }
  throw new Failure('rejoin', 'the stream ended without a footer');
}

/** Parameters on their way in: header, chunks, footer. Nothing of them may be used before the footer has matched. */

import { crc32c } from './crc32c.js';
import { Misbehaved } from './errors.js';
import type { Chunk, Footer, ParametersHeader, Version } from './generated/gemps/v1/transfer.js';
import type { ModelState, PayloadFormat } from './payload.js';
import { sameVersion, showVersion } from './version.js';

// Of an element, in size (docs/protocol.md#connections-and-limits).
const LARGEST = 1e30;

/** What arrived is not what was sent: the transfer has to start over. */
export class Damaged extends Error {}

/** Lives through all attempts of one transfer: what has arrived stays, and a resumed pull continues behind it. */
export class Receiver {
  #payload: Uint8Array;
  #received = 0;
  #crc = 0;
  #chunksOfStream = 0;
  #announced = false;
  /** Of what is arriving; undefined before the header. */
  version: Version | undefined;

  constructor(readonly format: PayloadFormat) {
    this.#payload = new Uint8Array(format.byteCount);
  }

  /** Bytes that have arrived in order: a border, at which a torn transfer can continue. */
  get received(): number {
    return this.#received;
  }

  /** Forget what has arrived. */
  reset(): void {
    this.#received = this.#crc = this.#chunksOfStream = 0;
    this.#announced = false;
    this.version = undefined;
  }

  /** The header of a stream. Throws Misbehaved when it announces other than what was asked for. */
  announce(header: ParametersHeader): void {
    const { format } = this;
    const digest = Buffer.from(header.layoutDigest).toString('hex');
    const wanted = Buffer.from(format.layout.digest).toString('hex');
    if (digest !== wanted) {
      throw new Misbehaved(
        `the server sends parameters of layout ${digest.slice(0, 8)}, this worker's is ${wanted.slice(0, 8)}`,
      );
    }
    if (
      header.byteCount !== BigInt(format.byteCount) ||
      header.wireType !== format.codec.wireType ||
      header.sharedMemory !== undefined ||
      header.version === undefined
    ) {
      throw new Misbehaved(
        `the server announces ${header.byteCount} bytes of wire type ${header.wireType}; ` +
          `${format.byteCount} of ${format.codec.name} were asked for`,
      );
    }
    const isNext = header.offset === BigInt(this.#received);
    if (!isNext || (this.version !== undefined && !sameVersion(this.version, header.version))) {
      throw new Misbehaved(
        `the server continues with ${showVersion(header.version)} at byte ${header.offset}, ` +
          `not with ${showVersion(this.version)} at ${this.#received}`,
      );
    }
    this.version = header.version;
    this.#announced = true;
    this.#chunksOfStream = 0; // the footer counts those of its stream, but its CRC is of all bytes
  }

  /** The next chunk. Throws Damaged. */
  add({ offset, data }: Chunk): void {
    const end = this.#received + data.length;
    if (!this.#announced) throw new Damaged('a chunk came before the header');
    if (data.length === 0) throw new Damaged('an empty chunk');
    if (offset !== BigInt(this.#received)) throw new Damaged(`a chunk at ${offset}, not at ${this.#received}`);
    if (end > this.format.byteCount) throw new Damaged(`a chunk up to ${end} of ${this.format.byteCount} bytes`);
    if (!this.format.isBorder(end)) throw new Damaged(`a chunk was cut within an element, at ${end}`);
    this.#payload.set(data, this.#received);
    this.#crc = crc32c(data, this.#crc);
    this.#received = end;
    this.#chunksOfStream++;
  }

  /** The footer decides. Throws Damaged when it does not match, or the values are illegal. */
  finish(footer: Footer): ModelState {
    if (!this.#announced) throw new Damaged('a footer came before the header');
    const total = BigInt(this.format.byteCount);
    if (footer.byteCount !== total || BigInt(this.#received) !== total) {
      throw new Damaged(`the footer tells of ${footer.byteCount} bytes, ${this.#received} of ${total} came`);
    }
    if (footer.chunkCount !== BigInt(this.#chunksOfStream)) {
      throw new Damaged(`the footer tells of ${footer.chunkCount} chunks, ${this.#chunksOfStream} came`);
    }
    if (footer.crc32c !== this.#crc) throw new Damaged('the checksum differs');
    return this.#decoded();
  }

  #decoded(): ModelState {
    const state = this.format.decode(this.#payload);
    // NaN fails the comparison, too.
    if (!state.parameters.every((value) => Math.abs(value) <= LARGEST))
      throw new Damaged('a parameter is out of range');
    return state;
  }
}

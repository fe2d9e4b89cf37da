/** One server: a connection, this worker's session there, and its commits. */

import { connect } from './calls.js';
import { Committer } from './commit.js';
import { Patience } from './patience.js';
import { type Identity, Session } from './session.js';
import type { ClientSettings } from './settings.js';
import type { Shard } from './shard.js';

/** What the connections of a worker have in common. */
export interface Worker {
  readonly id: Uint8Array;
  readonly identity: Identity;
  /** Takes a line about each trouble, and its end. */
  readonly tell: (text: string) => void;
  /** Ends everything but leaving. */
  readonly stop: AbortSignal;
  readonly settings: ClientSettings;
}

export class Connection {
  readonly session: Session;
  readonly committer: Committer;
  readonly #calls: ReturnType<typeof connect>;
  readonly #interrupted = new AbortController();

  constructor(address: string, { id, identity, tell, stop, settings }: Worker, shard?: Shard) {
    const ended = AbortSignal.any([stop, this.#interrupted.signal]);
    this.#calls = connect(address);
    const patience = new Patience(settings, tell, ended);
    this.session = new Session({ calls: this.#calls, settings, patience, stop: ended, tell }, identity, id, shard);
    this.committer = new Committer(this.session);
  }

  /** End the calls that are under way, which throw Stopped; only leaving is left. */
  interrupt(): void {
    this.#interrupted.abort();
  }

  close(): void {
    this.committer.close();
    this.#calls.close();
  }
}

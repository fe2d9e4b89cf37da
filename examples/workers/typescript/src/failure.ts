/** What a failed call asks of the worker: the table at the head of errors.proto. No other file reads status codes. */

import { type ServiceError, status } from '@grpc/grpc-js';

import { ErrorInfo, RetryInfo } from './generated/vendored/google/rpc/error_details.js';
import { Status } from './generated/vendored/google/rpc/status.js';

/**
 * rejoin: the one rule. finished: leave, exit status 0. final: exit status 2, because neither waiting nor restarting
 * this worker would help. bug: of this worker or of the server, exit status 1.
 */
export type Remedy = 'rejoin' | 'finished' | 'final' | 'bug';

export class Failure extends Error {
  /** `reason` is a name of ErrorReason, empty if the server said none; `delay` the server's advice, in milliseconds. */
  constructor(
    readonly remedy: Remedy,
    message: string,
    readonly reason = '',
    readonly delay = 0,
  ) {
    super(message);
  }
}

/** Reasons with which the worker joins again although the server names no delay: those with a * in errors.proto. */
const REJOIN: ReadonlySet<string> = new Set(
  (
    'BAD_VALUE CHECKSUM UNKNOWN_SESSION EXPIRED_SESSION UNKNOWN_INCARNATION STALE_BASE SEQUENCE_GAP ' +
    'NOT_INITIALIZED NEWER_CALL STARTING DRAINING'
  ).split(' '),
);

/** What gRPC itself reports when a connection or a call breaks. */
const BROKEN = [status.UNAVAILABLE, status.CANCELLED, status.DEADLINE_EXCEEDED, status.INTERNAL];

/** The failure that an error of a call stands for. Throws errors that are none of a call. */
export function failureOf(error: unknown): Failure {
  if (error instanceof Failure) return error;
  if (!(error instanceof Error && 'metadata' in error && 'details' in error)) throw error;
  const { code, details, metadata } = error as ServiceError;
  let info: ErrorInfo | undefined;
  let delay: number | undefined;
  for (const trailer of metadata.get('grpc-status-details-bin')) {
    for (const { typeUrl, value } of Status.decode(Buffer.from(trailer)).details) {
      if (typeUrl.endsWith('/google.rpc.ErrorInfo')) info = ErrorInfo.decode(value);
      if (typeUrl.endsWith('/google.rpc.RetryInfo')) {
        const { seconds = 0n, nanos = 0 } = RetryInfo.decode(value).retryDelay ?? {};
        delay = Number(seconds) * 1000 + nanos / 1e6;
      }
    }
  }
  if (info?.domain !== 'gemps') {
    // UNIMPLEMENTED, for example: the peer is a server of another version.
    return new Failure(BROKEN.includes(code) ? 'rejoin' : 'bug', `${status[code]}: ${details}`);
  }
  const { reason } = info;
  let remedy: Remedy = delay !== undefined || REJOIN.has(reason) ? 'rejoin' : 'bug';
  if (reason === 'RUN_FINISHED') remedy = 'finished';
  if (info.metadata.final === 'true') remedy = 'final';
  return new Failure(remedy, `${reason}: ${details}`, reason, delay);
}

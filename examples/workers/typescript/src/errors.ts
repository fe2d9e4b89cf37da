/** gRPC's status in, this worker's errors out: the one place that reads codes and details (errors.proto). */

import { Metadata, type StatusObject, status } from '@grpc/grpc-js';

import { ErrorInfo, RetryInfo } from './generated/vendored/google/rpc/error_details.js';
import { Status } from './generated/vendored/google/rpc/status.js';

/** A call broke, or the server starts or drains: it may be made again, or be resumed. */
export class Torn extends Error {
  constructor(
    message: string,
    readonly retryAfterMs = 0,
  ) {
    super(message);
  }
}

/** The server said no. Without `retryAfterMs` asking again would not help. */
export class Refusal extends Error {
  constructor(
    readonly reason: string,
    message: string,
    readonly retryAfterMs?: number | undefined,
  ) {
    super(`${reason}: ${message}`);
  }
}

/** The server does what the contract does not allow: nothing of it can be trusted. */
export class Misbehaved extends Error {}

/** The session is over at one of several servers: join the primary, then the others, and pull (shards.proto). */
export class SessionLost extends Error {}

/** The run's budget is spent, or an operator finished it. */
export class RunFinished extends Error {}

/** The server was away, or could not complete a call, for too long. */
export class Unavailable extends Error {}

/** Somebody stopped this worker. */
export class Stopped extends Error {}

/** The server does not know the session (any more), or was restarted: join again, under the same id. */
export const LOST_SESSION: ReadonlySet<string> = new Set(['UNKNOWN_SESSION', 'EXPIRED_SESSION', 'UNKNOWN_INCARNATION']);

// What gRPC itself reports when a connection or a call breaks. INTERNAL is how it reports a stream that was reset by
// something in between; an INTERNAL of the server's own carries an ErrorInfo.
const BROKEN: ReadonlySet<status> = new Set([
  status.UNAVAILABLE,
  status.CANCELLED,
  status.DEADLINE_EXCEEDED,
  status.INTERNAL,
]);

/** Phases of a server's life: the call is repeated like one that did not reach it. */
const PASSING: ReadonlySet<string> = new Set(['STARTING', 'DRAINING']);

/** What a call's status other than OK means. */
export function failure({ code, details, metadata }: StatusObject): Torn | Refusal {
  const { info, retryAfterMs } = readDetails(metadata);
  const message = details || status[code];
  if (info === undefined) {
    return BROKEN.has(code) ? new Torn(`${status[code]}: ${message}`) : new Refusal(status[code], message);
  }
  if (PASSING.has(info.reason)) return new Torn(`${info.reason}: ${message}`, retryAfterMs);
  return new Refusal(info.reason, message, retryAfterMs);
}

function readDetails(metadata: Metadata): { info?: ErrorInfo; retryAfterMs?: number } {
  const found: { info?: ErrorInfo; retryAfterMs?: number } = {};
  for (const value of metadata.get('grpc-status-details-bin')) {
    for (const { typeUrl, value: detail } of Status.decode(Buffer.from(value)).details) {
      if (typeUrl.endsWith('/google.rpc.ErrorInfo')) {
        const info = ErrorInfo.decode(detail);
        if (info.domain === 'gemps') found.info = info;
      } else if (typeUrl.endsWith('/google.rpc.RetryInfo')) {
        const { seconds = 0n, nanos = 0 } = RetryInfo.decode(detail).retryDelay ?? {};
        found.retryAfterMs = Number(seconds) * 1000 + nanos / 1e6;
      }
    }
  }
  return found;
}

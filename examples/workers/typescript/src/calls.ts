/** gRPC calls as promises: one message after the other, back-pressure both ways, failures as this worker's errors. */

import {
  type CallOptions,
  type ClientDuplexStream,
  type ClientOptions,
  type ClientReadableStream,
  type ClientUnaryCall,
  type ClientWritableStream,
  credentials,
  Metadata,
  type ServiceError,
  status,
  type StatusObject,
} from '@grpc/grpc-js';

import { failure, Stopped, Torn } from './errors.js';
import { ParameterServerServiceClient } from './generated/gemps/v1/parameter_server.js';

/** The largest message of the contract (parameter_server.proto). */
export const MESSAGE_LIMIT = (2 << 20) + (64 << 10);

const OPTIONS: ClientOptions = {
  // A ping a minute keeps the connection during long steps, and finds a dead server; it accepts them from 30 s on.
  'grpc.keepalive_time_ms': 60_000,
  'grpc.keepalive_timeout_ms': 20_000,
  'grpc.keepalive_permit_without_calls': 1,
  // gRPC's own pauses between connection attempts grow to two minutes.
  'grpc.initial_reconnect_backoff_ms': 100,
  'grpc.max_reconnect_backoff_ms': 2_000,
  // Repeating a commit is this worker's decision.
  'grpc.enable_retries': 0,
  'grpc.max_receive_message_length': MESSAGE_LIMIT,
  'grpc.use_local_subchannel_pool': 1,
};

/** A channel without TLS; it connects with the first call. */
export function connect(address: string): ParameterServerServiceClient {
  const host = address.slice(0, address.lastIndexOf(':'));
  const isLocal = ['localhost', '127.0.0.1', '[::1]'].includes(host);
  const options = isLocal ? { ...OPTIONS, 'grpc.enable_http_proxy': 0 } : OPTIONS;
  return new ParameterServerServiceClient(address, credentials.createInsecure(), options);
}

/** A unary method of the client, bound to it. */
export type Method<Request, Response> = (
  request: Request,
  metadata: Metadata,
  options: Partial<CallOptions>,
  answered: (error: ServiceError | null, response: Response) => void,
) => ClientUnaryCall;

/** The answer of a unary call, within `timeout` milliseconds. Throws Torn, Refusal or Stopped. */
export function ask<Request, Response>(
  method: Method<Request, Response>,
  request: Request,
  timeout: number,
  stop: AbortSignal,
): Promise<Response> {
  return new Promise((resolve, reject) => {
    const call = method(request, new Metadata(), { deadline: Date.now() + timeout }, (error, response) => {
      stop.removeEventListener('abort', cancel);
      if (error === null) resolve(response);
      else reject(stop.aborted ? new Stopped() : failure(error));
    });
    const cancel = (): void => call.cancel();
    if (stop.aborted) cancel();
    else stop.addEventListener('abort', cancel, { once: true });
  });
}

type Receiving<T> = ClientReadableStream<T> | ClientDuplexStream<never, T>;

/** The receiving half of a stream. What arrived before the stream broke comes before the error that it broke with. */
export class Incoming<T> {
  readonly #queue: T[] = [];
  #isDrained = false;
  #status: StatusObject | undefined;
  #wake: () => void = () => undefined;

  constructor(private readonly call: Receiving<T>) {
    call.on('data', (message: T) => {
      this.#queue.push(message);
      call.pause(); // one at a time: what this worker does not take stays with the server
      this.#wake();
    });
    call.on('end', () => {
      this.#isDrained = true;
      this.#wake();
    });
    call.on('status', (found: StatusObject) => {
      this.#status = found;
      this.#wake();
    });
    call.on('error', () => undefined); // the status says the same
  }

  /** Whether the server has not ended it yet. */
  get isOpen(): boolean {
    return this.#status === undefined;
  }

  /** The next message; undefined when the stream ended with OK. Throws Torn or Refusal. One caller at a time. */
  async next(): Promise<T | undefined> {
    for (;;) {
      const message = this.#queue.shift();
      if (message !== undefined) return message;
      if (this.#isDrained && this.#status !== undefined) {
        if (this.#status.code === status.OK) return undefined;
        throw failure(this.#status);
      }
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
        this.call.resume();
      });
    }
  }
}

type Sending<T> = ClientWritableStream<T> | ClientDuplexStream<T, never>;

/** Resolves when gRPC has taken the message, which it does as far as the server's window allows, or the stream is over. */
export function send<T>(call: Sending<T>, message: T): Promise<void> {
  return new Promise((resolve) => {
    if (call.destroyed || call.writableEnded) return resolve();
    const done = (): void => {
      call.off('status', done);
      resolve(); // why it failed is for the receiving half to say, in its order
    };
    call.once('status', done);
    call.write(message, done);
  });
}

/**
 * Waits for `pending`. After each `silence` milliseconds it asks `onSilence`, which may throw to give up: the call is
 * then cancelled, as it is when `stop` is raised.
 */
export function patiently<T>(
  pending: Promise<T>,
  call: { cancel(): void },
  silence: number,
  onSilence: () => Promise<void>,
  stop: AbortSignal,
): Promise<T> {
  return new Promise((resolve, reject) => {
    let timer: NodeJS.Timeout | undefined;
    let isSettled = false;
    const settle = (): void => {
      isSettled = true;
      clearTimeout(timer);
      stop.removeEventListener('abort', aborted);
    };
    const fail = (error: unknown): void => {
      if (isSettled) return;
      settle();
      call.cancel();
      reject(stop.aborted ? new Stopped() : error);
    };
    const aborted = (): void => fail(new Stopped());
    const listen = (): void => {
      if (!isSettled) timer = setTimeout(() => void onSilence().then(listen, fail), silence);
    };
    pending.then((value) => {
      settle();
      resolve(value);
    }, fail);
    if (stop.aborted) return aborted();
    stop.addEventListener('abort', aborted, { once: true });
    listen();
  });
}

/** For `patiently`: silence that nothing excuses. */
export function broken(what: string): () => Promise<void> {
  return () => Promise.reject(new Torn(what));
}

/** How the client behaves when things go wrong. Times in milliseconds. */
export interface ClientSettings {
  /** For how long one and the same call may fail before the worker gives up. */
  readonly patience: number;
  /** Without a single message moving for so long, while chunks are under way, a call is taken for broken. */
  readonly progressTimeout: number;
  /**
   * After so long without any call, or without a word from a server that has the next one, the client sends a heartbeat.
   * Well below the session's time-out, which is 120 s or more.
   */
  readonly heartbeatInterval: number;
  /** The first pause before a repeat; each further one is twice as long, and all are jittered by half. */
  readonly backoffFirst: number;
  readonly backoffLimit: number;
  /** How long leaving waits for the server's answer. */
  readonly leaveTimeout: number;
}

export const DEFAULTS: ClientSettings = {
  patience: 300_000,
  progressTimeout: 60_000,
  heartbeatInterval: 30_000,
  backoffFirst: 100,
  backoffLimit: 2_000,
  leaveTimeout: 5_000,
};

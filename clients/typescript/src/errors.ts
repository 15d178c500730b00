/** What can go wrong, as types. `kind` tells them apart where `instanceof` cannot: in another realm, or in a log. */

import { Buffer } from "node:buffer";

import type { ForeignLock, Holder } from "./model.js";

/** Whether a request that failed may have changed something at the server. */
export type Effect = "none" | "unknown";

/** Which error it is. */
export type ErrorKind =
  | "busy"
  | "timed_out"
  | "lost"
  | "unavailable"
  | "denied"
  | "invalid"
  | "holder_changed"
  | "corrupt"
  | "cancelled";

/** Why a lease has ended. */
export type LostReason =
  /** By the monotonic clock: it could not be renewed in time. */
  | "expired"
  /** By the calendar clock alone: the machine has slept, or the clock was set ahead. */
  | "wall_clock"
  /** The server says that it expired, was released, or never existed. */
  | "not_there"
  /** An operator evicted it. */
  | "evicted"
  /** The claim was cancelled at the server. */
  | "buried"
  /** This program released it. */
  | "released";

/** The base of all errors of this package. */
export abstract class LeaseholdError extends Error {
  /** Which error it is. */
  abstract readonly kind: ErrorKind;
  /** Whether the request may have changed something at the server. */
  readonly effect: Effect = "none";
  /** The stable name that the server gave the problem, such as `limit` or `draining`; or undefined if the problem is not the server's. */
  readonly code: string | undefined = undefined;

  constructor(message: string, options?: { cause?: unknown; code?: string | undefined; effect?: Effect }) {
    super(message, options?.cause === undefined ? undefined : { cause: options.cause });
    if (options?.code !== undefined) this.code = options.code;
    if (options?.effect !== undefined) this.effect = options.effect;
  }

  /** For a log: `JSON.stringify` takes no bigint, so fencing tokens become text, and notes of bytes base64. */
  toJSON(): Record<string, unknown> {
    return { name: this.name, message: this.message, ...(jsonOf({ ...this }) as Record<string, unknown>) };
  }
}

/** The same value, of types that JSON has. */
function jsonOf(value: unknown): unknown {
  if (typeof value === "bigint") return value.toString();
  if (typeof value !== "object" || value === null) return value;
  if (value instanceof Uint8Array) return Buffer.from(value).toString("base64");
  if (Array.isArray(value)) return value.map(jsonOf);
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, jsonOf(each)]));
}

/** What is known about the holders of a resource. */
export interface BusyDetails {
  readonly holders?: readonly Holder[];
  readonly retryAfter?: number;
  readonly paused?: boolean;
  readonly foreign?: ForeignLock | undefined;
}

/** Others hold the lease. */
export class BusyError extends LeaseholdError {
  override readonly name: string = "BusyError";
  readonly kind: "busy" | "timed_out" = "busy";
  /** Some of the holders. */
  readonly holders: readonly Holder[];
  /** How many milliseconds to wait at least before asking again; add some at random. */
  readonly retryAfter: number;
  /** An operator has paused the resource. */
  readonly paused: boolean;
  /** The lock of another program, if that holds the resource. */
  readonly foreign: ForeignLock | undefined;

  constructor(message: string, details: BusyDetails = {}) {
    super(message, { code: "contended" });
    this.holders = details.holders ?? [];
    this.retryAfter = details.retryAfter ?? 0;
    this.paused = details.paused ?? false;
    this.foreign = details.foreign;
  }
}

/** Others hold the lease, and the time to wait is over. */
export class TimedOutError extends BusyError {
  override readonly name = "TimedOutError";
  override readonly kind = "timed_out";
}

/** The lease has ended: stop the work. */
export class LeaseLostError extends LeaseholdError {
  override readonly name = "LeaseLostError";
  readonly kind = "lost";
  /** Why it has ended. */
  readonly why: LostReason;

  constructor(message: string, why: LostReason, options?: { cause?: unknown }) {
    super(message, { ...options, code: "lost" });
    this.why = why;
  }
}

/** No answer, or none that can be believed. `effect` says whether the request may have been carried out. */
export class UnavailableError extends LeaseholdError {
  override readonly name = "UnavailableError";
  readonly kind = "unavailable";
  /** How many milliseconds to wait before asking again, if the server said so. */
  readonly retryAfter: number | undefined;

  constructor(
    message: string,
    effect: Effect = "unknown",
    options?: { cause?: unknown; code?: string; retryAfter?: number | undefined },
  ) {
    super(message, { ...options, effect });
    this.retryAfter = options?.retryAfter;
  }
}

/** There is no valid token, it does not allow this, or the server's certificate cannot be trusted. */
export class DeniedError extends LeaseholdError {
  override readonly name = "DeniedError";
  readonly kind = "denied";
}

/** The request is wrong. Asking again does not help, except for the code `limit`. */
export class InvalidError extends LeaseholdError {
  override readonly name: string = "InvalidError";
  readonly kind = "invalid";
}

/** The holders of a semaphore use another capacity. */
export class MismatchError extends InvalidError {
  override readonly name = "MismatchError";
  /** The capacity that they use. */
  readonly capacity: number | undefined;

  constructor(message: string, capacity: number | undefined) {
    super(message, { code: "mismatch" });
    this.capacity = capacity;
  }
}

/** An operator's order named a grant that is gone. */
export class HolderChangedError extends LeaseholdError {
  override readonly name = "HolderChangedError";
  readonly kind = "holder_changed";
  /** The token of the newest grant. */
  readonly token: bigint | undefined;

  constructor(message: string, token: bigint | undefined) {
    super(message, { code: "not_that_one" });
    this.token = token;
  }
}

/** The store has a value that cannot be read: somebody else wrote to its keys. */
export class CorruptError extends LeaseholdError {
  override readonly name = "CorruptError";
  readonly kind = "corrupt";
}

/**
 * The reason of a signal that ends everything of a client.
 *
 * @internal
 */
export class ClientClosedReason extends InvalidError {
  constructor() {
    super("the client was closed");
  }
}

/**
 * The caller cancelled, or closed the client. Nothing of the claim is left, or a release that is under way ends it.
 *
 * Its name is `AbortError`, as for everything that an `AbortSignal` cancels; `cause` is the reason of the signal.
 */
export class CancelledError extends LeaseholdError {
  override readonly name = "AbortError";
  readonly kind = "cancelled";

  constructor(signal: AbortSignal | undefined, effect: Effect = "none") {
    const reason: unknown = signal?.reason;
    super(reason instanceof ClientClosedReason ? reason.message : "the caller cancelled", { cause: reason, effect });
  }
}

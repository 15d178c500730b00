/** Leases, as a program holds them. */

import { now } from "./clock.js";
import { LeaseLostError, UnavailableError } from "./errors.js";
import { noteField } from "./json.js";
import type { FinishRequest } from "./model.js";
import { type Claim, readSingleRenewal } from "./protocol.js";
import { endClaim, endLost } from "./release.js";
import type { Renewals } from "./renewals.js";
import { allowManyListeners } from "./signals.js";
import type { LeaseState } from "./state.js";
import { renewalTimeout } from "./times.js";
import type { Transport } from "./transport.js";

/** What all leases have. They are renewed in the background until they are released or lost. */
export interface AnyLease extends AsyncDisposable {
  /** The resource, as it was asked for. */
  readonly resource: string;
  /** Its key: the stable spelling. */
  readonly key: string;
  /** The ttl that the server gave, in milliseconds. */
  readonly ttl: number;
  /**
   * Aborted when the lease is lost, with a `LeaseLostError` as its reason: before anybody else can be granted the lease, if the event loop
   * runs. Not aborted by a release.
   */
  readonly signal: AbortSignal;
  /** Why the lease is lost, if it is. */
  readonly lost: LeaseLostError | undefined;
  /** How many milliseconds are left for work unless the lease is renewed. 0 if it has ended. */
  readonly remaining: number;
  /** What an operator has asked of the holder, if anything: to finish soon. */
  readonly finishRequest: FinishRequest | undefined;
  /**
   * Throws `LeaseLostError` if the lease has ended. Asks the clocks and not the server, so it costs nothing: call it before every effect. Unlike
   * `signal` it also tells the truth after the event loop was blocked, or the process was stopped.
   */
  check(): void;
  /** Replaces the note, which others can read. It has at most 4096 bytes. */
  setNote(note: string | Uint8Array): Promise<void>;
  /**
   * Releases the lease. Never throws, takes at most the client's `releaseTimeout`, and may be called again. Returns whether the lease has
   * ended at the server for certain; otherwise it ends there by itself, with its ttl.
   */
  release(): Promise<boolean>;
  /** The same as `release`, for `await using`. */
  [Symbol.asyncDispose](): Promise<void>;
}

/** A lease that nobody else holds. */
export interface Lease extends AnyLease {
  /** The fencing token: higher than those of all earlier grants of the resource. Write it as text, never as a number. */
  readonly token: bigint;
  /** What a fence checks: token, owner hash and resource. It has no secret in it. */
  readonly pass: string;
}

/** A part of a resource: a permit of a semaphore, or a lease to read. It has no fencing token, because others hold the resource, too. */
export interface SharedLease extends AnyLease {
  /** The number of the grant. It orders nothing. */
  readonly number: bigint;
}

/** What a lease needs of its client. */
export interface LeaseTools {
  readonly transport: Transport;
  readonly renewals: Renewals;
  readonly releaseTimeout: number;
  /** Remembers what is under way, for `close`. */
  readonly track: <T>(work: Promise<T>) => Promise<T>;
}

class HeldLease implements AnyLease {
  readonly resource: string;
  readonly key: string;
  readonly #held: LeaseState;
  readonly #tools: LeaseTools;
  #released: Promise<boolean> | undefined;

  constructor(held: LeaseState, tools: LeaseTools) {
    this.#held = held;
    this.#tools = tools;
    this.resource = held.claim.name.text;
    this.key = held.claim.name.key;
    tools.renewals.add(held);
  }

  get ttl(): number {
    return this.#held.ttl;
  }

  get signal(): AbortSignal {
    return this.#held.signal;
  }

  get lost(): LeaseLostError | undefined {
    this.#held.checkClocks(now());
    return this.#held.lost;
  }

  get remaining(): number {
    if (this.lost !== undefined || this.#held.isOver) return 0;
    const { at, wall } = now();
    const { stopAt, wallStopAt } = this.#held.times;
    return Math.max(0, Math.min(stopAt - at, wallStopAt - wall));
  }

  get finishRequest(): FinishRequest | undefined {
    return this.#held.finishRequest;
  }

  check(): void {
    this.#held.check();
  }

  async setNote(note: string | Uint8Array): Promise<void> {
    this.check();
    const held = this.#held;
    const sent = now();
    try {
      const kept = await this.#tools.transport.call({
        method: "POST",
        path: "/v1/renew",
        body: { ...held.claim.fields(), ttl_ms: held.claim.ttl, ...noteField(note) },
        timeout: renewalTimeout(held.ttl),
        pool: "leases",
        read: (answer) => readSingleRenewal(answer, held),
      });
      held.renewed(sent, kept);
    } catch (error) {
      if (error instanceof LeaseLostError) held.lose(error.why);
      throw error;
    }
    this.check();
  }

  release(): Promise<boolean> {
    this.#released ??= this.#release();
    return this.#released;
  }

  async #release(): Promise<boolean> {
    const { renewals, transport, releaseTimeout, track } = this.#tools;
    const held = this.#held;
    held.checkClocks(now());
    if (held.lost !== undefined) {
      // If the server has ended the lease, there is nothing to release. If the clock has, the server may still hold it: release it early.
      const isOver = held.lost.why === "not_there" || held.lost.why === "evicted" || held.lost.why === "buried";
      if (!isOver) endLost(transport, held.claim);
      return isOver;
    }
    held.isReleased = true;
    renewals.drop(held);
    return track(endClaim(transport, held.claim, releaseTimeout));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }
}

class ExclusiveLease extends HeldLease implements Lease {
  readonly token: bigint;
  readonly pass: string;

  constructor(held: LeaseState, pass: string, tools: LeaseTools) {
    super(held, tools);
    this.token = held.grant;
    this.pass = pass;
  }
}

class NumberedLease extends HeldLease implements SharedLease {
  readonly number: bigint;

  constructor(held: LeaseState, tools: LeaseTools) {
    super(held, tools);
    this.number = held.grant;
  }
}

/** The lease of an exclusive grant. */
export function exclusive(held: LeaseState, tools: LeaseTools): Lease {
  if (held.pass === undefined) {
    void tools.track(endClaim(tools.transport, held.claim, tools.releaseTimeout));
    throw new UnavailableError(`the server gave no token for ${held.claim.name.text}`);
  }
  return new ExclusiveLease(held, held.pass, tools);
}

/** The lease of a part. */
export function shared(held: LeaseState, tools: LeaseTools): SharedLease {
  return new NumberedLease(held, tools);
}

/** Ends a claim that was given up, in the background. */
export function retire(claim: Claim, tools: LeaseTools): void {
  void tools.track(endClaim(tools.transport, claim, tools.releaseTimeout));
}

/** Several leases, acquired together. */
export class LeaseSet implements AsyncDisposable {
  /** The leases, in the byte order of their keys. */
  readonly leases: readonly Lease[];
  readonly #abort = new AbortController();

  /** @internal */
  constructor(leases: readonly Lease[]) {
    this.leases = leases;
    allowManyListeners(this.#abort.signal);
    for (const { signal } of leases) {
      signal.addEventListener("abort", () => this.#abort.abort(signal.reason), { once: true });
      if (signal.aborted) this.#abort.abort(signal.reason);
    }
  }

  /** Aborted when the first of them is lost. */
  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /** The lease of this resource. */
  get(resource: string): Lease | undefined {
    return this.leases.find((lease) => lease.resource === resource);
  }

  /** Throws `LeaseLostError` if one of them has ended. */
  check(): void {
    for (const lease of this.leases) lease.check();
  }

  /** Releases all of them. Never throws. */
  async release(): Promise<boolean> {
    const released = await Promise.all(this.leases.map((lease) => lease.release()));
    return released.every(Boolean);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }
}

/**
 * Renews the leases of one client, and tells them that they are lost.
 *
 * 1. One timer for all leases. It does not keep the process alive. It fires when the next lease is due, and at least once a second while
 *    there are leases: the calendar clock may have moved.
 * 2. A lease whose time to stop has come, by either clock, is lost.
 * 3. Leases that are due, and those that will be soon, are renewed by one request; by a few if their ttls differ much, because the shortest
 *    one says how long the request may take.
 * 4. An answer that a lease is gone ends it. A failure ends nothing: the renewal is repeated until the clock ends the lease.
 */

import { now } from "./clock.js";
import { type LeaseholdError, LeaseLostError, UnavailableError } from "./errors.js";
import type { LeaseState } from "./state.js";
import { type Kept, readRenewals } from "./protocol.js";
import { inBackground } from "./timers.js";
import { renewalRetry, renewalTimeout, renewEvery } from "./times.js";
import type { Transport } from "./transport.js";

const LOOK_EVERY_MAX = 1000;
/** What a server takes in one request. */
const BATCH_MAX = 1000;
/** How many times as long as the shortest ttl of a request the longest one may be. */
const TTLS_APART = 4;
/** A lease is renewed with the others if this part of the time between two renewals is left. */
const EARLY = 0.25;

/** Renews the leases of one client. */
export class Renewals {
  readonly #transport: Transport;
  readonly #held = new Set<LeaseState>();
  #stopTimer: (() => void) | undefined;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** The leases that it keeps. */
  get held(): readonly LeaseState[] {
    return [...this.#held];
  }

  /** Keeps this lease until it is lost or dropped. */
  add(held: LeaseState): void {
    this.#held.add(held);
    held.onLost = () => this.drop(held);
    this.#plan();
  }

  /** Does not renew this lease any more. */
  drop(held: LeaseState): void {
    this.#held.delete(held);
    if (this.#held.size === 0) this.#plan();
  }

  #plan(): void {
    this.#stopTimer?.();
    this.#stopTimer = undefined;
    if (this.#held.size === 0) return;
    let next = Infinity;
    for (const held of this.#held) {
      next = Math.min(next, held.times.stopAt);
      if (isRenewable(held)) next = Math.min(next, held.times.renewAt);
    }
    const delay = Math.max(0, Math.min(LOOK_EVERY_MAX, next - now().at));
    this.#stopTimer = inBackground(Math.ceil(delay), () => this.#look());
  }

  #look(): void {
    const moment = now();
    for (const held of this.#held) held.checkClocks(moment);
    const renewable = [...this.#held].filter(isRenewable);
    if (renewable.some((held) => held.times.renewAt <= moment.at)) {
      const due = renewable.filter((held) => held.times.renewAt - EARLY * renewEvery(held.ttl) <= moment.at);
      for (const batch of batchesOf(due)) void this.#renew(batch);
    }
    this.#plan();
  }

  async #renew(batch: readonly LeaseState[]): Promise<void> {
    for (const held of batch) held.isRenewing = true;
    const sent = now();
    const outcomes = await this.#send(batch);
    for (const [index, held] of batch.entries()) {
      held.isRenewing = false;
      const outcome = outcomes[index] as Kept | LeaseholdError;
      if (!(outcome instanceof Error)) held.renewed(sent, outcome);
      else if (outcome instanceof LeaseLostError) held.lose(outcome.why);
      else held.times = { ...held.times, renewAt: now().at + renewalRetry(held.ttl) };
    }
    this.#plan();
  }

  async #send(batch: readonly LeaseState[]): Promise<(Kept | LeaseholdError)[]> {
    const timeout = renewalTimeout(Math.min(...batch.map((held) => held.ttl)));
    // The server answers a little earlier than we stop waiting, for what its store has answered by then.
    const leases = batch.map(({ claim }) => ({ ...claim.fields(), ttl_ms: claim.ttl }));
    const body = { leases, timeout_ms: Math.max(1, Math.floor(timeout * 0.9)) };
    try {
      return await this.#transport.call({
        method: "POST",
        path: "/v1/renew",
        body,
        timeout,
        pool: "leases",
        background: true,
        read: (answer) => readRenewals(answer, batch),
      });
    } catch (error) {
      // Whatever it is, a failure of the request is no news of a lease.
      const failure = new UnavailableError("the renewal failed", "unknown", { cause: error });
      return batch.map(() => failure);
    }
  }
}

function isRenewable(held: LeaseState): boolean {
  return !held.isRenewing && !held.isEvicting;
}

/** Splits what is due into requests. */
function batchesOf(due: readonly LeaseState[]): LeaseState[][] {
  const batches: LeaseState[][] = [];
  for (const held of [...due].sort((one, other) => one.ttl - other.ttl)) {
    const batch = batches.at(-1);
    const [shortest] = batch ?? [];
    const fits = shortest !== undefined && held.ttl <= TTLS_APART * shortest.ttl;
    if (batch !== undefined && fits && batch.length < BATCH_MAX) batch.push(held);
    else batches.push([held]);
  }
  return batches;
}

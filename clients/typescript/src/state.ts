/** What is known about a lease that this program holds: its times, and whether it has ended. */

import type { Moment } from "./clock.js";
import { now } from "./clock.js";
import { LeaseLostError, type LostReason } from "./errors.js";
import type { FinishRequest } from "./model.js";
import type { Claim, Granted, Kept } from "./protocol.js";
import { allowManyListeners } from "./signals.js";
import { laterOf, stoppedBy, type Times, timesOf } from "./times.js";

const REASONS: Record<LostReason, string> = {
  expired: "it could not be renewed in time",
  wall_clock: "by the calendar clock its time is over: the machine has slept, or the clock was set ahead",
  not_there: "the server says that it expired, was released, or never existed",
  evicted: "an operator evicted it",
  buried: "its claim was cancelled",
  released: "it was released",
};

/** A lease that this program holds, or has held. */
export class LeaseState {
  readonly claim: Claim;
  readonly grant: bigint;
  readonly pass: string | undefined;
  readonly onFinishRequest: ((request: FinishRequest) => void) | undefined;
  readonly #abort = new AbortController();
  /** The ttl that was given. */
  ttl: number;
  times: Times;
  /** A renewal is under way. */
  isRenewing = false;
  /** An operator evicted it at its expiry, so it is not renewed any more. */
  isEvicting = false;
  isReleased = false;
  finishRequest: FinishRequest | undefined;
  /** Called once, when it is lost. */
  onLost: () => void = () => {};

  constructor(claim: Claim, granted: Granted, sent: Moment, onFinishRequest?: (request: FinishRequest) => void) {
    this.claim = claim;
    this.grant = granted.grant;
    this.pass = granted.pass;
    this.ttl = granted.ttl;
    this.times = timesOf(sent, granted);
    this.onFinishRequest = onFinishRequest;
    allowManyListeners(this.signal);
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  get isOver(): boolean {
    return this.isReleased || this.signal.aborted;
  }

  /** Why it was lost, if it was. */
  get lost(): LeaseLostError | undefined {
    return this.signal.aborted ? (this.signal.reason as LeaseLostError) : undefined;
  }

  /** Loses it if one of the clocks says so. */
  checkClocks(moment: Moment): void {
    if (this.isOver) return;
    const why = stoppedBy(this.times, moment);
    if (why !== undefined) this.lose(this.isEvicting ? "evicted" : why);
  }

  /** Throws if it has ended. Asks the clocks, not the server. */
  check(): void {
    this.checkClocks(now());
    if (this.lost !== undefined) throw this.lost;
    if (this.isReleased) throw this.#error("released");
  }

  /** It has ended, for good. */
  lose(why: LostReason): void {
    if (this.isOver) return;
    this.onLost();
    this.#abort.abort(this.#error(why));
  }

  /** The server has renewed it. */
  renewed(sent: Moment, kept: Kept): void {
    if (this.isOver) return;
    this.ttl = kept.ttl;
    this.isEvicting ||= kept.evicting;
    this.times = laterOf(this.times, timesOf(sent, { ...kept, waited: 0 }));
    if (kept.asked === undefined || this.finishRequest !== undefined) return;
    this.finishRequest = kept.asked;
    const request = kept.asked;
    // A callback that throws is a bug of the program: it must show, and not stop the renewals.
    queueMicrotask(() => this.onFinishRequest?.(request));
  }

  #error(why: LostReason): LeaseLostError {
    return new LeaseLostError(`the lease of ${this.claim.name.text} is lost: ${REASONS[why]}`, why);
  }
}

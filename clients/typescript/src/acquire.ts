/**
 * Acquires a lease, and waits for it.
 *
 * 1. One owner token for the claim, in all its requests: one that is sent again finds its own grant.
 * 2. The server waits on our behalf, for some seconds at a time. Between two requests the claim keeps its place in the queue; in the last
 *    one it leaves the queue, unless it is granted.
 * 3. Without an answer, ask again until the time to wait is over: without a limit, an outage may last as long as it does.
 * 4. A claim that is given up, and may have left something behind, is ended: with a tombstone if a request was not answered.
 */

import { now } from "./clock.js";
import { BusyError, CancelledError, LeaseLostError, TimedOutError, UnavailableError } from "./errors.js";
import type { FinishRequest } from "./model.js";
import type { Named } from "./names.js";
import { Claim, type Granted, readAcquired } from "./protocol.js";
import { LeaseState } from "./state.js";
import { jitter, sleep } from "./timers.js";
import { stoppedBy } from "./times.js";
import type { Transport } from "./transport.js";

/** How long the server waits in one request. Less than the minute after which proxies cut a connection that is silent. */
const POLL_MAX = 20_000;
/** Less time than this is not worth another request that waits. */
const WAIT_MIN = 50;
const PAUSE_MIN = 50;
const PAUSE_MAX = 2000;
/** After an answer that came early. A place in the queue lasts at least a second after it. */
const QUEUED_PAUSE_MAX = 500;
/** How long to wait at most because the server says so: another server behind the address may answer sooner. */
const RETRY_AFTER_MAX = 10_000;
/** How often a try is made again because the server knows a tombstone of its owner token. */
const BURIED_MAX = 3;

/** What a caller wants. */
export interface Acquisition {
  readonly name: Named;
  readonly ttl: number;
  /** How long to wait, in milliseconds: 0 for a try, Infinity for ever. */
  readonly wait: number;
  readonly signal: AbortSignal | undefined;
  /** Further fields of the request. */
  readonly fields: Record<string, unknown>;
  readonly onFinishRequest: ((request: FinishRequest) => void) | undefined;
}

/** What it needs. */
export interface AcquireTools {
  readonly transport: Transport;
  /** How long an answer may take. */
  readonly timeout: number;
  /** Ends a claim in the background. */
  readonly retire: (claim: Claim) => void;
}

/** One acquisition. */
export class Acquirer {
  readonly #tools: AcquireTools;
  readonly #wanted: Acquisition;
  readonly #endsAt: number;
  #claim: Claim;
  /** Failures in a row: no answer, or a grant that came too late. */
  #failures = 0;
  /** Answers in a row that came before their wait was over: the server shuts down. */
  #early = 0;
  #buried = 0;

  constructor(tools: AcquireTools, wanted: Acquisition) {
    this.#tools = tools;
    this.#wanted = wanted;
    this.#endsAt = now().at + wanted.wait;
    this.#claim = new Claim(wanted.name, wanted.ttl);
  }

  /** Runs it. */
  async run(): Promise<LeaseState> {
    try {
      for (;;) {
        const held = await this.#ask();
        if (held === undefined) continue;
        if (!this.#wanted.signal?.aborted) return held;
        throw new CancelledError(this.#wanted.signal);
      }
    } catch (error) {
      this.#retire();
      throw error;
    }
  }

  get #left(): number {
    const left = this.#endsAt - now().at;
    return left < WAIT_MIN ? 0 : left;
  }

  /** Ends the claim if it may have left something behind. */
  #retire(): void {
    if (this.#claim.unanswered || this.#claim.hasPlace) this.#tools.retire(this.#claim);
  }

  /** Asks once. Returns nothing if it is worth asking again. */
  async #ask(): Promise<LeaseState | undefined> {
    const sent = now();
    let answer: Granted | "queued";
    try {
      this.#tools.transport.checkOneStore("none");
      answer = await this.#send();
      this.#claim.hasPlace = true;
      this.#tools.transport.checkOneStore("unknown");
    } catch (error) {
      await this.#pauseAfter(error);
      return undefined;
    }
    if (answer === "queued") {
      this.#failures = 0;
      await this.#pauseInQueue(now().at - sent.at);
      return undefined;
    }
    const held = new LeaseState(this.#claim, answer, sent, this.#wanted.onFinishRequest);
    if (stoppedBy(held.times, now()) === undefined) return held;
    return this.#tooLate();
  }

  #send(): Promise<Granted | "queued"> {
    const [claim, left] = [this.#claim, this.#left];
    const wait = Math.min(left, POLL_MAX);
    const body = {
      ...claim.fields(),
      ttl_ms: claim.ttl,
      ...this.#wanted.fields,
      ...(wait > 0 ? { wait_ms: Math.ceil(wait) } : {}),
      ...(left > POLL_MAX ? { when_blocked: "queue" } : {}),
    };
    return this.#tools.transport.call({
      method: "POST",
      path: "/v1/acquire",
      body,
      timeout: wait + this.#tools.timeout,
      pool: "claims",
      signal: this.#wanted.signal,
      onUnanswered: () => {
        claim.unanswered = true;
      },
      read: (answer) => readAcquired(answer, claim),
    });
  }

  /** The grant came when its time to work was already over: this process was stopped, or the answer took longer than the ttl. ADR 0095. */
  async #tooLate(): Promise<undefined> {
    this.#retire();
    this.#claim = new Claim(this.#wanted.name, this.#wanted.ttl);
    const { name, ttl } = this.#wanted;
    const why = `the lease of ${name.text} was granted too late: its ttl of ${ttl} ms had run out before the answer came. Use a longer ttl`;
    // The grant was given back, so nothing is left of this claim. ADR 0095
    await this.#pauseAfter(new UnavailableError(why, "none"));
  }

  /** The claim has a place in the queue, and asks again at once if its wait was over. */
  async #pauseInQueue(waited: number): Promise<void> {
    this.#early = waited < PAUSE_MAX ? this.#early + 1 : 0;
    if (this.#early > 0) await sleep(jitter(backoff(this.#early, QUEUED_PAUSE_MAX)), this.#wanted.signal);
  }

  /** Waits until it is worth asking again; throws what the caller must know. */
  async #pauseAfter(error: unknown): Promise<void> {
    this.#failures += 1;
    const left = this.#left;
    let pause = backoff(this.#failures, PAUSE_MAX);
    if (error instanceof BusyError) {
      this.#claim.hasPlace = false;
      if (left === 0) throw this.#wanted.wait > 0 ? new TimedOutError(error.message, error) : error;
    } else if (error instanceof LeaseLostError) {
      // This owner token has a tombstone, so a claim needs another one.
      this.#buried += 1;
      if (left === 0 && this.#buried > BURIED_MAX) throw new UnavailableError(error.message, "none", { cause: error });
      this.#retire();
      this.#claim = new Claim(this.#wanted.name, this.#wanted.ttl);
    } else if (error instanceof UnavailableError) {
      if (left === 0) throw this.#claim.unanswered ? withUnknownEffect(error) : error;
      pause = Math.max(pause, Math.min(error.retryAfter ?? 0, RETRY_AFTER_MAX));
    } else {
      throw error;
    }
    await sleep(Math.min(jitter(pause), Math.max(left, PAUSE_MIN)), this.#wanted.signal);
  }
}

/** The pause after so many failures in a row: it doubles. */
function backoff(failures: number, max: number): number {
  return Math.min(max, PAUSE_MIN * 2 ** Math.min(failures, 6));
}

/** An earlier request of the claim may have been carried out. */
function withUnknownEffect(error: UnavailableError): UnavailableError {
  if (error.effect === "unknown") return error;
  return new UnavailableError(error.message, "unknown", { cause: error, retryAfter: error.retryAfter });
}

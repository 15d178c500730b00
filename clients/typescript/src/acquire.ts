/**
 * Acquires a lease, and waits for it.
 *
 * 1. One owner token for the claim, in all its requests: one that is sent again finds its own grant.
 * 2. The server waits on our behalf, for some seconds at a time. Between two requests the claim keeps its place in the queue; in the last
 *    one it leaves the queue, unless it is granted.
 * 3. Without an answer, ask again until the time to wait is over, or no server has answered for a minute.
 * 4. A claim that is given up, and may have left something behind, is ended: with a tombstone if a request was not answered.
 */

import { now } from "./clock.js";
import { BusyError, CancelledError, LeaseLostError, TimedOutError, UnavailableError } from "./errors.js";
import { Held } from "./held.js";
import type { FinishRequest } from "./model.js";
import type { Named } from "./names.js";
import { Claim, type Granted, readAcquired } from "./protocol.js";
import { jitter, sleep } from "./timers.js";
import { stoppedBy } from "./times.js";
import type { Transport } from "./transport.js";

/** How long the server waits in one request. Less than the minute after which proxies cut a connection that is silent. */
const POLL_MAX = 20_000;
/** So little time to wait is none. */
const OVER = 50;
/** If no server has answered for so long, the claim fails, however long it wants to wait. */
const SILENCE_MAX = 60_000;
const PAUSE_MIN = 50;
const PAUSE_MAX = 2000;
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
  #attempt = 0;
  /** When a server has answered last. */
  #answeredAt = now().at;
  #buried = 0;

  constructor(tools: AcquireTools, wanted: Acquisition) {
    this.#tools = tools;
    this.#wanted = wanted;
    this.#endsAt = now().at + wanted.wait;
    this.#claim = new Claim(wanted.name, wanted.ttl);
  }

  /** Runs it. */
  async run(): Promise<Held> {
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
    return left < OVER ? 0 : left;
  }

  /** Ends the claim if it may have left something behind. */
  #retire(): void {
    if (this.#claim.unanswered || this.#claim.hasPlace) this.#tools.retire(this.#claim);
  }

  /** Asks once. Returns nothing if it is worth asking again. */
  async #ask(): Promise<Held | undefined> {
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
    this.#attempt = 0;
    this.#answeredAt = now().at;
    if (answer === "queued") {
      const pause = PAUSE_MIN - (now().at - sent.at);
      if (pause > 0) await sleep(pause, this.#wanted.signal);
      return undefined;
    }
    const held = new Held(this.#claim, answer, sent, this.#wanted.onFinishRequest);
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

  /** The grant came when its time to work was already over: this process was stopped, or the ttl is shorter than the way to the server. */
  async #tooLate(): Promise<undefined> {
    this.#retire();
    this.#claim = new Claim(this.#wanted.name, this.#wanted.ttl);
    const why = `the lease of ${this.#wanted.name.text} was granted, and its time was over before the answer was read`;
    await this.#pauseAfter(new UnavailableError(why));
  }

  /** Waits until it is worth asking again; throws what the caller must know. */
  async #pauseAfter(error: unknown): Promise<void> {
    this.#attempt += 1;
    const left = this.#left;
    let pause = PAUSE_MIN * 2 ** Math.min(this.#attempt, 6);
    if (error instanceof BusyError) {
      this.#claim.hasPlace = false;
      this.#answeredAt = now().at;
      if (left === 0) throw this.#wanted.wait > 0 ? new TimedOutError(error.message, error) : error;
    } else if (error instanceof LeaseLostError) {
      // This owner token has a tombstone, so a claim needs another one.
      this.#buried += 1;
      if (left === 0 && this.#buried > BURIED_MAX) throw new UnavailableError(error.message, "none", { cause: error });
      this.#retire();
      this.#claim = new Claim(this.#wanted.name, this.#wanted.ttl);
    } else if (error instanceof UnavailableError) {
      const silent = now().at - this.#answeredAt > SILENCE_MAX;
      if (left === 0 || silent) throw this.#claim.unanswered ? withUnknownEffect(error) : error;
      pause = Math.max(pause, error.retryAfter ?? 0);
    } else {
      throw error;
    }
    await sleep(jitter(Math.min(pause, PAUSE_MAX, Math.max(left, PAUSE_MIN))), this.#wanted.signal);
  }
}

/** An earlier request of the claim may have been carried out. */
function withUnknownEffect(error: UnavailableError): UnavailableError {
  if (error.effect === "unknown") return error;
  return new UnavailableError(error.message, "unknown", { cause: error, retryAfter: error.retryAfter });
}

/** Elections: the holder of a resource leads, and its note says how to reach it. */

import { Buffer } from "node:buffer";

import { CancelledError, LeaseLostError, UnavailableError } from "./errors.js";
import type { Lease } from "./lease.js";
import { type Leader, leaderOf, type Resource } from "./model.js";
import type { ResourceName } from "./names.js";
import type { AcquireOptions } from "./options.js";
import { resourcePath } from "./queries.js";
import { checkWork, runUnder } from "./scope.js";
import { jitter, sleep } from "./timers.js";

/** How long the server waits for a change in one request. */
const POLL_MAX = 20_000;
const PAUSE_MIN = 50;
const PAUSE_MAX = 2000;

/** Options of `lead`. */
export interface LeadOptions extends Omit<AcquireOptions, "note" | "wait"> {
  /** What observers see of the leader: usually its address. `lease.setNote` replaces it. */
  readonly value?: string | Uint8Array;
}

/** Options of a candidate. */
export interface CandidateOptions extends LeadOptions {
  /** How long to wait for the lead. Default: without a limit. */
  readonly wait?: number;
}

type Look = (path: string, timeout: number, signal?: AbortSignal) => Promise<Resource>;

/** An election. */
export class Election {
  readonly #resource: ResourceName;
  readonly #acquire: (options: AcquireOptions) => Promise<Lease>;
  readonly #look: Look;
  readonly #timeout: number;

  /** @internal */
  constructor(resource: ResourceName, acquire: (options: AcquireOptions) => Promise<Lease>, look: Look, timeout: number) {
    this.#resource = resource;
    this.#acquire = acquire;
    this.#look = look;
    this.#timeout = timeout;
  }

  /** Waits until this candidate leads. It leads until its lease is released or lost. */
  campaign(options: CandidateOptions = {}): Promise<Lease> {
    const { value, wait = Infinity, ...given } = options;
    return this.#acquire({ ...given, wait, ...(value === undefined ? {} : { note: value }) });
  }

  /**
   * Waits until it leads, runs the work, and returns what the work returns. If the lead is lost, it stands again, and the work begins anew.
   * Outages of the server do not end this; the signal of the caller does.
   *
   * The work must end when its signal is aborted: the next work begins after that. An error of the work itself comes out as it is.
   */
  async lead<T>(options: LeadOptions | undefined, work: (lease: Lease, signal: AbortSignal) => T | PromiseLike<T>): Promise<T> {
    checkWork(work);
    for (;;) {
      const lease = await this.#standUntilElected(options);
      try {
        return await runUnder(lease, options?.signal, work);
      } catch (error) {
        // A lease that the work itself has released is not lost.
        if (!(error instanceof LeaseLostError) || lease.lost === undefined) throw error;
      }
      // A server that refuses every renewal is not asked in a tight loop.
      await sleep(jitter(PAUSE_MIN), options?.signal);
    }
  }

  async #standUntilElected(options: LeadOptions | undefined): Promise<Lease> {
    for (let failures = 1; ; failures += 1) {
      try {
        return await this.campaign({ ...options, wait: Infinity });
      } catch (error) {
        if (!(error instanceof UnavailableError)) throw error;
      }
      await sleep(backoff(failures), options?.signal);
    }
  }

  /** Who leads now. */
  async leader(): Promise<Leader | undefined> {
    return leaderOf(await this.#look(resourcePath(this.#resource), this.#timeout));
  }

  /**
   * The leader now, and after each change; undefined while nobody leads. Two changes in a moment may be seen as one.
   *
   * It ends only when the loop is left, or with `CancelledError` when the signal is aborted. While no server answers, or the server cannot
   * read the resource, it asks again, and gives nothing: the leader is unknown then.
   */
  async *observe(options: { readonly signal?: AbortSignal } = {}): AsyncGenerator<Leader | undefined, never, undefined> {
    const { signal } = options;
    let cursor: string | undefined;
    let seen: string | undefined;
    for (let failures = 0; ; ) {
      if (signal?.aborted) throw new CancelledError(signal);
      const startedAt = performance.now();
      const query = cursor === undefined ? {} : { cursor, wait_ms: POLL_MAX };
      let leader: Leader | undefined;
      try {
        const resource = await this.#look(resourcePath(this.#resource, query), POLL_MAX + this.#timeout, signal);
        leader = leaderOf(resource);
        cursor = resource.cursor;
        failures = 0;
      } catch (error) {
        if (!(error instanceof UnavailableError)) throw error;
        failures += 1;
        // Another server may not know the cursor.
        cursor = undefined;
        await sleep(backoff(failures), signal);
        continue;
      }
      const now = leader === undefined ? "nobody" : `${leader.token} ${describe(leader.value)}`;
      if (now !== seen) {
        seen = now;
        yield leader;
      }
      const pause = PAUSE_MIN - (performance.now() - startedAt);
      if (pause > 0) await sleep(pause, signal);
    }
  }
}

/** The pause after so many failures in a row: it doubles, with some chance. */
function backoff(failures: number): number {
  return jitter(Math.min(PAUSE_MAX, PAUSE_MIN * 2 ** Math.min(failures, 6)));
}

function describe(value: string | Uint8Array | undefined): string {
  if (value === undefined) return "nothing";
  return typeof value === "string" ? `text ${value}` : `bytes ${Buffer.from(value).toString("hex")}`;
}

/** Elections: the holder of a resource leads, and its note says how to reach it. */

import { Buffer } from "node:buffer";

import { CancelledError, UnavailableError } from "./errors.js";
import type { Lease } from "./lease.js";
import { type Leader, leaderOf, type Resource } from "./model.js";
import type { ResourceName } from "./names.js";
import type { AcquireOptions } from "./options.js";
import { resourcePath } from "./queries.js";
import { runUnder } from "./scope.js";
import { jitter, sleep } from "./timers.js";

/** How long the server waits for a change in one request. */
const POLL_MAX = 20_000;
const PAUSE_MIN = 50;
const PAUSE_MAX = 2000;

/** Options of a candidate. */
export interface CandidateOptions extends Omit<AcquireOptions, "note"> {
  /** What observers see of the leader: usually its address. `lease.setNote` replaces it. */
  readonly value?: string | Uint8Array;
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
    const { value, ...given } = options;
    return this.#acquire({ ...given, ...(value === undefined ? {} : { note: value }) });
  }

  /** Campaigns, and runs work while it leads, as `Client.run` does. */
  async lead<T>(options: CandidateOptions, work: (lease: Lease, signal: AbortSignal) => T | PromiseLike<T>): Promise<T> {
    return runUnder(await this.campaign(options), options.signal, work);
  }

  /** Who leads now. */
  async leader(): Promise<Leader | undefined> {
    return leaderOf(await this.#look(resourcePath(this.#resource), this.#timeout));
  }

  /**
   * The leader now, and after each change; undefined while nobody leads. What changes twice in a moment may be seen once.
   *
   * It ends only when the loop is left, or with `CancelledError` when the signal is aborted. While no server answers, it waits for one.
   */
  async *observe(options: { readonly signal?: AbortSignal } = {}): AsyncGenerator<Leader | undefined, never, undefined> {
    const { signal } = options;
    let cursor: string | undefined;
    let seen: string | undefined;
    for (let failures = 0; ; ) {
      if (signal?.aborted) throw new CancelledError(signal);
      const startedAt = performance.now();
      const query = cursor === undefined ? {} : { cursor, wait_ms: POLL_MAX };
      let resource: Resource;
      try {
        resource = await this.#look(resourcePath(this.#resource, query), POLL_MAX + this.#timeout, signal);
        failures = 0;
      } catch (error) {
        if (!(error instanceof UnavailableError)) throw error;
        failures += 1;
        await sleep(jitter(Math.min(PAUSE_MAX, PAUSE_MIN * 2 ** Math.min(failures, 6))), signal);
        continue;
      }
      cursor = resource.cursor;
      const leader = leaderOf(resource);
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

function describe(value: string | Uint8Array | undefined): string {
  if (value === undefined) return "nothing";
  return typeof value === "string" ? `text ${value}` : `bytes ${Buffer.from(value).toString("hex")}`;
}

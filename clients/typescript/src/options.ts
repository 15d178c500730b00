/** Options of the client, and of acquiring. All times are in milliseconds. */

import { hostname } from "node:os";
import process from "node:process";

import type { Acquisition } from "./acquire.js";
import { InvalidError } from "./errors.js";
import { noteField } from "./json.js";
import type { FinishRequest } from "./model.js";
import { parseName, randomHex, type ResourceName } from "./names.js";
import type { TlsOptions } from "./transport.js";

/** How far a store can be trusted, from the least to the most. */
export type Level = "best-effort" | "quorum" | "database" | "consensus";

/** Options of a client. */
export interface ClientOptions {
  /** The API token, `lh_…`, if the server needs one; or a function that returns it, called for each request. */
  readonly token?: string | (() => string);
  /** How long an answer may take. Default: 10,000. */
  readonly timeout?: number;
  /** How long a release may take. Default: 5,000. */
  readonly releaseTimeout?: number;
  /** The ttl of leases for which none is given. Default: 30,000. */
  readonly ttl?: number;
  /** What the program does, for people who see it as a holder. */
  readonly label?: string;
  /** Refuse a store that promises less. */
  readonly level?: Level;
  readonly tls?: TlsOptions;
}

/** Options of a try. */
export interface TryOptions {
  /** How long the lease lasts if it is not renewed. It is renewed after each third of that. */
  readonly ttl?: number;
  /** Cancels the acquisition, not the lease. */
  readonly signal?: AbortSignal | undefined;
  /** A note that others can read. */
  readonly note?: string | Uint8Array;
  /** What this lease is for, for people. Default: the label of the client. */
  readonly label?: string;
  /** Called once, if an operator asks the holder to finish. */
  readonly onFinishRequest?: (request: FinishRequest) => void;
}

/** Options of acquiring. */
export interface AcquireOptions extends TryOptions {
  /**
   * How long to wait while others hold it, or no server answers. Default: 10,000. `Infinity` waits without a limit, through an outage, too; 0
   * is a try.
   */
  readonly wait?: number;
}

/** How much of a resource. */
export type Share = "read" | "write" | { readonly weight: number; readonly capacity: number };

/** For the list of deadlocks: which claims belong to one process. */
const PROCESS = randomHex(8);
const TIMER_MAX = 2 ** 31 - 1;
/** The default of `wait`. */
export const WAIT_DEFAULT = 10_000;

/** The options of a client, complete. */
export interface Settings {
  readonly timeout: number;
  readonly releaseTimeout: number;
  readonly ttl: number;
  readonly label: string | undefined;
  readonly level: Level | undefined;
}

export function settingsOf(options: ClientOptions): Settings {
  return {
    timeout: milliseconds("timeout", options.timeout ?? 10_000, TIMER_MAX / 2),
    releaseTimeout: milliseconds("releaseTimeout", options.releaseTimeout ?? 5000, TIMER_MAX),
    ttl: milliseconds("ttl", options.ttl ?? 30_000),
    label: options.label,
    level: options.level,
  };
}

/** What the options of a call ask for. */
export function acquisitionOf(name: ResourceName, options: AcquireOptions, settings: Settings, share?: Share): Acquisition {
  const wait = options.wait ?? WAIT_DEFAULT;
  if (typeof wait !== "number" || !(wait >= 0)) throw new InvalidError(`wait must be a number of milliseconds, 0 or more, got ${String(wait)}`);
  const label = options.label ?? settings.label;
  return {
    name: parseName(name),
    ttl: Math.round(milliseconds("ttl", options.ttl ?? settings.ttl)),
    wait,
    signal: options.signal,
    onFinishRequest: options.onFinishRequest,
    fields: {
      ...(share === undefined ? {} : { share }),
      ...(options.note === undefined ? {} : noteField(options.note)),
      ...(label === undefined ? {} : { label }),
      ...(settings.level === undefined ? {} : { level: settings.level }),
      host: hostName(),
      pid: process.pid,
      process: PROCESS,
    },
  };
}

function milliseconds(what: string, value: number, max = Number.MAX_SAFE_INTEGER): number {
  if (typeof value === "number" && value >= 1 && value <= max) return value;
  throw new InvalidError(`${what} must be a number of milliseconds between 1 and ${Math.floor(max)}, got ${String(value)}`);
}

let host: string | undefined;

function hostName(): string {
  if (host === undefined) {
    try {
      host = hostname();
    } catch {
      // Deno asks for a permission.
      host = "unknown";
    }
  }
  return host;
}

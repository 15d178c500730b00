/// <reference lib="esnext.disposable" preserve="true" />
/**
 * The client of a leasehold server: leases, locks, semaphores and elections with fencing tokens.
 *
 * @example
 * const client = new Client("http://127.0.0.1:7420");
 * await client.run("report/42", { wait: 10_000 }, async (lease, signal) => {
 *   await makeReport(signal);
 *   lease.check();
 *   await publish(lease.pass);
 * });
 *
 * @module
 */

import "./dispose.js";

export { Client } from "./client.js";
export { type CandidateOptions, Election, type LeadOptions } from "./election.js";
export {
  BusyError,
  CancelledError,
  CorruptError,
  DeniedError,
  type Effect,
  type ErrorKind,
  HolderChangedError,
  InvalidError,
  LeaseholdError,
  LeaseLostError,
  type LostReason,
  MismatchError,
  TimedOutError,
  UnavailableError,
} from "./errors.js";
export type { AnyLease, Lease, LeaseSet, SharedLease } from "./lease.js";
export type { FinishRequest, ForeignLock, Holder, Info, Leader, Overview, OverviewItem, Process, Resource, Waiter } from "./model.js";
export { keyOf, type ResourceName } from "./names.js";
export type { AcquireOptions, ClientOptions, Level, TryOptions } from "./options.js";
export type { Order, OverviewQuery, Target } from "./queries.js";
export { type PermitOptions, type ReadWriteLock, type Semaphore } from "./shared.js";
export type { TlsOptions } from "./transport.js";

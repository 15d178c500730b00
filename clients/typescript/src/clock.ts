/**
 * The two clocks of a lease.
 *
 * JavaScript has no clock that counts the time that the machine sleeps, so a lease is measured on two: `performance.now()`, which
 * cannot be set, and `Date.now()`, which goes on during sleep. The lease is over as soon as one of the two clocks says so.
 */

/** A moment on both clocks, in milliseconds. */
export interface Moment {
  /** The monotonic clock. */
  readonly at: number;
  /** The calendar clock. */
  readonly wall: number;
}

/** Reads both clocks. */
export function now(): Moment {
  return { at: performance.now(), wall: Date.now() };
}

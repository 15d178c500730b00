/**
 * When a lease is renewed, when its work must stop, and when another one may be granted. Pure functions, in milliseconds.
 *
 * With a ttl of 30 s and a request sent at 0 s:
 *
 *     sent          renew                         stop          deadline   end at the server
 *      0 s           10 s                        24.7 s          29.7 s        30 s
 *      |----- ttl/3 ----|                            |---- ttl/6 ----|-- margin --|
 */

import type { Moment } from "./clock.js";

/** A long lease is renewed this often, too, so that its holder learns of an eviction soon. */
const RENEW_EVERY_MAX = 60_000;
/** The fixed part of the safety margin, for a short ttl. */
const MARGIN_MIN = 2;
/** How much slower our clock may run than the server's while it waits for us. */
const WAITED_TRUST = 0.99;

/**
 * The calendar clock speaks only if it is ahead by more than this part of the ttl: it is read in whole milliseconds, and is made faster or
 * slower by those who set it right. A tenth of the time between the stop and the deadline.
 */
const WALL_SLACK = 1 / 60;

/** The times of one lease, on the two clocks. */
export interface Times {
  readonly renewAt: number;
  readonly stopAt: number;
  /** The same on the calendar clock, a little later. */
  readonly wallStopAt: number;
}

/** What an answer says of the time of a lease. */
export interface Given {
  /** The ttl that was given. */
  readonly ttl: number;
  /** How much of the ttl was left when the store carried out the request. */
  readonly remaining: number;
  /** From the server's reading the request to its sending the store call that granted. */
  readonly waited: number;
}

/**
 * The times of a lease. `sent` is from before the request was written: nothing counts from when the answer arrived, which may have been
 * in a buffer while this process was stopped.
 */
export function timesOf(sent: Moment, given: Given): Times {
  const { ttl, remaining } = given;
  const waited = given.waited * WAITED_TRUST;
  const margin = Math.max(ttl, remaining) / 100 + MARGIN_MIN;
  const deadline = sent.at + waited + Math.max(0, remaining - margin);
  const stopAt = deadline - ttl / 6;
  // Asking again may find a grant that is some time old. Its renewal is due that much sooner.
  const age = Math.max(0, ttl - remaining);
  const renewAt = Math.max(sent.at, sent.at + waited + renewEvery(ttl) - age);
  return { renewAt, stopAt, wallStopAt: sent.wall + (stopAt - sent.at) + ttl * WALL_SLACK };
}

/**
 * The times after a renewal. `stopAt` never moves back.
 *
 * `wallStopAt` is from the answer with the later `stopAt`, and can move back: if the calendar clock was set back by an hour since the lease was
 * acquired, the first `wallStopAt` is an hour too late, and the client would not notice that the machine slept.
 */
export function laterOf(before: Times, after: Times): Times {
  const { stopAt, wallStopAt } = after.stopAt > before.stopAt ? after : before;
  return { renewAt: after.renewAt, stopAt, wallStopAt };
}

/** The reason to stop the work, if one of the clocks gives one. */
export function stoppedBy(times: Times, moment: Moment): "expired" | "wall_clock" | undefined {
  if (moment.at >= times.stopAt) return "expired";
  return moment.wall >= times.wallStopAt ? "wall_clock" : undefined;
}

/** How often a lease is renewed. */
export function renewEvery(ttl: number): number {
  return Math.min(ttl / 3, RENEW_EVERY_MAX);
}

/** How long a renewal may take: less than a third of the ttl, so that it can be repeated in time. */
export function renewalTimeout(ttl: number): number {
  return Math.max(50, Math.min(10_000, ttl * 0.3));
}

/** How long after a failed renewal the next one is sent. */
export function renewalRetry(ttl: number): number {
  return Math.max(50, Math.min(2000, ttl / 15));
}

/** How long a tombstone must last: longer than any request of the claim can be delayed. */
export function tombstone(ttl: number): number {
  return Math.min(Math.max(2 * ttl, 180_000), 172_800_000);
}

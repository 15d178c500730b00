import assert from "node:assert/strict";
import { test } from "node:test";

// The arithmetic is not exported from the package.
const { laterOf, stoppedBy, timesOf, renewalTimeout } = (await import(new URL("../../dist/times.js", import.meta.url).href)) as typeof import("../src/times.js");

const SENT = { at: 1000, wall: 1_700_000_000_000 };

test("times count from before the request was sent, and from what remains", () => {
  const times = timesOf(SENT, { ttl: 30_000, remaining: 30_000, waited: 0 });
  assert.equal(times.renewAt, 1000 + 10_000);
  // 1 % and 2 ms of margin, and a sixth of the ttl to stop.
  assert.equal(times.stopAt, 1000 + 30_000 - 302 - 5000);
  assert.equal(times.wallStopAt - SENT.wall, times.stopAt - SENT.at + 500);
});

test("the time that the server has waited counts, less a hundredth", () => {
  const before = timesOf(SENT, { ttl: 3000, remaining: 3000, waited: 0 });
  const after = timesOf(SENT, { ttl: 3000, remaining: 3000, waited: 10_000 });
  assert.equal(after.stopAt - before.stopAt, 9900);
});

test("an old grant is renewed sooner, and a shortened one keeps the margin of what was left", () => {
  const old = timesOf(SENT, { ttl: 30_000, remaining: 18_000, waited: 0 });
  assert.equal(old.renewAt, SENT.at);
  const shortened = timesOf(SENT, { ttl: 1000, remaining: 29_000, waited: 0 });
  assert.equal(Math.round(shortened.stopAt), Math.round(1000 + 29_000 - 292 - 1000 / 6));
});

test("a long lease is renewed every minute", () => {
  assert.equal(timesOf(SENT, { ttl: 86_400_000, remaining: 86_400_000, waited: 0 }).renewAt, 61_000);
});

test("the clock that says first that it is over is believed", () => {
  const times = timesOf(SENT, { ttl: 30_000, remaining: 30_000, waited: 0 });
  assert.equal(stoppedBy(times, { at: 2000, wall: SENT.wall + 1000 }), undefined);
  assert.equal(stoppedBy(times, { at: times.stopAt, wall: SENT.wall }), "expired");
  assert.equal(stoppedBy(times, { at: 2000, wall: times.wallStopAt }), "wall_clock");
  // The calendar clock went back: it says nothing.
  assert.equal(stoppedBy(times, { at: 2000, wall: 0 }), undefined);
});

test("no time moves back", () => {
  const first = timesOf(SENT, { ttl: 30_000, remaining: 30_000, waited: 0 });
  const later = laterOf(first, timesOf({ at: 500, wall: 0 }, { ttl: 30_000, remaining: 30_000, waited: 0 }));
  assert.equal(later.stopAt, first.stopAt);
  assert.equal(later.wallStopAt, first.wallStopAt);
});

test("a calendar clock that was set back still notices a machine that sleeps", () => {
  const hour = 3_600_000;
  // The clock was an hour fast when the lease was acquired, and was set right before the renewal.
  const first = timesOf({ at: 1000, wall: SENT.wall + hour }, { ttl: 30_000, remaining: 30_000, waited: 0 });
  const later = laterOf(first, timesOf({ at: 11_000, wall: SENT.wall + 10_000 }, { ttl: 30_000, remaining: 30_000, waited: 0 }));
  assert.equal(stoppedBy(later, { at: 12_000, wall: SENT.wall + 11_000 }), undefined);
  // The machine sleeps for half an hour, in which the monotonic clock stands still.
  assert.equal(stoppedBy(later, { at: 12_000, wall: SENT.wall + 11_000 + hour / 2 }), "wall_clock");
});

test("a renewal may take less than a third of the ttl", () => {
  assert.equal(renewalTimeout(3000), 900);
  assert.equal(renewalTimeout(600_000), 10_000);
  assert.equal(renewalTimeout(1), 50);
});

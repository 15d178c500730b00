// Countdowns and ages. They run on the durations of the server and the monotonic clock of the browser, never on its calendar: that may be
// wrong by hours.

import { tick } from './dom.js';
import { left, span } from './text.js';

// A new sample moves an instant by its own inaccuracy. A move by less than this is no news, and would make a countdown jump.
const JITTER_MS = 1500;
// The clocks of a computer differ by less than this between two seconds, unless it was suspended or its calendar clock was set.
const SUSPENDED_MS = 3000;

/** Instants by name, so that a countdown does not jump when it is described again. @type {Map<string, {at: number, used: number}>} */
const instants = new Map();
/** While the page does not follow the server, time stands still. @type {number | null} */
let frozenAt = null;

/** @returns {number} the instant up to which the page counts */
export function now() {
  return frozenAt ?? performance.now();
}

/** Stops the clocks at an instant. `null`: they run. If they stand still already, they stay where they are. @param {number | null} at */
export function freeze(at) {
  frozenAt = at === null ? null : (frozenAt ?? at);
}

/** New data has arrived while the clocks stand still: they show this instant, because the durations of the data count from now. */
export function freezeAgain() {
  if (frozenAt !== null) frozenAt = performance.now();
}

/** The instant for this name: the one from before if it is nearly the same. @param {string} name @param {number} at */
function smoothInstant(name, at) {
  const known = instants.get(name);
  const same = known && Math.abs(known.at - at) < JITTER_MS;
  instants.set(name, { at: same ? known.at : at, used: performance.now() });
  return same ? known.at : at;
}

/** Text that counts down: `ms` were left at `base`. @param {string} name @param {number} ms @param {number} base */
export function countdown(name, ms, base) {
  const end = smoothInstant(`end ${name}`, base + ms);
  return () => left(end - now());
}

/** Text that counts up: it had lasted for `ms` at `base`. @param {string} name @param {number} ms @param {number} base */
export function age(name, ms, base) {
  const start = smoothInstant(`start ${name}`, base - ms);
  return () => span(now() - start);
}

/** What is left now of a duration. @param {number} ms @param {number} base */
export function leftNow(ms, base) {
  return Math.max(0, base + ms - now());
}

/**
 * Begins to count.
 * @param {() => void} eachSecond
 * @param {() => void} onSuspend the computer was suspended, and the monotonic clock stood still meanwhile: what is left of durations is not
 *   known any more
 */
export function startClock(eachSecond, onSuspend) {
  let ahead = Date.now() - performance.now();
  setInterval(() => {
    const before = ahead;
    ahead = Date.now() - performance.now();
    // A person who sets the clock of the computer looks the same. Then the page only asks once more.
    if (Math.abs(ahead - before) > SUSPENDED_MS) onSuspend();
    tick();
    eachSecond();
    forget();
  }, 1000);
}

function forget() {
  if (instants.size < 2000) return;
  const before = performance.now() - 60_000;
  for (const [name, { used }] of instants) if (used < before) instants.delete(name);
}

// Countdowns and ages. They run on the durations of the server and the monotonic clock of the browser, never on its calendar: that may be
// wrong by hours.

import { tick } from './dom.js';
import { left, span } from './text.js';

// A new sample moves an instant by its own inaccuracy. A move by less than this is no news, and would make a countdown jump.
const JITTER_MS = 1500;

/** Instants by name, so that a countdown does not jump when it is described again. @type {Map<string, {at: number, used: number}>} */
const instants = new Map();
/** While the page does not follow the server, time stands still. @type {number | null} */
let frozenAt = null;

/** @returns {number} the instant up to which the page counts */
export function now() {
  return frozenAt ?? performance.now();
}

/** @param {boolean} frozen */
export function freeze(frozen) {
  if (frozen === (frozenAt !== null)) return;
  frozenAt = frozen ? performance.now() : null;
}

/** The instant for this name: the one from before if it is nearly the same. @param {string} name @param {number} at */
function steady(name, at) {
  const known = instants.get(name);
  const same = known && Math.abs(known.at - at) < JITTER_MS;
  instants.set(name, { at: same ? known.at : at, used: performance.now() });
  return same ? known.at : at;
}

/** Text that counts down: `ms` were left at `base`. @param {string} name @param {number} ms @param {number} base */
export function countdown(name, ms, base) {
  const end = steady(`end ${name}`, base + ms);
  return () => left(end - now());
}

/** Text that counts up: it had lasted for `ms` at `base`. @param {string} name @param {number} ms @param {number} base */
export function age(name, ms, base) {
  const start = steady(`start ${name}`, base - ms);
  return () => span(now() - start);
}

/** What is left now of a duration. @param {number} ms @param {number} base */
export function leftNow(ms, base) {
  return Math.max(0, base + ms - now());
}

/** Begins to count. @param {() => void} eachSecond */
export function startClock(eachSecond) {
  setInterval(() => {
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

// What the page knows about the server, and who is told when that changes.

/** @typedef {import('./types/api').Overview} Overview */
/** @typedef {import('./types/api').Info} Info */
/** @typedef {import('./types/api').Change} Change */
/** @typedef {import('./api').Problem} Problem */

/**
 * `starting`: nothing is known yet. `live`: the stream is read. `asking`: there is no stream, so the page asks now and then.
 * `lost`: the server does not answer.
 * @typedef {'starting' | 'live' | 'asking' | 'lost'} Connection
 */

// A sample that comes late by a second is no news, however short the time between two samples is.
const EVERY_MIN_MS = 2000;

export const state = {
  /** @type {Connection} */
  connection: 'starting',
  /** The server wants a token. */
  login: false,
  /** A person has stopped the updates. */
  paused: false,
  /** @type {Info | null} */
  info: null,
  /** The overview with the stuck resources: every page shows something of it. @type {{body: Overview, base: number} | null} */
  overview: null,
  /** The instant of the newest sample. @type {number | null} */
  sampledAt: null,
  everyMs: 2000,
  /** How long the server took for the last answer. */
  tookMs: 0,
  /** The computer was suspended since the last answer. */
  suspended: false,
  /** When the stream was last heard of. */
  newsAt: -Infinity,
  /** Why the last request failed, if it did. @type {Problem | null} */
  problem: null,
  /** What the open page wanted besides was refused. @type {Problem | null} */
  pageProblem: null,
  /** Since when the server does not answer, for people. @type {Date | null} */
  lostSince: null,
  /** What this person must be told until the next log-in or page: a failed log-out. @type {Problem | null} */
  notice: null,
  /** What has happened since the page was opened, newest first. @type {Change[]} */
  recent: [],
};

/** @type {(() => void)[]} */
const forgetters = [];

/** Registers what forgets the data of a caller. @param {() => void} forget */
export function onForget(forget) {
  forgetters.push(forget);
}

/** There is another token, or none any more: nothing that the old one could read may stay. */
export function forgetCaller() {
  Object.assign(state, {
    info: null,
    overview: null,
    sampledAt: null,
    problem: null,
    pageProblem: null,
    connection: 'starting',
    recent: [],
  });
  for (const forget of forgetters) forget();
}

/** @type {(() => void) | null} */
let draw = null;
let isDrawing = false;

/** @param {() => void} drawAll */
export function onChange(drawAll) {
  draw = drawAll;
}

/** Draws the page again, once for any number of calls. */
export function changed() {
  if (isDrawing) return;
  isDrawing = true;
  // Not requestAnimationFrame: that never comes in a hidden tab.
  queueMicrotask(() => {
    isDrawing = false;
    draw?.();
  });
}

/** No news for so long that the state must be called old. A server that takes long to answer is asked less often. */
export function staleAfterMs() {
  return 3 * Math.max(state.everyMs, EVERY_MIN_MS) + 2000 + 4 * state.tookMs;
}

/** The age of what is shown. @returns {number | null} */
export function ageMs() {
  return state.sampledAt === null ? null : Math.max(0, performance.now() - state.sampledAt);
}

/** The server answers, but it cannot read its store: it shows its last sample. */
export function isFailing() {
  return Boolean(state.overview?.body.failing);
}

/** What is shown is older than it should be. A person who has paused the page knows that. */
export function isStale() {
  if (state.connection === 'lost' || isFailing() || state.suspended) return true;
  const age = ageMs();
  return !state.paused && age !== null && age > staleAfterMs();
}

/** Whether this person may give orders. While that is not known: no. */
export function mayOrder() {
  return readOnlyBecause() === null;
}

/** Why nothing can be changed from here. @returns {string | null} */
export function readOnlyBecause() {
  const { info } = state;
  if (!info) return 'it is not known yet what you may do';
  if (!info.capabilities.orders) return `this store (${info.store.backend}) takes no orders`;
  if (!info.caller.roles.includes('operator')) {
    return info.caller.subject
      ? 'your token does not have the role operator'
      : 'this server runs without tokens: everyone can view, nobody can give orders';
  }
  if (state.connection === 'lost') return 'the server does not answer';
  if (isFailing()) return 'the server cannot read the store';
  if (isStale()) return 'the page is stale';
  return null;
}

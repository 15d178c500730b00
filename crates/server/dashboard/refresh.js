// When the page asks the server again: after each sample that the stream reports, and by itself while there is no stream. Never more than
// once a second, never while the last answer is still under way, never in a hidden tab, never while a person has paused the updates.

import { asProblem, get } from './api.js';
import { changed, isStale, staleAfterMs, state } from './state.js';

/** @typedef {import('./types/api').Overview} Overview */
/** @typedef {import('./types/api').Info} Info */

const APART_MS = 1000;
const WITHOUT_STREAM_MS = 5000;
const LOST_MS = 3000;

/** What the open page wants to know. @type {(signal: AbortSignal) => Promise<void>} */
let load = async () => {};
let startedAt = -Infinity;
let tookMs = 0;
/** @type {AbortController | null} */
let inFlight = null;
let isWanted = false;
let timer = 0;

/** Another page is open. @param {(signal: AbortSignal) => Promise<void>} loadPage */
export function openPage(loadPage) {
  load = loadPage;
  refreshNow();
}

/** Asks at once: a person has asked for something. Also while paused. */
export function refreshNow() {
  inFlight?.abort();
  inFlight = null;
  void run();
}

/** Asks soon. */
export function refresh() {
  isWanted = true;
  if (!mayAsk() || inFlight || timer) return;
  // A server that takes long to answer is asked less often.
  const wait = Math.max(0, startedAt + Math.max(APART_MS, 3 * tookMs) - performance.now());
  timer = setTimeout(() => {
    timer = 0;
    if (mayAsk() && !inFlight) void run();
  }, wait);
}

/** Each second: asks if the stream is silent. */
export function checkSilence() {
  const now = performance.now();
  const silent = now - state.newsAt > staleAfterMs();
  if (silent && state.connection === 'live') {
    state.connection = 'asking';
    changed();
  }
  const pause = state.connection === 'lost' ? LOST_MS : WITHOUT_STREAM_MS;
  if ((silent || state.connection !== 'live') && now - startedAt > pause) refresh();
}

function mayAsk() {
  return !document.hidden && !state.paused && !state.login;
}

async function run() {
  clearTimeout(timer);
  timer = 0;
  isWanted = false;
  startedAt = performance.now();
  const mine = (inFlight = new AbortController());
  try {
    const { signal } = mine;
    if (!state.info || state.connection === 'lost') state.info = (await get('v1/info', {}, signal)).body;
    /** @type {Promise<{body: Overview, base: number}>} */
    const asked = get('v1/overview', { only: 'stuck', sort: 'wait', limit: 50 }, signal);
    const [overview, page] = await Promise.allSettled([asked, load(signal)]);
    if (mine.signal.aborted) return;
    if (overview.status === 'rejected') throw overview.reason;
    arrived(overview.value);
    state.pageProblem = page.status === 'rejected' ? asProblem(page.reason) : null;
  } catch (error) {
    if (mine.signal.aborted) return;
    failed(asProblem(error));
  } finally {
    tookMs = performance.now() - startedAt;
    if (inFlight === mine) inFlight = null;
  }
  changed();
  if (isWanted) refresh();
}

/** @param {{body: Overview, base: number}} overview */
function arrived(overview) {
  const { body, base } = overview;
  overview.base = base - body.sampled_ms_ago;
  state.overview = overview;
  state.sampledAt = overview.base;
  state.everyMs = body.every_ms;
  state.problem = null;
  state.lostSince = null;
  state.login = false;
  const hears = performance.now() - state.newsAt <= staleAfterMs();
  if (state.connection !== 'live') state.connection = hears ? 'live' : 'asking';
}

/** @param {import('./api').Problem} problem */
function failed(problem) {
  if (problem.status === 401) {
    Object.assign(state, { login: true, info: null, overview: null, sampledAt: null, connection: 'starting' });
  } else if (problem.isOutage || isStale()) {
    state.connection = 'lost';
    state.lostSince ??= new Date();
  }
  state.problem = problem;
}

addEventListener('visibilitychange', () => {
  if (!document.hidden) refresh();
});

// When the page asks the server again: after each sample that the stream reports, and by itself while there is no stream. Never more than
// once a second, never while the last answer is still under way, never while a person has paused the updates. In a hidden tab only the
// overview, for the title of the tab, and seldom.

import { asProblem, get } from './api.js';
import { freezeAgain } from './clock.js';
import { changed, forgetCaller, isStale, staleAfterMs, state } from './state.js';

/** @typedef {import('./types/api').Overview} Overview */
/** @typedef {import('./types/api').Info} Info */
/** Loads what the open page wants to know. `again`: a person has asked, so everything is read. @typedef {(signal: AbortSignal, again: boolean) => Promise<void>} Load */

const APART_MS = 1000;
const WITHOUT_STREAM_MS = 5000;
const LOST_MS = 3000;
const HIDDEN_MS = 20_000;

/** @type {Load} */
let load = async () => {};
let startedAt = -Infinity;
/** @type {AbortController | null} */
let inFlight = null;
let isWanted = false;
let isInfoOld = true;
let timer = 0;

/** Another page is open. @param {Load} loadPage */
export function openPage(loadPage) {
  load = loadPage;
  refreshNow();
}

/** Asks at once: a person has asked for something. Also while paused. */
export function refreshNow() {
  inFlight?.abort();
  inFlight = null;
  void run(true);
}

/** Asks soon. */
export function refresh() {
  isWanted = true;
  if (!mayAsk() || inFlight || timer) return;
  // A server that takes long to answer is asked less often.
  const wait = Math.max(0, startedAt + Math.max(APART_MS, 3 * state.tookMs) - performance.now());
  timer = setTimeout(() => {
    timer = 0;
    if (mayAsk() && !inFlight) void run(false);
  }, wait);
}

/** What the caller may do, or the server itself, may be another one: the next request asks. */
export function askInfoAgain() {
  isInfoOld = true;
}

/** Each second: asks if the stream is silent, or the tab was hidden for long enough. */
export function checkSilence() {
  const now = performance.now();
  if (document.hidden) {
    if (!state.paused && !state.login && !inFlight && now - startedAt > HIDDEN_MS) void run(false);
    return;
  }
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

/** @param {boolean} again */
async function run(again) {
  clearTimeout(timer);
  timer = 0;
  isWanted = false;
  startedAt = performance.now();
  const mine = (inFlight = new AbortController());
  const { signal } = mine;
  try {
    if (isInfoOld || !state.info || state.connection === 'lost') {
      state.info = (await get('v1/info', {}, signal)).body;
      isInfoOld = false;
    }
    const page = document.hidden && !again ? Promise.resolve() : load(signal, again);
    // It is awaited below. Without this the browser would call it unhandled if the overview fails first.
    page.catch(() => {});
    /** @type {{body: Overview, base: number}} */
    const overview = await get('v1/overview', { only: 'stuck', sort: 'wait', limit: 50 }, signal);
    arrived(overview);
    changed();
    state.pageProblem = await page.then(
      () => null,
      (error) => asProblem(error),
    );
    if (signal.aborted) return;
    freezeAgainIfPaused();
    state.tookMs = performance.now() - startedAt;
  } catch (error) {
    if (signal.aborted) return;
    failed(asProblem(error));
  } finally {
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
  state.suspended = false;
  const hears = performance.now() - state.newsAt <= staleAfterMs();
  if (state.connection !== 'live') state.connection = hears ? 'live' : 'asking';
  freezeAgainIfPaused();
}

/** A person opens pages and gives orders while paused. What they read then is new. */
function freezeAgainIfPaused() {
  if (state.paused && !isStale()) freezeAgain();
}

/** @param {import('./api').Problem} problem */
function failed(problem) {
  if (problem.status === 401) {
    forgetCaller();
    state.login = true;
  } else if (problem.isOutage || isStale()) {
    state.connection = 'lost';
    state.lostSince ??= new Date();
  }
  state.problem = problem;
}

addEventListener('visibilitychange', () => {
  if (document.hidden) return;
  state.newsAt = performance.now(); // A stream takes a moment to open.
  refresh();
});

// Starts the page: routes, drawing, the stream, the clock, the keys.

import { post } from './api.js';
import * as audit from './audit.js';
import { freeze, startClock } from './clock.js';
import { announce } from './copy.js';
import { h, patch } from './dom.js';
import { header } from './header.js';
import * as jobs from './jobs.js';
import { openKeys, startKeys } from './keys.js';
import { startLive, stopLive, tellCallerChanged } from './live.js';
import { drawLogin } from './login.js';
import { banner, footer, panels } from './notices.js';
import * as overview from './overview.js';
import { problemBox } from './parts.js';
import { checkSilence, openPage, refresh, refreshNow } from './refresh.js';
import * as resource from './resource.js';
import * as resources from './resources.js';
import { go, route } from './route.js';
import { changed, isStale, onChange, state } from './state.js';
import * as store from './store.js';
import { nextTheme, setTheme } from './theme.js';

/** @typedef {{title: string | ((params: Record<string, string>) => string), load: (params: Record<string, string>, signal: AbortSignal) => Promise<void>, draw: (params: Record<string, string>) => import('./dom').Child}} Page */

/** @type {Record<string, Page>} */
const PAGES = { '': overview, resources, resource, store, audit, jobs };
const SEARCH_PAUSE_MS = 250;
const RECENT_MAX = 12;

const at = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
let opened = '';
let searchTimer = 0;
let isLost = false;

const commands = {
  pause() {
    state.paused = !state.paused;
    announce(state.paused ? 'Live updates are paused' : 'Live updates go on');
    if (!state.paused) refreshNow();
    changed();
  },
  theme() {
    setTheme(nextTheme());
    changed();
  },
  keys: openKeys,
  async logout() {
    await post('v1/logout').catch(() => {}); // The token may have ended already.
    tellCallerChanged();
    callerChanged();
  },
  search(/** @type {string} */ text, /** @type {boolean} */ isFinal) {
    clearTimeout(searchTimer);
    // While the list is open it follows the typing; elsewhere Enter opens it.
    if (route().page !== 'resources' && !isFinal) return;
    const open = () => {
      // Asked for again: a person may have chosen a kind or another page meanwhile.
      const { page, params } = route();
      if (page !== 'resources' && !isFinal) return;
      go(resources.address(page === 'resources' ? { ...params, q: text, after: '' } : { q: text }), {
        replace: page === 'resources',
      });
    };
    searchTimer = setTimeout(open, isFinal ? 0 : SEARCH_PAUSE_MS);
  },
};

/** Another token, or none any more: nothing of what the page knows may stay. */
function callerChanged() {
  state.newsAt = performance.now(); // A stream takes a moment to open.
  Object.assign(state, {
    info: null,
    overview: null,
    sampledAt: null,
    login: false,
    problem: null,
    pageProblem: null,
    connection: 'starting',
    recent: [],
  });
  startLive(heard);
  refreshNow();
}

/** @param {import('./live').News} news */
function heard(news) {
  if (news.type === 'caller') return callerChanged();
  if (news.type === 'closed') {
    if (news.status === 401) refreshNow();
    return;
  }
  state.newsAt = performance.now();
  if (state.connection === 'asking') state.connection = 'live';
  if (news.type === 'sampled') state.everyMs = news.every_ms;
  if (news.type === 'changes' && !state.paused) state.recent = [...news.last.reverse(), ...state.recent].slice(0, RECENT_MAX);
  refresh();
}

function navigate() {
  const { page, params } = route();
  const known = PAGES[page] ?? overview;
  const isOther = opened !== page;
  opened = page;
  state.pageProblem = null;
  openPage((signal) => known.load(params, signal));
  drawAll();
  if (!isOther) return;
  scrollTo(0, 0);
  /** @type {HTMLElement | null} */ (document.querySelector('main h1'))?.focus({ preventScroll: true });
}

function drawAll() {
  const { page, params } = route();
  const known = PAGES[page] ?? overview;
  const stale = isStale();
  freeze(state.paused || state.connection === 'lost');
  document.body.classList.toggle('stale', stale);
  document.body.classList.toggle('is-paused', state.paused);
  patch(at('header'), header(page, page === 'resources' ? (params.q ?? '') : '', commands));
  patch(at('banner'), banner());
  patch(at('panels'), panels());
  patch(at('footer'), footer());
  patch(
    at('main'),
    state.login
      ? drawLogin(loggedIn)
      : [
          state.pageProblem ? h('div', { key: 'problem', class: 'refused' }, problemBox(state.pageProblem)) : null,
          known.draw(params),
        ],
  );
  const stuck = state.overview?.body.stuck;
  const title = state.login ? 'Log in' : typeof known.title === 'function' ? known.title(params) : known.title;
  document.title = `${stuck ? `(${stuck} stuck) ` : ''}${title} · leasehold`;
  sayNews();
}

/** What a person who does not look should hear: the sentence, when its facts change, and the loss of the server. */
function sayNews() {
  const lost = state.connection === 'lost';
  if (state.overview && !lost && (route().page === '' || isLost)) announce(overview.spoken(state.overview.body));
  isLost = lost;
}

function loggedIn() {
  tellCallerChanged();
  callerChanged();
  at('main').focus();
}

function start() {
  onChange(drawAll);
  addEventListener('hashchange', navigate);
  addEventListener('pagehide', stopLive);
  addEventListener('pageshow', (event) => event.persisted && callerChanged());
  at('skip').addEventListener('click', (event) => {
    event.preventDefault(); // The # of the address is the route.
    at('main').focus();
  });
  at('panels').addEventListener('click', (event) => {
    const id = /** @type {Element} */ (event.target).closest('button')?.id;
    if (id === 'show-keys' || id === 'logout')
      document.querySelectorAll('[popover]').forEach((panel) => /** @type {HTMLElement} */ (panel).hidePopover());
    if (id === 'show-keys') openKeys();
    if (id === 'logout') void commands.logout();
  });
  startKeys(commands);
  let wasStale = false;
  startClock(() => {
    checkSilence();
    if (wasStale !== isStale()) changed();
    wasStale = isStale();
  });
  state.newsAt = performance.now(); // A stream takes a moment to open.
  navigate();
  startLive(heard);
}

start();

// Starts the page: routes, drawing, the stream, the clock, the keys.

import { asProblem, post, Problem } from './api.js';
import * as audit from './audit.js';
import { freeze, startClock } from './clock.js';
import { announce } from './copy.js';
import { closeDialogs } from './dialog.js';
import { h, patch } from './dom.js';
import { header } from './header.js';
import * as jobs from './jobs.js';
import { openKeys, startKeys } from './keys.js';
import { startLive, stopLive, tellCallerChanged } from './live.js';
import { drawLogin } from './login.js';
import { banner, footer, panels } from './notices.js';
import * as overview from './overview.js';
import { problemBox } from './parts.js';
import { askInfoAgain, checkSilence, openPage, refresh, refreshNow } from './refresh.js';
import * as resource from './resource.js';
import * as resources from './resources.js';
import { go, route } from './route.js';
import { changed, forgetCaller, isStale, onChange, onForget, staleAfterMs, state } from './state.js';
import * as store from './store.js';
import { nextTheme, setTheme } from './theme.js';

/** @typedef {{title: string | ((params: Record<string, string>) => string), load: (params: Record<string, string>, signal: AbortSignal, again: boolean) => Promise<void>, draw: (params: Record<string, string>) => import('./dom').Child}} Page */

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
    announce(state.paused ? 'Live updates are paused' : 'Live updates are resumed');
    if (!state.paused) refreshNow();
    changed();
  },
  theme() {
    setTheme(nextTheme());
    changed();
  },
  keys: openKeys,
  async logout() {
    try {
      await post('v1/logout');
    } catch (error) {
      const problem = asProblem(error);
      // With 401 the token has ended already.
      if (problem.status !== 401) {
        const detail = `${problem.title}: ${problem.message}. This browser still has the token. Log out again`;
        state.notice = new Problem({ title: 'You are not logged out', status: problem.status, kind: problem.kind, detail });
        announce(state.notice.title);
        return changed();
      }
    }
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

/** There is another token, or none any more. */
function callerChanged() {
  forgetCaller();
  Object.assign(state, { login: false, notice: null });
  state.newsAt = performance.now(); // A stream takes a moment to open.
  startLive(onNews);
  refreshNow();
}

/** @param {import('./live').News} news */
function onNews(news) {
  if (news.type === 'caller') return callerChanged();
  if (news.type === 'closed') {
    // The server has ended the stream, because the token or its roles have changed, or because it ends itself.
    askInfoAgain();
    return news.status === 401 ? refreshNow() : refresh();
  }
  state.newsAt = performance.now();
  if (state.connection === 'asking') state.connection = 'live';
  if (news.type === 'draining' && state.info) {
    state.info.draining = true;
    return changed();
  }
  if (news.type === 'sampled') state.everyMs = news.every_ms;
  if (news.type === 'changes') {
    resource.onChanges(news.keys);
    // The array is shared with what is sent to the other tabs.
    if (!state.paused) addRecent([...news.last].reverse());
  }
  if (news.type === 'resync') {
    resource.onChanges(null);
    if (!news.first && !state.paused) addRecent([gap(news.changes)]);
  }
  refresh();
}

/** @param {import('./types/api').Change[]} news newest first */
function addRecent(news) {
  const known = new Set(news.map(overview.changeKey));
  state.recent = [...news, ...state.recent.filter((change) => !known.has(overview.changeKey(change)))].slice(0, RECENT_MAX);
}

/** Stands for changes that the stream has left out. @param {number | null} changes @returns {import('./types/api').Change} */
function gap(changes) {
  return {
    at: new Date().toISOString(),
    kind: overview.GAP,
    resource: '',
    key: '',
    token: String(changes ?? ''),
    queue_length: 0,
  };
}

/** The computer was suspended: nobody knows for how long, so what is shown may be over. */
function onSuspend() {
  if (state.login || state.paused) return;
  state.suspended = true;
  changed();
  refreshNow();
}

/** The instant at which the clocks stop. `null`: they run. */
function frozenAt() {
  const now = performance.now();
  if (state.paused) return now;
  if (!isStale()) return null;
  // The page may have been opened while the server already showed an old state.
  return state.sampledAt === null ? now : Math.min(now, state.sampledAt + staleAfterMs());
}

function navigate() {
  const { page, params } = route();
  const known = PAGES[page] ?? overview;
  const isOther = opened !== page;
  opened = page;
  Object.assign(state, { pageProblem: null, notice: null });
  closeDialogs();
  openPage((signal, again) => known.load(params, signal, again));
  drawAll();
  if (!isOther) return;
  scrollTo(0, 0);
  /** @type {HTMLElement | null} */ (document.querySelector('main h1'))?.focus({ preventScroll: true });
}

function drawAll() {
  const { page, params } = route();
  const known = PAGES[page] ?? overview;
  const stale = isStale();
  freeze(frozenAt());
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

/** Tells screen readers the sentence when its facts change, and when the server answers again. */
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
  onForget(closeDialogs);
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
  }, onSuspend);
  state.newsAt = performance.now(); // A stream takes a moment to open.
  navigate();
  startLive(onNews);
}

start();

// The bar at the top: where you are, how fresh it is, who you are. And the lines above and below it that say what does not work.

import { h } from './dom.js';
import { icon } from './icons.js';
import { foreign, number, span, visible, when } from './text.js';
import { ageMs, isStale, readOnlyBecause, state } from './state.js';
import { theme } from './theme.js';

/** @type {[string, string][]} */
export const PAGES = [['', 'Overview'], ['resources', 'Resources'], ['store', 'Store'], ['jobs', 'Jobs'], ['audit', 'Audit']];

/** @typedef {{pause: () => void, theme: () => void, keys: () => void, logout: () => void, search: (text: string, isFinal: boolean) => void}} Commands */

/** @param {string} page @param {string} q @param {Commands} commands */
export function header(page, q, commands) {
  const stuck = state.overview?.body.stuck ?? 0;
  return [
    h('a', { class: 'brand', href: '#/', key: 'brand', 'aria-label': 'leasehold, overview' }, h('img', { src: 'assets/icon.svg', alt: '', width: 24, height: 24 }), h('span', { 'aria-hidden': 'true' }, 'leasehold')),
    state.login ? null : h('nav', { key: 'nav', 'aria-label': 'Pages' }, h('ul', null, PAGES.map(([to, text]) => h('li', { key: to },
      h('a', { href: `#/${to}`, 'aria-current': page === to || (page === 'resource' && to === 'resources') ? 'page' : undefined }, text, to === '' && stuck ? h('span', { class: 'badge bad', title: `${number(stuck)} stuck` }, number(stuck), h('span', { class: 'for-ears' }, ' stuck')) : null))))),
    state.login ? null : searchField(q, commands),
    h('div', { class: 'controls', key: 'controls' },
      state.login ? null : freshness(),
      state.login ? null : h('button', { type: 'button', id: 'pause', key: 'pause', class: 'square', 'aria-pressed': String(state.paused), 'aria-label': state.paused ? 'Go on with live updates' : 'Pause live updates', title: state.paused ? 'Go on (p)' : 'Pause live updates (p)', on: { click: commands.pause } }, icon(state.paused ? 'play' : 'paused')),
      h('button', { type: 'button', id: 'theme', key: 'theme', class: 'square', 'aria-label': `Theme: ${theme()}. Change it`, title: `Theme: ${theme()} (t)`, on: { click: commands.theme } }, icon({ system: 'system', light: 'sun', dark: 'moon' }[theme()])),
      state.login ? null : account(commands)),
  ];
}

/** @param {string} q @param {Commands} commands */
function searchField(q, commands) {
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    commands.search(/** @type {HTMLInputElement} */ (document.getElementById('search')).value, true);
  };
  return h('form', { class: 'search', role: 'search', key: 'search', on: { submit } },
    icon('search'),
    h('label', { for: 'search', class: 'for-ears' }, 'Find resources'),
    h('input', { id: 'search', type: 'search', placeholder: 'Find a resource', autocomplete: 'off', spellcheck: 'false', maxlength: 512, value: q, on: { input: (/** @type {any} */ event) => commands.search(event.target.value, false) } }),
    h('kbd', { 'aria-hidden': 'true' }, '/'));
}

/** @returns {{tone: string, text: () => string}} */
function freshnessNow() {
  const every = Math.round(state.everyMs / 100) / 10;
  const ago = () => {
    const ms = ageMs();
    return ms === null ? '' : ms < 1500 ? 'just now' : `${span(ms)} ago`;
  };
  if (state.sampledAt === null) return { tone: 'calm', text: () => (state.connection === 'lost' ? 'no answer' : 'connecting') };
  if (state.paused) return { tone: 'calm', text: () => `paused: ${ago()}` };
  if (isStale() || state.overview?.body.failing) return { tone: 'bad', text: () => `stale: ${ago()}` };
  if (state.connection === 'asking') return { tone: 'warn', text: () => `${ago()}, no stream` };
  return { tone: 'good', text: () => `live, every ${every} s` };
}

function freshness() {
  const { tone, text } = freshnessNow();
  return h('button', { type: 'button', id: 'freshness', key: 'freshness', class: `pill ${tone}`, popovertarget: 'freshness-more', title: 'What this means', 'data-state': state.paused ? 'paused' : isStale() ? 'stale' : state.connection },
    icon(tone === 'good' ? 'dot' : tone === 'bad' ? 'silent' : state.paused ? 'paused' : 'late'), h('span', { tick: text }));
}

/** Explains how fresh the page is. Its element is outside of the bar, because it lies above the page. */
export function panels() {
  const overview = state.overview?.body;
  const { info } = state;
  return [
    h('div', { key: 'freshness', id: 'freshness-more', class: 'panel', popover: 'auto', role: 'dialog', 'aria-label': 'How fresh this is' },
      h('h2', null, 'How fresh this is'),
      h('p', null, `The server looks at the store every ${Math.round(state.everyMs / 100) / 10} s. What happens and is undone between two looks is not seen here.`),
      h('dl', { class: 'facts' },
        h('div', { class: 'fact' }, h('dt', null, 'Last look'), h('dd', null, h('span', { tick: () => { const ms = ageMs(); return ms === null ? 'none yet' : `${span(ms)} ago`; } }))),
        h('div', { class: 'fact' }, h('dt', null, 'Updates'), h('dd', null, state.paused ? 'paused by you' : state.connection === 'live' ? 'as they happen, by one stream for all tabs' : state.connection === 'lost' ? 'none: the server does not answer' : 'every 5 s: there is no stream. A proxy may hold it back')),
        overview ? h('div', { class: 'fact' }, h('dt', null, 'Watching since'), h('dd', null, when(overview.since))) : null,
        overview?.truncated ? h('div', { class: 'fact' }, h('dt', null, 'Not complete'), h('dd', null, 'the store has more resources than a sample holds')) : null)),
    h('div', { key: 'account', id: 'account-more', class: 'panel', popover: 'auto', role: 'dialog', 'aria-label': 'Who you are' },
      h('h2', null, info?.caller.subject ? foreign(info.caller.subject, { most: 80 }) : 'Without a token'),
      h('p', { 'data-test': 'role' }, readOnlyBecause() ? `Read-only: ${readOnlyBecause()}.` : 'You may give orders: role operator.'),
      info ? h('dl', { class: 'facts' },
        h('div', { class: 'fact' }, h('dt', null, 'Roles'), h('dd', null, visible(info.caller.roles.join(', '), 80))),
        h('div', { class: 'fact' }, h('dt', null, 'Namespaces'), h('dd', null, visible(info.caller.namespaces?.join(', ') ?? 'all', 300))),
        h('div', { class: 'fact' }, h('dt', null, 'Kinds'), h('dd', null, visible(info.caller.kinds?.join(', ') ?? 'all', 300)))) : null,
      h('div', { class: 'buttons start' },
        h('button', { type: 'button', id: 'show-keys', key: 'keys' }, icon('keys'), 'Keys'),
        info?.caller.subject ? h('button', { type: 'button', id: 'logout', key: 'logout' }, 'Log out') : null)),
  ];
}

/** @param {Commands} _commands */
function account(_commands) {
  const readOnly = readOnlyBecause();
  const text = readOnly ? 'read-only' : 'operator';
  return h('button', { type: 'button', id: 'account', key: 'account', class: 'pill', popovertarget: 'account-more', title: readOnly ? `Read-only: ${readOnly}` : 'You may give orders' }, icon(readOnly ? 'lock' : 'person'), h('span', null, text));
}

/** The line over the page when something keeps it from being true. */
export function banner() {
  const { problem, connection, overview } = state;
  const failing = overview?.body.failing;
  if (state.login) return null;
  if (connection === 'lost') {
    const since = state.lostSince ? ` since ${state.lostSince.toTimeString().slice(0, 8)}` : '';
    return h('p', { class: 'bad', key: 'lost' }, icon('silent'), h('span', null, h('strong', null, `The server does not answer${since}.`), overview ? ' You see its last state; the clocks have stopped. ' : ' ', 'This page tries again by itself.'));
  }
  if (failing) return h('p', { class: 'bad', key: 'failing' }, icon('silent'), h('span', null, h('strong', null, 'The server cannot read the store'), ` (${visible(failing, 60)}). You see the last state that it could read.`));
  if (problem) return h('p', { class: 'warn', key: 'problem' }, icon('info'), h('span', null, h('strong', null, foreign(problem.title, { most: 200 })), problem.detail ? [': ', foreign(problem.detail, { most: 400 })] : '', problem.hint ? ['. ', foreign(problem.hint, { most: 300 })] : ''));
  if (state.info?.draining) return h('p', { class: 'warn', key: 'draining' }, icon('info'), 'The server is shutting down.');
  return null;
}

export function footer() {
  const { info, overview } = state;
  if (!overview) return null;
  const { body } = overview;
  return [
    h('p', { key: 'sampling', id: 'sampling' }, `Sampled every ${Math.round(state.everyMs / 100) / 10} s by this server since `, when(body.since), '. What happens and is undone in between is not seen.', body.truncated ? ' The store has more resources than a sample holds.' : ''),
    info ? h('p', { key: 'version' }, 'leasehold ', foreign(info.server, { most: 40 })) : null,
  ];
}

// The bar at the top: where you are, how fresh it is, who you are.

import { h } from './dom.js';
import { icon } from './icons.js';
import { number, span } from './text.js';
import { ageMs, isStale, readOnlyBecause, state } from './state.js';
import { theme } from './theme.js';

/** @type {[string, string][]} */
export const PAGES = [
  ['', 'Overview'],
  ['resources', 'Resources'],
  ['store', 'Store'],
  ['jobs', 'Jobs'],
  ['audit', 'Audit'],
];

/** @typedef {{pause: () => void, theme: () => void, keys: () => void, logout: () => void, search: (text: string, isFinal: boolean) => void}} Commands */

/** @param {string} page @param {string} q @param {Commands} commands */
export function header(page, q, commands) {
  const stuck = state.overview?.body.stuck ?? 0;
  return [
    h(
      'a',
      { class: 'brand', href: '#/', key: 'brand', 'aria-label': 'leasehold, overview' },
      h('img', { src: 'assets/icon.svg', alt: '', width: 24, height: 24 }),
      h('span', { 'aria-hidden': 'true' }, 'leasehold'),
    ),
    state.login
      ? null
      : h(
          'nav',
          { key: 'nav', 'aria-label': 'Pages' },
          h(
            'ul',
            null,
            PAGES.map(([to, text]) =>
              h(
                'li',
                { key: to },
                h(
                  'a',
                  {
                    href: `#/${to}`,
                    'aria-current': page === to || (page === 'resource' && to === 'resources') ? 'page' : undefined,
                  },
                  text,
                  to === '' && stuck
                    ? h(
                        'span',
                        { class: 'badge bad', title: `${number(stuck)} stuck` },
                        number(stuck),
                        h('span', { class: 'visually-hidden' }, ' stuck'),
                      )
                    : null,
                ),
              ),
            ),
          ),
        ),
    state.login ? null : searchField(q, commands),
    h(
      'div',
      { class: 'controls', key: 'controls' },
      state.login ? null : freshness(),
      state.login
        ? null
        : h(
            'button',
            {
              type: 'button',
              id: 'pause',
              key: 'pause',
              class: 'square',
              'aria-label': state.paused ? 'Resume live updates' : 'Pause live updates',
              title: state.paused ? 'Resume live updates (p)' : 'Pause live updates (p)',
              on: { click: commands.pause },
            },
            icon(state.paused ? 'play' : 'paused'),
          ),
      h(
        'button',
        {
          type: 'button',
          id: 'theme',
          key: 'theme',
          class: 'square',
          'aria-label': `Theme: ${theme()}. Change it`,
          title: `Theme: ${theme()} (t)`,
          on: { click: commands.theme },
        },
        icon({ system: 'system', light: 'sun', dark: 'moon' }[theme()]),
      ),
      state.login ? null : account(),
    ),
  ];
}

/** @param {string} q @param {Commands} commands */
function searchField(q, commands) {
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    commands.search(/** @type {HTMLInputElement} */ (document.getElementById('search')).value, true);
  };
  return h(
    'form',
    { class: 'search', role: 'search', key: 'search', on: { submit } },
    icon('search'),
    h('label', { for: 'search', class: 'visually-hidden' }, 'Find resources'),
    h('input', {
      id: 'search',
      type: 'search',
      placeholder: 'Find a resource',
      autocomplete: 'off',
      spellcheck: 'false',
      maxlength: 512,
      value: q,
      on: { input: (/** @type {any} */ event) => commands.search(event.target.value, false) },
    }),
    h('kbd', { 'aria-hidden': 'true' }, '/'),
  );
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
  if (isStale()) return { tone: 'bad', text: () => `stale: ${ago()}` };
  if (state.connection === 'asking') return { tone: 'warn', text: () => `${ago()}, no stream` };
  return { tone: 'good', text: () => `live, every ${every} s` };
}

function freshness() {
  const { tone, text } = freshnessNow();
  return h(
    'button',
    {
      type: 'button',
      id: 'freshness',
      key: 'freshness',
      class: `pill ${tone}`,
      popovertarget: 'freshness-more',
      title: 'What this means',
      'data-state': state.paused ? 'paused' : isStale() ? 'stale' : state.connection,
    },
    icon(tone === 'good' ? 'dot' : tone === 'bad' ? 'silent' : state.paused ? 'paused' : 'late'),
    h('span', { tick: text }),
  );
}

function account() {
  const readOnly = readOnlyBecause();
  const text = readOnly ? 'read-only' : 'operator';
  return h(
    'button',
    {
      type: 'button',
      id: 'account',
      key: 'account',
      class: 'pill',
      popovertarget: 'account-more',
      title: readOnly ? `Read-only: ${readOnly}` : 'You may give orders',
    },
    icon(readOnly ? 'lock' : 'person'),
    h('span', null, text),
  );
}

// The numbers beside the overview: how many, how often, which kinds, and how the store does.

import { h } from './dom.js';
import { icon } from './icons.js';
import { section } from './parts.js';
import { count, number, untrusted, when } from './text.js';
import { storeSentence } from './words.js';

/** @typedef {import('./types/api').Overview} Overview */

/** @param {Overview} body */
export function numbers(body) {
  /** @type {[string, number | undefined, string, string][]} */
  const all = [
    ['Held', body.held, 'only=held&sort=hold', ''],
    ['Waiting', body.waiting, 'only=waiting&sort=waiters', ''],
    ['Stuck', body.stuck, 'only=stuck', 'bad'],
    ['Process gone', body.gone, 'only=gone', 'bad'],
    ['Unusually long', body.unusual, 'only=unusual&sort=hold', 'warn'],
    ['Paused', body.paused, 'only=paused', 'calm'],
    ['Other programs', body.foreign, 'only=foreign', 'calm'],
    ['Unreadable', body.unreadable, 'only=unreadable', 'bad'],
  ];
  return h(
    'dl',
    { class: 'numbers', key: 'numbers' },
    all
      .filter(([, n]) => n !== undefined)
      .map(([name, n = 0, query, tone]) =>
        h(
          'div',
          { key: name, class: n && tone ? `is-${tone}` : n ? '' : 'is-zero' },
          h('dt', null, name),
          h('dd', null, h('a', { href: `#/resources?${query}`, 'aria-label': `${name}: ${number(n)}` }, number(n))),
        ),
      ),
  );
}

/** @type {[string, string, string][]} field, what, tone */
const HOUR = [
  ['granted', 'granted', ''],
  ['lost', 'lost', 'bad'],
  ['expired', 'by expiry', 'part'],
  ['taken_over', 'then taken over', 'part'],
  ['evicted', 'by an operator', 'part'],
  ['ended', 'released or expired', ''],
  ['asked', 'asked to finish', ''],
];

/** @param {Overview} body */
export function lastHour(body) {
  const hour = body.last_hour;
  if (!hour) return null;
  const shown = HOUR.filter(
    ([field]) => typeof hour[field] === 'number' && (hour[field] || field === 'granted' || field === 'lost'),
  );
  return section(
    'last-hour',
    'In the last hour',
    h(
      'dl',
      { class: 'pairs', key: 'pairs' },
      shown.map(([field, what, tone]) =>
        h(
          'div',
          { key: field, class: tone === 'part' ? 'part' : hour[field] ? tone && `is-${tone}` : 'is-zero' },
          h('dt', null, what),
          h('dd', null, number(hour[field] ?? 0)),
        ),
      ),
    ),
    h('p', { class: 'quiet small', key: 'since' }, 'As seen by this server, which has watched since ', when(body.since), '.'),
  );
}

/** @param {Overview} body */
export function storeCard(body) {
  if (!body.store) return null;
  const tone = body.store.state === 'healthy' ? 'good' : body.store.state === 'down' ? 'bad' : 'warn';
  return section(
    'store-card',
    'Store',
    h(
      'p',
      { key: 'say' },
      icon(tone === 'good' ? 'ok' : 'silent', tone),
      ' ',
      untrusted(storeSentence(body), { most: 200 }),
      '. ',
      h('a', { href: '#/store' }, 'Details'),
    ),
  );
}

/** @param {Overview} body */
export function kinds(body) {
  if (!body.kinds?.length) return null;
  const inUse = body.kinds.filter(({ held, waiting }) => held || waiting);
  const shown = inUse.slice(0, 8);
  if (!shown.length) return null;
  return section(
    'kinds',
    'Kinds',
    h(
      'table',
      { class: 'small-table', key: 'table' },
      h(
        'thead',
        null,
        h(
          'tr',
          null,
          ['Kind', 'Held', 'Waiting', 'Stuck'].map((name) => h('th', { scope: 'col', key: name }, name)),
        ),
      ),
      h(
        'tbody',
        null,
        shown.map((kind) =>
          h(
            'tr',
            { key: kind.kind },
            h(
              'th',
              { scope: 'row' },
              h(
                'a',
                { href: `#/resources?${new URLSearchParams({ kind: kind.kind })}`, class: 'name' },
                untrusted(kind.kind, { most: 40 }),
              ),
            ),
            h('td', null, number(kind.held)),
            h('td', null, number(kind.waiting)),
            h('td', { class: kind.stuck ? 'bad-text strong' : '' }, number(kind.stuck)),
          ),
        ),
      ),
    ),
    inUse.length > shown.length
      ? h('p', { class: 'quiet small', key: 'more' }, `and ${count(inUse.length - shown.length, 'more kind')}`)
      : null,
  );
}

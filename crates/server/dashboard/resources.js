// All resources: search, filter, sort, and pages of the server. What is asked for is in the address, so that it can be sent to a colleague.

import { get } from './api.js';
import { holders, waiting } from './attention.js';
import { h } from './dom.js';
import { empty, firstCommand, mark, resourceLink, row, since, table } from './parts.js';
import { go } from './route.js';
import { onForget, state } from './state.js';
import { keepOrder } from './keep_order.js';
import { count, number, untrusted } from './text.js';
import { marksOf, modeOf } from './words.js';

/** @typedef {import('./types/api').Overview} Overview */
/** @typedef {Record<string, string>} Params */

export const title = 'Resources';

const ROWS = 50;
/** @type {[string, string, string | null][]} value, text, the field with the number */
const FILTERS = [
  ['', 'All', null],
  ['held', 'Held', 'held'],
  ['waiting', 'With waiters', null],
  ['stuck', 'Stuck', 'stuck'],
  ['gone', 'Process gone', 'gone'],
  ['unusual', 'Held unusually long', 'unusual'],
  ['deadlocked', 'Deadlocked', null],
  ['paused', 'Paused', 'paused'],
  ['foreign', 'Other programs', 'foreign'],
  ['unreadable', 'Unreadable', 'unreadable'],
  ['leading', 'Elections', null],
  ['kept', 'Kept closed', 'kept'],
];
/** @type {[string, string][]} */
const SORTS = [
  ['wait', 'longest wait'],
  ['hold', 'longest hold'],
  ['waiters', 'most waiters'],
  ['name', 'name'],
];

/** The answer to the query in `asked`. @type {{body: Overview, base: number} | null} */
let found = null;
let asked = '';
/** The pages before this one, to go back. @type {string[]} */
let trail = [];
onForget(() => ([found, asked, trail] = [null, '', []]));

/** @param {Params} params */
const queryOf = ({ q, kind, sort, only, after }) => ({ q, kind, sort: sort || 'wait', only, after, limit: ROWS });

/** @param {Params} params @param {AbortSignal} signal */
export async function load(params, signal) {
  const query = JSON.stringify(queryOf(params));
  /** @type {{body: Overview, base: number}} */
  const { body, base } = await get('v1/overview', queryOf(params), signal);
  found = { body, base: base - body.sampled_ms_ago };
  asked = query;
}

/** @param {Params} params */
export function draw(params) {
  const isAsked = asked === JSON.stringify(queryOf(params));
  return h(
    'div',
    { key: 'resources', class: 'page' },
    h(
      'div',
      { class: 'page-head' },
      h('h1', { tabindex: '-1' }, 'Resources'),
      found ? h('p', { class: 'quiet', id: 'matched' }, matched(params, found.body)) : null,
    ),
    tools(params),
    found
      ? h(
          'div',
          { 'aria-busy': isAsked ? undefined : 'true', class: isAsked ? '' : 'old', key: 'found' },
          list(params, found),
          pages(params, found.body),
        )
      : h('p', { class: 'loading', key: 'loading', 'aria-busy': 'true' }, 'Reading the resources…'),
  );
}

/** @param {Params} params @param {Overview} body */
function matched(params, body) {
  const all = count(body.matched, 'resource');
  return [
    params.q || params.kind || params.only ? `${all} found` : all,
    body.truncated ? '. The store has more than a sample holds: these are the first ones' : '',
  ];
}

/** @param {Params} params */
function tools(params) {
  const body = found?.body ?? state.overview?.body;
  const kinds = body?.kinds?.map(({ kind }) => kind) ?? [];
  if (params.kind && !kinds.includes(params.kind)) kinds.unshift(params.kind);
  const known = /** @type {Record<string, any>} */ (body ?? {});
  // Filters that would find nothing are left out, so that the eye meets only what is there.
  const filters = FILTERS.filter(
    ([value, , field]) => !field || known[field] || value === (params.only ?? '') || value === 'held',
  );
  return h(
    'div',
    { class: 'tools', key: 'tools' },
    h(
      'ul',
      { class: 'chips', 'aria-label': 'Show' },
      filters.map(([value, text, field]) =>
        h(
          'li',
          { key: value },
          h(
            'a',
            {
              href: address({ ...params, only: value, after: '' }),
              class: 'chip',
              'aria-current': (params.only ?? '') === value ? 'true' : undefined,
            },
            text,
            field && known[field] ? h('span', { class: 'badge' }, number(known[field])) : null,
          ),
        ),
      ),
    ),
    h(
      'div',
      { class: 'selects' },
      params.q
        ? h(
            'span',
            { class: 'search-word', key: 'q' },
            'named ',
            untrusted(params.q, { most: 40, class: 'name' }),
            ' ',
            h('a', { href: address({ ...params, q: '', after: '' }), 'aria-label': 'Clear the search' }, 'clear'),
          )
        : null,
      h(
        'label',
        { key: 'kind' },
        h('span', null, 'Kind'),
        select(
          'kind',
          params.kind ?? '',
          [['', 'all'], ...kinds.map((kind) => /** @type {[string, string]} */ ([kind, kind]))],
          params,
        ),
      ),
      h('label', { key: 'sort' }, h('span', null, 'Sort'), select('sort', params.sort || 'wait', SORTS, params)),
    ),
  );
}

/** @param {string} name @param {string} value @param {[string, string][]} options @param {Params} params */
function select(name, value, options, params) {
  const change = (/** @type {any} */ event) => go(address({ ...params, [name]: event.target.value, after: '' }));
  return h(
    'select',
    { id: `select-${name}`, value, on: { change } },
    options.map(([key, text]) =>
      h(
        'option',
        { key, value: key, selected: key === value },
        untrusted(text, { most: 40 }).children.map((child) => (typeof child === 'string' ? child : child.children.join(''))),
      ),
    ),
  );
}

/** @param {Params} params @returns {string} */
export function address(params) {
  const kept = Object.entries(params).filter(([name, value]) => value && !(name === 'sort' && value === 'wait'));
  const text = new URLSearchParams(kept).toString();
  return text ? `#/resources?${text}` : '#/resources';
}

/** @param {Params} params @param {{body: Overview, base: number}} found */
function list(params, { body, base }) {
  if (!body.items.length) return nothing(params);
  const rows = keepOrder(`resources ${asked}`.replaceAll('"', "'"), body.items).map((item) =>
    row(item.key, [
      ['Resource', [h('div', { class: 'resource-cell' }, resourceLink(item), h('span', { class: 'quiet small' }, modeOf(item)))]],
      ['Holder', h('div', { class: 'stack' }, holders(item, base, { isTable: true }))],
      [
        'Held for',
        item.oldest_hold_ms === null || item.oldest_hold_ms === undefined
          ? h('span', { class: 'quiet' }, '–')
          : since(`hold ${item.key}`, item.oldest_hold_ms, base),
      ],
      ['Waiting', h('div', { class: 'stack' }, waiting(item, base, { isTable: true }))],
      [
        'Problems',
        h(
          'div',
          { class: 'marks' },
          marksOf(item).map((one) => mark(one)),
        ),
      ],
    ]),
  );
  return h(
    'div',
    { 'data-keep-order': `resources ${asked}`.replaceAll('"', "'"), key: 'list' },
    table('Resources', ['Resource', 'Holder', 'Held for', 'Waiting', 'Problems'], rows, 'resources'),
  );
}

/** @param {Params} params */
function nothing(params) {
  if (params.after)
    return empty(
      'There are no more resources.',
      h('p', null, 'Those of this page are gone since the page before was read.'),
      h('p', null, h('a', { href: address({ ...params, after: '' }) }, 'First page')),
    );
  if (params.q || params.kind || params.only)
    return empty(
      'No resource is found.',
      h(
        'p',
        null,
        'No resource of the newest sample matches. A resource that nobody holds and nobody waits for is not in the store.',
      ),
      h('p', null, h('a', { href: '#/resources' }, 'Show all resources')),
    );
  return empty('No resource is held.', h('p', null, 'Run a command while holding a lease, and it appears here:'), firstCommand());
}

/** @param {Params} params @param {Overview} body */
function pages(params, body) {
  const { after } = params;
  if (!after && !body.next) return null;
  const at = after ? trail.indexOf(after) : -1;
  const back = at > 0 ? trail[at - 1] : '';
  const remember = () => {
    if (!body.next) return;
    trail = after ? [...trail.slice(0, at + 1), body.next] : [body.next];
  };
  return h(
    'nav',
    { class: 'pages', 'aria-label': 'More of the list', key: 'pages' },
    after ? h('a', { class: 'button', key: 'first', href: address({ ...params, after: '' }) }, 'First page') : null,
    after && back ? h('a', { class: 'button', key: 'back', href: address({ ...params, after: back }) }, 'Page before') : null,
    body.next
      ? h(
          'a',
          { class: 'button', key: 'next', rel: 'next', href: address({ ...params, after: body.next }), on: { click: remember } },
          `Next ${ROWS}`,
        )
      : null,
  );
}

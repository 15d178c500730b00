// What operators have ordered, newest first: from the store itself, so it is the same at every server.

import { get } from './api.js';
import { h } from './dom.js';
import { icon } from './icons.js';
import { command, empty, resourceLink, row, table } from './parts.js';
import { go } from './route.js';
import { onForget } from './state.js';
import { untrusted, when, ZONE } from './text.js';

/** @typedef {import('./types/api').AuditPage} AuditPage */
/** @typedef {Record<string, string>} Params */

export const title = 'Audit';
const ROWS = 50;
const PREFIX_PAUSE_MS = 300;

/** @type {AuditPage | null} */
let found = null;
let asked = '';
let timer = 0;
onForget(() => ([found, asked] = [null, '']));

/** @param {Params} params */
const queryOf = ({ prefix, key, after }) => ({ prefix, key, after, limit: ROWS });

/** @param {Params} params @param {AbortSignal} signal */
export async function load(params, signal) {
  const { body } = await get('v1/audit', queryOf(params), signal);
  found = /** @type {AuditPage} */ (body);
  asked = JSON.stringify(queryOf(params));
}

/** @param {Params} params */
export function draw(params) {
  const isAsked = asked === JSON.stringify(queryOf(params));
  return h(
    'div',
    { class: 'page', key: 'audit' },
    h(
      'div',
      { class: 'page-head' },
      h('h1', { tabindex: '-1' }, 'Audit'),
      h('p', { class: 'quiet' }, `What operators have ordered, newest first. Times are in ${ZONE}.`),
    ),
    h(
      'div',
      { class: 'tools', key: 'tools' },
      h(
        'div',
        { class: 'selects' },
        params.key
          ? ofResource(params.key)
          : h(
              'label',
              { key: 'prefix' },
              h('span', null, 'Resources that begin with'),
              h('input', {
                id: 'audit-prefix',
                type: 'text',
                value: params.prefix ?? '',
                placeholder: 'report/',
                autocomplete: 'off',
                spellcheck: 'false',
                on: { input: (/** @type {any} */ event) => search(event.target.value) },
              }),
            ),
      ),
    ),
    found
      ? h(
          'div',
          { key: 'found', class: isAsked ? '' : 'old', 'aria-busy': isAsked ? undefined : 'true' },
          list(params, found),
          pages(params, found),
        )
      : h('p', { class: 'loading', key: 'loading', 'aria-busy': 'true' }, 'Reading the audit trail…'),
  );
}

/** @param {string} key */
function ofResource(key) {
  return h(
    'span',
    { class: 'search-word', key: 'key' },
    'for ',
    untrusted(key, { most: 200, class: 'name' }),
    ' ',
    h('a', { href: '#/audit' }, 'All orders'),
  );
}

/** @param {string} prefix */
function search(prefix) {
  clearTimeout(timer);
  timer = setTimeout(() => go(address({ prefix }), { replace: true }), PREFIX_PAUSE_MS);
}

/** @param {Params} params */
function address(params) {
  const text = new URLSearchParams(Object.entries(params).filter(([, value]) => value)).toString();
  return text ? `#/audit?${text}` : '#/audit';
}

/** @param {Params} params @param {AuditPage} page */
function list(params, { records }) {
  if (!records.length && params.key)
    return empty('No operator has given an order for this resource.', h('p', null, h('a', { href: '#/audit' }, 'All orders')));
  if (!records.length && params.prefix)
    return empty('No order is found.', h('p', null, 'No order was given for a resource that begins like this.'));
  if (!records.length)
    return empty(
      'No operator has given an order.',
      h(
        'p',
        null,
        'An order asks or evicts a holder, or pauses a resource. It always has a reason, and stays here. To ask the holder of a resource to finish:',
      ),
      command('leasehold ask report/1 --token TOKEN --by 30s --reason WHY', 'that asks a holder to finish'),
    );
  const rows = records.map((record) =>
    row(`${record.at_us} ${record.key} ${record.command} ${record.token ?? ''}`, [
      ['When', h('div', { class: 'stack' }, when(record.at), h('span', { class: 'quiet small' }, 'by ', untrusted(record.by)))],
      [
        'Order',
        h(
          'div',
          { class: 'stack' },
          h('span', { class: 'strong whole' }, untrusted(record.command, { most: 30 })),
          outcome(record.done),
        ),
      ],
      [
        'Resource',
        h('div', { class: 'stack' }, resourceLink(record), record.token ? h('code', { class: 'quiet' }, record.token) : null),
      ],
      ['Reason', h('span', { class: 'reason' }, untrusted(record.why, { most: 1000 }))],
    ]),
  );
  return table('Orders', ['When', 'Order', 'Resource, and the token of the grant', 'Reason'], rows, 'audit');
}

/** @param {boolean} done */
function outcome(done) {
  if (done) return h('span', { class: 'mark good' }, icon('ok'), 'done');
  return h('span', { class: 'mark warn', title: 'The holder had changed' }, icon('info'), 'too late: nothing done');
}

/** @param {Params} params @param {AuditPage} page */
function pages(params, { next }) {
  if (!next && !params.after) return null;
  return h(
    'nav',
    { class: 'pages', 'aria-label': 'More of the list', key: 'pages' },
    params.after ? h('a', { class: 'button', key: 'first', href: address({ ...params, after: '' }) }, 'Newest') : null,
    next ? h('a', { class: 'button', key: 'next', href: address({ ...params, after: next }) }, 'Older') : null,
  );
}

// The store behind the server: whether it is well, what it guarantees, and what to fix.

import { get } from './api.js';
import { h } from './dom.js';
import { icon } from './icons.js';
import { fact, row, section, table } from './parts.js';
import { onForget, state } from './state.js';
import { count, formatMs, number, untrusted } from './text.js';

/** @typedef {import('./types/api').Store} Store */

export const title = 'Store';

/** @type {Store | null} */
let found = null;
onForget(() => (found = null));

/** @param {Record<string, string>} _params @param {AbortSignal} signal */
export async function load(_params, signal) {
  found = /** @type {Store} */ ((await get('v1/store', {}, signal)).body);
}

/** @param {string} state */
const toneOf = (state) => (state === 'healthy' ? 'good' : state === 'down' ? 'bad' : 'warn');

export function draw() {
  if (!found)
    return h(
      'div',
      { class: 'page', key: 'store-loading' },
      h('h1', { tabindex: '-1' }, 'Store'),
      h('p', { class: 'loading', 'aria-busy': 'true' }, 'Asking the store…'),
    );
  const tone = toneOf(found.state);
  return h(
    'div',
    { class: 'page', key: 'store' },
    h(
      'div',
      { class: `sentence ${tone}` },
      icon(tone === 'good' ? 'ok' : tone === 'bad' ? 'stuck' : 'silent'),
      h(
        'h1',
        { tabindex: '-1', 'data-test': 'store-sentence' },
        h('span', { class: 'lead' }, 'Store: ', untrusted(found.sentence, { most: 300 }), '.'),
      ),
    ),
    h(
      'div',
      { class: 'columns' },
      h('div', { class: 'main-column' }, findings(found), nodes(found), calls(found)),
      h('aside', { class: 'side-column', 'aria-label': 'Guarantee' }, promise(found), abilities()),
    ),
  );
}

/** @param {Store} store */
function findings({ findings }) {
  if (!findings.length)
    return section(
      'findings',
      'Findings',
      h('div', { class: 'well', key: 'well' }, icon('ok', 'good'), h('p', null, 'No problems found.')),
    );
  const ranks = ['critical', 'warning', 'info'];
  const sorted = [...findings].sort((a, b) => ranks.indexOf(a.severity) - ranks.indexOf(b.severity));
  return section(
    'findings',
    ['Findings ', h('span', { class: 'badge' }, number(findings.length))],
    h(
      'ul',
      { class: 'list', key: 'list' },
      sorted.map((one) => {
        const [tone, name] =
          one.severity === 'critical' ? ['bad', 'stuck'] : one.severity === 'warning' ? ['warn', 'silent'] : ['calm', 'info'];
        return h(
          'li',
          { key: one.title, class: `box ${tone}`, 'data-test': 'finding' },
          icon(name),
          h(
            'div',
            null,
            h(
              'p',
              { class: 'strong' },
              h('span', { class: 'visually-hidden' }, `${one.severity}: `),
              untrusted(one.title, { most: 300 }),
            ),
            h('p', null, untrusted(one.detail, { most: 1000 })),
            one.fix ? h('p', null, h('strong', null, 'How to fix it: '), untrusted(one.fix, { most: 1000 })) : null,
          ),
        );
      }),
    ),
  );
}

/** @param {Store} store */
function nodes({ nodes, quorum }) {
  if (!nodes?.length) return null;
  const rows = nodes.map((node) =>
    row(node.name, [
      ['Node', h('span', { class: 'name' }, untrusted(node.name))],
      [
        'State',
        node.counts
          ? h('span', { class: 'mark good' }, icon('ok'), 'up')
          : node.stands_by
            ? h('span', { class: 'mark' }, 'standby')
            : h('span', { class: 'mark bad' }, icon('gone'), 'down or no vote'),
      ],
      ['Round trip', formatMs(node.round_trip_ms)],
      ['Clock', clock(node.clock_ahead_ms)],
      ['Why', node.why ? h('span', { class: 'reason' }, untrusted(node.why, { most: 400 })) : h('span', { class: 'quiet' }, '–')],
    ]),
  );
  return section(
    'nodes',
    'Nodes',
    quorum ? quorumBar(quorum) : null,
    table('Nodes', ['Node', 'State', 'Round trip', 'Clock', 'Why'], rows, 'nodes'),
  );
}

/** @param {import('./types/api').Quorum} quorum */
function quorumBar({ nodes, up, needed, margin }) {
  const tone = up < needed ? 'bad' : margin === 0 ? 'warn' : 'good';
  const say = `${up} of ${count(nodes, 'node')} up, ${needed} needed: ${up < needed ? 'no lease can be granted' : margin ? `${margin} to spare` : 'none to spare'}`;
  return h(
    'p',
    { class: `quorum ${tone}`, key: 'quorum', 'data-test': 'quorum' },
    h(
      'span',
      { class: 'pips', 'aria-hidden': 'true' },
      Array.from({ length: Math.min(nodes, 15) }, (_, index) =>
        h('span', { key: index, class: `${index < up ? 'up' : 'down'} ${index === needed - 1 ? 'needed' : ''}` }),
      ),
    ),
    h('span', null, say, '.'),
  );
}

/** @param {number | null | undefined} ahead */
function clock(ahead) {
  if (ahead === null || ahead === undefined) return h('span', { class: 'quiet' }, 'not known');
  const text = Math.abs(ahead) < 1 ? 'the same' : `${formatMs(Math.abs(ahead))} ${ahead > 0 ? 'ahead' : 'behind'}`;
  return h('span', { class: Math.abs(ahead) > 500 ? 'mark warn' : '' }, Math.abs(ahead) > 500 ? icon('late') : null, text);
}

/** @param {Store} store */
function calls({ calls: all }) {
  const calls = all.filter(({ count, errors }) => count || errors);
  if (!calls.length)
    return section(
      'calls',
      'Calls',
      h('p', { class: 'quiet', key: 'none' }, 'This server has not asked the store for anything yet.'),
    );
  const rows = calls.map((call) =>
    row(call.verb, [
      ['Verb', h('span', { class: 'strong' }, untrusted(call.verb))],
      ['Calls', number(call.count)],
      ['Failed', h('span', { class: call.errors ? 'bad-text strong' : 'quiet' }, number(call.errors))],
      ['Median', formatMs(call.p50_ms)],
      ['p99', formatMs(call.p99_ms)],
    ]),
  );
  return section('calls', 'Calls of this server', table('Calls', ['Verb', 'Calls', 'Failed', 'Median', 'p99'], rows, 'calls'));
}

/** @param {Store} store */
function promise({ backend, level, because }) {
  const { info } = state;
  return section(
    'promise',
    'Guarantee',
    h(
      'dl',
      { class: 'facts', key: 'facts' },
      fact('Store', untrusted(backend)),
      fact('Level', h('strong', null, untrusted(level.replaceAll('_', ' ')))),
      fact('Because', untrusted(because, { most: 1000 })),
      info?.store.tokens_break_when
        ? fact('A token can go back when', untrusted(info.store.tokens_break_when, { most: 1000 }))
        : null,
      info ? fact('If this server stops', info.survives_server ? 'leases stay' : 'its leases end with it') : null,
      info ? fact('Id', h('code', null, untrusted(info.store.id))) : null,
      info ? fact('Server', untrusted(info.server), ', API ', untrusted(info.api)) : null,
    ),
  );
}

/** @type {[string, string][]} */
const ABILITIES = [
  ['queue', 'blocked claims can queue'],
  ['shares', 'permits and readers'],
  ['handover', 'a claim can take over while others wait'],
  ['keep_for', 'a released resource can stay closed'],
  ['own_ttl', 'each claim has a ttl of its own'],
  ['orders', 'operators can give orders'],
];

function abilities() {
  const { info } = state;
  if (!info) return null;
  return section(
    'abilities',
    'What it can do',
    h(
      'ul',
      { class: 'abilities', key: 'list' },
      ABILITIES.map(([field, text]) => {
        const has = info.capabilities[field];
        return h(
          'li',
          { key: field, class: has ? '' : 'quiet' },
          icon(has ? 'granted' : 'gone', has ? 'good' : ''),
          h('span', null, has ? text : `not: ${text}`),
        );
      }),
    ),
  );
}

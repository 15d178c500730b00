// The first page: the sentence, then what needs somebody, then the rest.

import { get } from './api.js';
import { attentionRow } from './attention.js';
import { openBulk } from './bulk.js';
import { rates } from './chart.js';
import { h } from './dom.js';
import { icon } from './icons.js';
import { kinds, lastHour, numbers, storeCard } from './numbers.js';
import { button, empty, firstCommand, mark, resourceLink, section, since } from './parts.js';
import { mayOrder, onForget, state } from './state.js';
import { keepOrder } from './keep_order.js';
import { count, number, span, untrusted, visible, when } from './text.js';
import { asides, changeWords, headline, severity, storeSentence } from './words.js';

/** @typedef {import('./types/api').Overview} Overview */
/** @typedef {import('./types/api').Item} Item */
/** @typedef {import('./types/api').Deadlock} Deadlock */

// What needs somebody besides what is stuck, the worst first. `count` is the field of the overview that says how many there are.
const GROUPS = [
  { only: 'gone', count: 'gone', title: 'Held by a process that is gone' },
  { only: 'unreadable', count: 'unreadable', title: 'Cannot be read' },
  { only: 'unusual', count: 'unusual', title: 'Held longer than usual for its kind' },
  { only: 'paused', count: 'paused', title: 'Paused' },
];
const GROUP_ROWS = 10;

/** @type {Map<string, {items: Item[], base: number}>} */
const groups = new Map();
/** @type {Deadlock[]} */
let deadlocks = [];
onForget(() => {
  groups.clear();
  deadlocks = [];
});

/** The kind of the line in the list of changes that says that some are missing. */
export const GAP = 'gap';

/** @param {import('./types/api').Change} change */
export const changeKey = ({ at, kind, key, token }) => `${at} ${kind} ${key} ${token ?? ''}`;

export const title = 'Overview';

/** @param {Record<string, string>} _params @param {AbortSignal} signal */
export async function load(_params, signal) {
  const known = /** @type {Record<string, any>} */ (state.overview?.body ?? {});
  const wanted = GROUPS.filter((group) => !state.overview || known[group.count] || groups.has(group.only));
  const asked = wanted.map(async ({ only }) => {
    /** @type {{body: Overview, base: number}} */
    const { body, base } = await get('v1/overview', { only, limit: GROUP_ROWS }, signal);
    if (body.items.length) groups.set(only, { items: body.items, base: base - body.sampled_ms_ago });
    else groups.delete(only);
  });
  const cycles = async () => {
    if (state.overview && !known.deadlocks && !deadlocks.length) return;
    /** @type {{body: {deadlocks: Deadlock[]}}} */
    const { body } = await get('v1/deadlocks', {}, signal);
    deadlocks = body.deadlocks;
  };
  await Promise.all([...asked, cycles()]);
}

export function draw() {
  if (!state.overview)
    return h('p', { class: 'loading', key: 'loading', 'aria-busy': 'true' }, 'Reading the state of the leases…');
  const { body, base } = state.overview;
  return h(
    'div',
    { key: 'overview', class: 'overview' },
    sentence(body, base),
    h(
      'div',
      { class: 'columns' },
      h(
        'div',
        { class: 'main-column' },
        stuck(body, base),
        deadlockSection(),
        ...otherGroups(body),
        ledLine(body),
        nothingElse(body),
        recent(),
        rates(body.rates),
      ),
      h('aside', { class: 'side-column', 'aria-label': 'Numbers' }, numbers(body), lastHour(body), storeCard(body), kinds(body)),
    ),
  );
}

/** @param {Overview} body @param {number} base */
function sentence(body, base) {
  const tone = severity(body);
  const { oldest_wait: oldest } = body;
  const wait =
    oldest && (body.stuck || body.waiting)
      ? [
          body.stuck ? '; the oldest wait is ' : '; the longest wait is ',
          since(`wait ${oldest.key}`, oldest.ms, base),
          ' (',
          resourceLink(oldest, { most: 60 }),
          ')',
        ]
      : [];
  const rest = asides(body).map((text) => `${text}. `);
  const store = storeSentence(body);
  return h(
    'div',
    { class: `sentence ${tone}`, key: 'sentence' },
    icon(tone === 'good' ? 'ok' : tone === 'bad' ? 'stuck' : 'silent'),
    h(
      'h1',
      { id: 'sentence', tabindex: '-1' },
      h('span', { class: 'lead' }, headline(body), ...wait, '. '),
      h('span', { class: 'rest' }, ...rest, store ? ['Store: ', untrusted(store, { most: 200 }), '.'] : null),
    ),
  );
}

/** What the sentence says, without what changes each second: for screen readers. @param {Overview} body */
export function spoken(body) {
  const oldest = body.stuck && body.oldest_wait ? `, the oldest wait is for ${visible(body.oldest_wait.resource, 80)}` : '';
  return `${[headline(body) + oldest, ...asides(body).filter((text) => !text.includes('held,'))].join('. ')}. ${body.store ? `Store: ${visible(body.store.sentence, 200)}.` : ''}`;
}

/** @param {Overview} body @param {number} base */
function stuck(body, base) {
  if (!body.held && !body.waiting && !body.paused && !body.unreadable)
    return section(
      'stuck',
      'Take the first lease',
      empty(
        'No resource is held, and no claim waits.',
        h('p', null, 'Run a command while holding a lease, and it appears here:'),
        firstCommand(),
        h('p', { class: 'quiet' }, 'Run it twice: the second one waits, and you see the queue.'),
      ),
    );
  if (!body.stuck) return null;
  const items = keepOrder('stuck', body.items);
  const more = body.stuck - body.items.length;
  return section(
    'stuck',
    ['Stuck ', badge(body.stuck), h('span', { class: 'why' }, `a claim has waited for over ${span(body.stuck_after_ms)}`)],
    h(
      'ul',
      { class: 'list', key: 'list', 'data-keep-order': 'stuck' },
      items.map((item) => attentionRow(item, base, { test: 'stuck-row', without: 'stuck' })),
    ),
    more > 0
      ? h('p', { key: 'more' }, h('a', { href: '#/resources?only=stuck' }, `All ${number(body.stuck)} stuck resources`))
      : null,
  );
}

function deadlockSection() {
  if (!deadlocks.length) return null;
  return section(
    'deadlocks',
    ['Possible deadlocks ', badge(deadlocks.length)],
    h(
      'ul',
      { class: 'list', key: 'list' },
      deadlocks.slice(0, GROUP_ROWS).map((one, index) =>
        h(
          'li',
          { key: one.resources.map(({ key }) => key).join(' ') || index, class: 'attention bad', 'data-test': 'deadlock' },
          h('p', { class: 'say' }, icon('deadlock', 'bad'), ' ', untrusted(one.sentence, { most: 600 })),
          h(
            'ol',
            { class: 'cycle', 'aria-label': 'Resources of the cycle' },
            one.resources.map((resource) => h('li', { key: resource.key }, resourceLink(resource, { most: 60 }))),
          ),
          h(
            'p',
            { class: 'quiet small' },
            'Possible, because hosts and process ids are what the processes say of themselves. Ask one of them to finish, or wait until one of them gives up.',
          ),
        ),
      ),
    ),
  );
}

/** Long waits that are meant to be, or so it seems. @param {Overview} body */
function ledLine({ led = 0 }) {
  if (!led) return null;
  const holds = led === 1 ? 'resource has long waits and is' : 'resources have long waits and are';
  return h(
    'p',
    { class: 'quiet', key: 'led', 'data-test': 'led' },
    `${number(led)} ${holds} not counted as stuck, because a holder that renews and has a note may be the leader of an election. `,
    h('a', { href: '#/resources?only=leading' }, 'Elections'),
  );
}

/** @param {Overview} body */
function otherGroups(body) {
  // A resource is shown once, where it is worst.
  const shown = new Set(body.items.map(({ key }) => key));
  return GROUPS.map(({ only, title, count: field }) => {
    const group = groups.get(only);
    const total = /** @type {Record<string, any>} */ (body)[field] ?? 0;
    const rows = keepOrder(only, group?.items.filter(({ key }) => !shown.has(key)) ?? []);
    if (!group || !total) return null;
    // All of them are shown above: only the order for all of them at once is left to show.
    if (!rows.length && total <= group.items.length && !(only === 'gone' && mayOrder())) return null;
    const above = group.items.length - rows.length;
    rows.forEach(({ key }) => shown.add(key));
    return section(
      only,
      [`${title} `, badge(total)],
      only === 'gone' && mayOrder()
        ? h(
            'p',
            { class: 'section-tools', key: 'bulk' },
            button('Evict all whose process is gone…', () => openBulk(), { test: 'bulk-evict' }),
          )
        : null,
      h(
        'ul',
        { class: 'list', key: 'list', 'data-keep-order': only },
        rows.map((item) => attentionRow(item, group.base, { without: only })),
      ),
      above > 0
        ? h(
            'p',
            { class: 'quiet small', key: 'above' },
            `${rows.length ? `${count(above, 'more')[0]} more` : count(above, 'resource')} of these ${above === 1 ? 'is' : 'are'} shown above.`,
          )
        : null,
      total > group.items.length
        ? h('p', { key: 'all' }, h('a', { href: `#/resources?only=${only}` }, `All ${number(total)}`))
        : null,
    );
  });
}

/** What this page has seen happen. */
function recent() {
  if (!state.recent.length) return null;
  return section(
    'recent',
    'Seen since this page was opened',
    h(
      'ol',
      { class: 'feed', key: 'list' },
      state.recent.map((change) => {
        if (change.kind === GAP) return missing(change);
        const words = changeWords(change.kind);
        return h(
          'li',
          { key: changeKey(change) },
          when(change.at),
          mark({ icon: words.icon, tone: words.tone, text: words.name }),
          resourceLink(change, { most: 60 }),
          change.by ? h('span', { class: 'quiet' }, 'by ', untrusted(change.by, { most: 40 })) : null,
        );
      }),
    ),
  );
}

/** @param {import('./types/api').Change} change */
function missing(change) {
  const what = change.token ? count(Number(change.token), 'change') : 'Some changes';
  return h(
    'li',
    { key: changeKey(change), 'data-test': 'gap' },
    when(change.at),
    h(
      'span',
      { class: 'mark warn' },
      icon('info'),
      `${what} before this are not listed: there were too many, or the stream was cut.`,
    ),
  );
}

/** The good news, in one line. @param {Overview} body */
function nothingElse(body) {
  if (!body.held && !body.waiting) return null;
  const none = [];
  if (!body.stuck) none.push('stuck');
  if (body.deadlocks === 0) none.push('deadlocked');
  if (body.gone === 0) none.push('held by a process that is gone');
  if (body.unusual === 0) none.push('held for longer than usual');
  if (!body.paused) none.push('paused');
  if (!body.unreadable) none.push('unreadable');
  if (!none.length) return null;
  const list = none.length > 1 ? `${none.slice(0, -1).join(', ')} or ${none.at(-1)}` : none[0];
  const all = !body.stuck && !body.gone && !body.unusual && !body.paused && !body.deadlocks && !body.unreadable;
  if (!all) return h('p', { class: 'nothing quiet', key: 'nothing' }, icon('ok', 'good'), ` No resource is ${list}.`);
  return section(
    'all-well',
    'All is well',
    h(
      'div',
      { class: 'well' },
      icon('ok', 'good'),
      h(
        'div',
        null,
        h('p', null, `No resource is ${list}.`),
        body.oldest_hold
          ? h(
              'p',
              { class: 'quiet' },
              'The longest hold is ',
              resourceLink(body.oldest_hold, { most: 60 }),
              '. ',
              h('a', { href: '#/resources?sort=hold&only=held' }, 'See all that are held'),
            )
          : null,
      ),
    ),
  );
}

/** @param {number} n */
function badge(n) {
  return h('span', { class: 'badge' }, number(n));
}

// Charts as SVG. Each has a title, and its numbers as a table behind it.

import { h } from './dom.js';
import { section } from './parts.js';
import { clockTime, count, formatMs, number } from './text.js';

/** @typedef {import('./types/api').Rates} Rates */
/** @typedef {import('./types/api').Timed} Timed */

const WIDTH = 300;
const HEIGHT = 44;
const MINUTES = 60;

/** @type {['granted' | 'queued' | 'lost', string, string][]} */
const SHOWN = [
  ['granted', 'Granted', ''],
  ['queued', 'Queued', ''],
  ['lost', 'Lost', 'bad'],
];

/** What happened in each minute. @param {Rates | undefined} rates */
export function rates(rates) {
  if (!rates) return null;
  const minutes = Math.max(rates.granted.length, rates.lost.length, rates.queued.length);
  if (!minutes) return null;
  const each = rates.minute_ms === 60_000 ? 'minute' : `${rates.minute_ms / 1000} s`;
  return section(
    'rates',
    `Per ${each}`,
    h(
      'div',
      { class: 'charts three', key: 'charts' },
      SHOWN.map(([field, name, tone]) => bars(field, name, rates[field] ?? [], tone)),
    ),
    h('details', { class: 'more', key: 'table' }, h('summary', null, 'As a table'), rateTable(rates, minutes)),
  );
}

/** @param {string} id @param {string} name @param {number[]} values @param {string} tone */
function bars(id, name, values, tone) {
  const most = Math.max(...values, 1);
  const total = values.reduce((sum, value) => sum + value, 0);
  const slot = WIDTH / MINUTES;
  const first = MINUTES - values.length;
  const say = total
    ? `${name}: ${number(total)} in ${count(values.length, 'minute')}, ${number(most)} at most in one`
    : `${name}: none in ${count(values.length, 'minute')}`;
  return h(
    'figure',
    { class: 'chart', key: id },
    h(
      'figcaption',
      null,
      h('span', null, name),
      h(
        'span',
        { class: total && tone ? `${tone}-text strong` : 'quiet' },
        total ? `${number(total)} · peak ${number(most)}` : 'none',
      ),
    ),
    h(
      'svg',
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', preserveAspectRatio: 'none', class: tone, 'aria-label': say },
      h('title', null, say),
      h('line', { x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5, class: 'axis' }),
      values.map((value, index) => {
        const height = value ? Math.max(2, (value / most) * (HEIGHT - 4)) : 0;
        return h('rect', {
          key: index,
          x: ((first + index) * slot).toFixed(2),
          width: (slot - 1).toFixed(2),
          y: (HEIGHT - 1 - height).toFixed(2),
          height: height.toFixed(2),
        });
      }),
    ),
  );
}

/** @param {Rates} rates @param {number} minutes */
function rateTable(rates, minutes) {
  /** @type {['granted' | 'released' | 'ended' | 'queued' | 'lost', string][]} */
  const columns = [
    ['granted', 'Granted'],
    ['released', 'Released'],
    ['queued', 'Queued'],
    ['lost', 'Lost'],
  ];
  if (rates.ended?.some(Boolean)) columns.splice(2, 0, ['ended', 'Released or expired']);
  const at = (/** @type {number[]} */ values, /** @type {number} */ ago) => values[values.length - 1 - ago];
  return h(
    'div',
    { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Numbers of each minute' },
    h(
      'table',
      { class: 'small-table' },
      h(
        'thead',
        null,
        h(
          'tr',
          null,
          ['Minutes ago', ...columns.map(([, text]) => text)].map((name) => h('th', { scope: 'col', key: name }, name)),
        ),
      ),
      h(
        'tbody',
        null,
        Array.from({ length: minutes }, (_, ago) =>
          h(
            'tr',
            { key: ago },
            h('th', { scope: 'row' }, ago === 0 ? 'this one' : String(ago)),
            columns.map(([name]) => h('td', { key: name }, number(at(rates[name] ?? [], ago) ?? 0))),
          ),
        ),
      ),
    ),
  );
}

const TALL = 96;

/** Durations over time, as points, with the median. @param {string} id @param {string} name @param {Timed[]} points */
export function durations(id, name, points) {
  if (!points.length)
    return h(
      'figure',
      { class: 'chart', key: id },
      h('figcaption', null, h('span', null, name), h('span', { class: 'quiet' }, 'none seen yet')),
    );
  const sorted = points.map(({ ms }) => ms).sort((a, b) => a - b);
  const [median, high, most] = [quantile(sorted, 0.5), quantile(sorted, 0.99), sorted.at(-1) ?? 1];
  const times = points.map(({ at }, index) => Date.parse(at) || index);
  const [from, to] = [Math.min(...times), Math.max(...times)];
  const x = (/** @type {number} */ time) => (to > from ? 4 + ((time - from) / (to - from)) * (WIDTH - 8) : WIDTH / 2).toFixed(1);
  const y = (/** @type {number} */ ms) => (TALL - 4 - (ms / Math.max(most, 1)) * (TALL - 10)).toFixed(1);
  const say = `${name}: ${number(points.length)} seen, median ${formatMs(median)}, p99 ${formatMs(high)}, longest ${formatMs(most)}`;
  return h(
    'figure',
    { class: 'chart', key: id },
    h(
      'figcaption',
      null,
      h('span', null, name),
      h('span', { class: 'quiet' }, `median ${formatMs(median)} · longest ${formatMs(most)}`),
    ),
    h(
      'svg',
      { viewBox: `0 0 ${WIDTH} ${TALL}`, role: 'img', class: 'points', 'aria-label': say },
      h('title', null, say),
      h('line', { x1: 0, x2: WIDTH, y1: TALL - 0.5, y2: TALL - 0.5, class: 'axis' }),
      h('line', { x1: 0, x2: WIDTH, y1: y(median), y2: y(median), class: 'median' }),
      points.map(({ ms }, index) => h('circle', { key: index, cx: x(times[index]), cy: y(ms), r: 2.2 })),
    ),
    h(
      'details',
      { class: 'more' },
      h('summary', null, 'As a table'),
      h(
        'div',
        { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': name },
        h(
          'table',
          { class: 'small-table' },
          h('thead', null, h('tr', null, h('th', { scope: 'col' }, 'At'), h('th', { scope: 'col' }, 'Duration'))),
          h(
            'tbody',
            null,
            points
              .slice(-100)
              .reverse()
              .map(({ at, ms }, index) =>
                h('tr', { key: index }, h('th', { scope: 'row' }, clockTime(at)), h('td', null, formatMs(ms))),
              ),
          ),
        ),
      ),
    ),
  );
}

/** @param {number[]} sorted @param {number} part */
function quantile(sorted, part) {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? 0;
}

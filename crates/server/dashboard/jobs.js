// The schedules of `leasehold cron`, and who leads the elections of `leasehold elect`.

import { get } from './api.js';
import { h } from './dom.js';
import { icon } from './icons.js';
import { command, empty, holder, holderState, linkTo, resourceLink, row, section, since, table } from './parts.js';
import { onForget } from './state.js';
import { count, number, untrusted, when, ZONE } from './text.js';

/** @typedef {import('./types/api').Jobs} Jobs */
/** @typedef {import('./types/api').Schedule} Schedule */
/** @typedef {import('./types/api').Election} Election */

export const title = 'Jobs';

// What needs somebody is first, so the rows that are left out need nobody.
const ROWS = 200;

/** @type {{body: Jobs, base: number} | null} */
let found = null;
onForget(() => (found = null));

/** @param {Record<string, string>} _params @param {AbortSignal} signal */
export async function load(_params, signal) {
  found = await get('v1/jobs', {}, signal);
}

export function draw() {
  return h(
    'div',
    { class: 'page', key: 'jobs' },
    h(
      'div',
      { class: 'page-head' },
      h('h1', { tabindex: '-1' }, 'Jobs'),
      h('p', { class: 'quiet' }, found ? summary(found.body) : ''),
    ),
    found
      ? [schedules(found.body.schedules), elections(found.body.elections, found.base)]
      : h('p', { class: 'loading', key: 'loading', 'aria-busy': 'true' }, 'Reading the schedules…'),
  );
}

/** @param {Jobs} jobs */
function summary({ schedules, elections }) {
  const bad = schedules.filter(isBad).length;
  return `${count(schedules.length, 'schedule')}${bad ? `, ${number(bad)} with a failed or missed tick` : schedules.length ? ', all well' : ''}; ${count(elections.length, 'election')}.`;
}

/** @param {Schedule} job */
const isBad = ({ last_outcome }) => last_outcome === 'failed' || last_outcome === 'missed';

/** @type {Record<string, [string, string, string]>} icon, tone, text */
const OUTCOMES = {
  ok: ['ok', 'good', 'succeeded'],
  succeeded: ['ok', 'good', 'succeeded'],
  failed: ['gone', 'bad', 'failed'],
  missed: ['silent', 'bad', 'missed'],
  running: ['renewing', 'calm', 'running'],
  never: ['dot', 'plain', 'has not run yet'],
};

/** @param {Schedule[]} all */
function schedules(all) {
  if (!all.length)
    return section(
      'schedules',
      'Schedules',
      empty(
        'No schedule is known.',
        h('p', { key: 'how' }, 'A schedule runs a command on exactly one of the hosts that have it:'),
        command("leasehold cron '0 2 * * *' nightly ./report", 'that runs a schedule'),
      ),
    );
  // What needs somebody is first.
  const sorted = [...all].sort((a, b) => Number(isBad(b)) - Number(isBad(a)));
  const rows = sorted.slice(0, ROWS).map((job) => {
    const [name, tone, text] = OUTCOMES[job.last_outcome] ?? ['dot', 'plain', job.last_outcome];
    return row(job.name, [
      [
        'Job',
        h(
          'div',
          { class: 'resource-cell' },
          h('a', { href: linkTo({ resource: job.resource, key: job.resource }), class: 'name' }, untrusted(job.name)),
          h('code', { class: 'quiet small' }, untrusted(job.schedule)),
          h(
            'span',
            { class: 'reason small' },
            untrusted(job.sentence, { most: 300 }),
            job.error && !job.sentence.includes(job.error) ? [' ', untrusted(job.error, { most: 300 })] : null,
          ),
        ),
      ],
      [
        'Last tick',
        h('div', { class: 'stack' }, h('span', { class: `mark ${tone}` }, icon(name), untrusted(text)), when(job.last_tick_at)),
      ],
      ['Next tick', when(job.next_at)],
      ['Failed', bad(job.failures, job.recorded)],
      ['Missed', bad(job.missed, job.recorded)],
      ['Running on', job.holder ? holder(job.holder) : h('span', { class: 'quiet' }, 'not running')],
    ]);
  });
  return section(
    'schedules',
    'Schedules',
    table('Schedules', ['Job', 'Last tick', 'Next tick', 'Failed', 'Missed', 'Running on'], rows, 'jobs'),
    more(all.length, 'schedule'),
    h('p', { class: 'quiet small', key: 'zone' }, `Times are in ${ZONE}.`),
  );
}

/** @param {number} all @param {string} what */
function more(all, what) {
  return all > ROWS ? h('p', { class: 'quiet', key: 'more' }, `and ${count(all - ROWS, `more ${what}`)}`) : null;
}

/** @param {number | undefined} n @param {number | undefined} all */
function bad(n, all) {
  return n === undefined || n === null
    ? h('span', { class: 'quiet' }, '–')
    : h(
        'span',
        { class: n ? 'bad-text strong' : 'quiet', title: all === undefined ? undefined : `of the last ${count(all, 'tick')}` },
        number(n),
      );
}

/** @param {Election[]} all @param {number} base */
function elections(all, base) {
  if (!all.length)
    return section(
      'elections',
      'Elections',
      empty(
        'Nobody leads an election.',
        h('p', { key: 'how' }, 'An election keeps a command running on one of the hosts that take part:'),
        command('leasehold elect scheduler -- ./scheduler', 'that takes part in an election'),
      ),
    );
  const rows = all.slice(0, ROWS).map((one) =>
    row(one.key, [
      ['Election', resourceLink(one)],
      [
        'Leader',
        h(
          'div',
          { class: 'stack' },
          holder(one.leader),
          holderState(
            one.key,
            {
              holder: one.leader,
              token: one.token,
              weight: 1,
              held_for_ms: one.held_for_ms,
              remaining_ms: one.remaining_ms,
              state: one.state,
            },
            base,
          ),
        ),
      ],
      ['Leads for', since(`leads ${one.key} ${one.token}`, one.held_for_ms, base)],
      ['Candidates', number(one.candidates)],
      ['Note', one.note ? untrusted(one.note, { most: 120 }) : h('span', { class: 'quiet' }, '–')],
    ]),
  );
  return section(
    'elections',
    'Elections',
    table('Elections', ['Election', 'Leader', 'Leads for', 'Candidates', 'Note'], rows, 'elections'),
    more(all.length, 'election'),
  );
}

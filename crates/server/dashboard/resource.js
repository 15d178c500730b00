// One resource: who holds it, who waits, what to do, what has happened.

import { openAction } from './action_dialog.js';
import { isForHolder, KINDS, seenOf } from './actions.js';
import { get } from './api.js';
import { stepBody } from './attention.js';
import { durations } from './chart.js';
import { countdown } from './clock.js';
import { h } from './dom.js';
import { holdersSection, queueSection } from './holders.js';
import { icon } from './icons.js';
import { box, button, command, fact, holder, mark, nameOf, section } from './parts.js';
import { onForget, readOnlyBecause, state } from './state.js';
import { count, number, quoted, untrusted, visible } from './text.js';
import { AUDIT_SHOWN, auditList, timeline } from './timeline.js';
import { holdersOf, marksOf, modeOf } from './words.js';

/** @typedef {import('./types/api').Snapshot} Snapshot */
/** @typedef {import('./types/api').Item} Item */
/** @typedef {import('./types/api').HeldBy} HeldBy */
/** @typedef {Record<string, string>} Params */
/** @typedef {import('./types/api').Timeline} Timeline */
/** @typedef {import('./types/api').AuditPage} AuditPage */
/** @typedef {{for: string, snapshot: Snapshot, base: number, item: Item | null, itemBase: number, timeline: Timeline | null, audit: AuditPage | null}} Found */

// The past is read again when the stream says that the resource has changed, and after this time: another operator's order may have done
// nothing, and another server may have given it.
const PAST_MS = 30_000;

/** @type {Found | null} */
let found = null;
/** The key of the resource whose past was read last. */
let pastKey = '';
let pastReadAt = -Infinity;
onForget(() => (found = null));

/** The stream reports changes of these resources. @param {string[] | null} keys `null`: of any */
export function onChanges(keys) {
  if (!keys || keys.includes(pastKey)) pastReadAt = -Infinity;
}

/** @param {Params} params */
export const title = (params) => visible(params.name ?? params.key ?? 'Resource', 60);

/** @param {Params} params @returns {Record<string, string>} */
const nameIn = ({ name, key }) => (name ? { name } : { key: key ?? '' });

/** @param {Params} params @param {AbortSignal} signal @param {boolean} again */
export async function load(params, signal, again) {
  const name = nameIn(params);
  const before = found?.for === JSON.stringify(name) ? found : null;
  /** @type {{body: Snapshot, base: number}} */
  const { body: snapshot, base } = await get('v1/resource', name, signal);
  const isPastNew =
    !again && before && pastKey === snapshot.key && state.connection === 'live' && performance.now() - pastReadAt < PAST_MS;
  if (!isPastNew) [pastKey, pastReadAt] = [snapshot.key, performance.now()];
  const [item, timeline, audit] = await Promise.all([
    optional(itemOf(snapshot, signal)),
    isPastNew
      ? before.timeline
      : optional(/** @type {Promise<{body: Timeline}>} */ (get('v1/timeline', nameOf(snapshot), signal))).then(bodyOf),
    isPastNew
      ? before.audit
      : optional(
          /** @type {Promise<{body: AuditPage}>} */ (get('v1/audit', { key: snapshot.key, limit: AUDIT_SHOWN + 1 }, signal)),
        ).then(bodyOf),
  ]);
  // Its data is of the page, or of the caller, from before.
  if (signal.aborted) {
    pastReadAt = -Infinity;
    return;
  }
  found = { for: JSON.stringify(name), snapshot, base, item: item?.item ?? null, itemBase: item?.base ?? base, timeline, audit };
}

/**
 * What the page can do without: its refusal (by a server that samples nothing, or for this caller) must not hide the rest.
 * @template T @param {Promise<T>} asked @returns {Promise<T | null>}
 */
async function optional(asked) {
  try {
    return await asked;
  } catch {
    return null;
  }
}

/** @template T @param {{body: T} | null} answer */
const bodyOf = (answer) => answer?.body ?? null;

/** What the sample says of it: the state of its holders, and the steps. @param {Snapshot} snapshot @param {AbortSignal} signal */
async function itemOf({ key }, signal) {
  /** @type {{body: import('./types/api').Overview, base: number}} */
  const { body, base } = await get('v1/overview', { key }, signal);
  return { item: body.items[0] ?? null, base: base - body.sampled_ms_ago };
}

/** @param {Params} params */
export function draw(params) {
  const name = params.name ?? params.key ?? '';
  const isThis = found?.for === JSON.stringify(nameIn(params));
  if (!found || !isThis)
    return h(
      'div',
      { class: 'page', key: 'resource-loading' },
      h('h1', { tabindex: '-1', class: 'name' }, untrusted(name, { most: 2000 })),
      h('p', { class: 'loading', 'aria-busy': 'true' }, 'Reading the resource…'),
    );
  const { snapshot, item } = found;
  const known = item ? holdersOf(item) : [];
  const held = snapshot.holders.map((one) => ({
    ...one,
    state: known.find(({ token }) => token === one.token)?.state ?? guess(one),
  }));
  return h(
    'div',
    { class: 'page', key: `resource ${snapshot.key}` },
    head(snapshot, item, held),
    h(
      'div',
      { class: 'columns' },
      h(
        'div',
        { class: 'main-column' },
        snapshot.unreadable
          ? box(
              'bad',
              'unreadable',
              h('p', { class: 'strong' }, 'It cannot be read.'),
              h('p', null, untrusted(snapshot.unreadable, { most: 2000 })),
            )
          : null,
        steps(found),
        holdersSection(
          snapshot,
          held,
          found.base,
          (item?.steps ?? []).flatMap((step) => (isForHolder(step) ? (step.token ?? []) : [])),
        ),
        queueSection(snapshot, found.base),
        timeline(found.timeline),
      ),
      h(
        'aside',
        { class: 'side-column', 'aria-label': 'More about the resource' },
        orders(found),
        facts(snapshot),
        charts(found),
        auditList(found.audit, snapshot.key),
        terminal(snapshot),
      ),
    ),
  );
}

/** Before it is in a sample: its state from what the store says, as the server tells it. @param {HeldBy} held */
function guess({ ttl_ms, remaining_ms }) {
  return ttl_ms && remaining_ms < ttl_ms / 6 ? 'silent' : null;
}

/** @param {Snapshot} snapshot @param {Item | null} item @param {HeldBy[]} held */
function head(snapshot, item, held) {
  const marks = item ? marksOf(item) : [];
  return h(
    'div',
    { class: 'page-head' },
    h('p', { class: 'crumb small' }, h('a', { href: '#/resources' }, 'Resources')),
    h('h1', { tabindex: '-1', class: 'name' }, untrusted(snapshot.resource, { most: 4000 })),
    h('p', { class: 'summary', 'data-test': 'summary' }, summary(snapshot, held)),
    h(
      'div',
      { class: 'marks' },
      marks.map((one) => mark(one)),
    ),
  );
}

/** @param {Snapshot} snapshot @param {HeldBy[]} held */
function summary(snapshot, held) {
  const locks = snapshot.foreign ?? [];
  const parts = [];
  if (snapshot.unreadable) parts.push('It cannot be read.');
  else if (held.length === 1 && held[0].kept) parts.push('Nobody holds it, and it is kept closed for a while.');
  else if (held.length === 1) parts.push('Held by ', holder(held[0].holder, 80), '.');
  else if (snapshot.holder_count) parts.push(`Held by ${count(snapshot.holder_count, 'process', 'processes')}.`);
  else if (locks.length) parts.push('Held by a lock of another program.');
  else parts.push('Nobody holds it.');
  if (snapshot.queue_length)
    parts.push(` ${count(snapshot.queue_length, 'claim')} ${snapshot.queue_length === 1 ? 'waits' : 'wait'}.`);
  return parts;
}

/** @param {Found} found */
function steps({ item, itemBase }) {
  const all = item?.steps ?? [];
  if (!item || !all.length) return null;
  const next = item.next_step;
  return section(
    'steps',
    'Next steps',
    h('p', { class: 'quiet small', key: 'order' }, 'In the order of the runbook: prefer the first that helps.'),
    h(
      'ol',
      { class: 'steps numbered', key: 'steps' },
      all.map((step, index) => {
        const isNext = next?.step === step.step && next.token === step.token;
        return h(
          'li',
          {
            key: `${step.step} ${step.token ?? index}`,
            class: isNext ? 'is-next' : '',
            'data-test': isNext ? 'next-step' : 'step',
            'data-step': step.step,
          },
          stepBody(item, step, itemBase, isNext),
        );
      }),
    ),
  );
}

/** @param {Found} found */
function orders({ snapshot, base }) {
  const why = readOnlyBecause();
  if (why)
    return section(
      'orders',
      'Orders',
      h('p', { class: 'quiet', key: 'why', 'data-test': 'read-only' }, icon('lock'), ` Read-only: ${why}.`),
    );
  const give = (/** @type {string} */ action, more = {}) =>
    button(KINDS[action].button, () => openAction({ action, on: snapshot, seen: seenOf(snapshot, base), ...more }), {
      test: `do-${action}`,
    });
  return section(
    'orders',
    'Orders',
    h(
      'div',
      { class: 'buttons start', key: 'buttons' },
      typeof snapshot.paused_for_ms === 'number' ? give('resume') : give('pause'),
      snapshot.capacity > 1 && snapshot.capacity < 0xffff_fffe ? give('resize', { capacity: snapshot.capacity }) : null,
    ),
    h('p', { class: 'quiet small', key: 'audit' }, 'Every order needs a reason, and is in the audit trail.'),
  );
}

/** @param {Snapshot} snapshot */
function facts(snapshot) {
  return section(
    'facts',
    'Facts',
    h(
      'dl',
      { class: 'facts', key: 'facts' },
      fact('Mode', modeOf(snapshot) || 'not in use'),
      snapshot.capacity > 1 ? fact('Capacity', snapshot.capacity >= 0xffff_fffe ? 'unlimited' : number(snapshot.capacity)) : null,
      snapshot.last_token ? fact('Newest token', h('code', null, snapshot.last_token)) : null,
      typeof snapshot.paused_for_ms === 'number'
        ? fact(
            'Paused for',
            h('span', {
              class: 'whole count',
              tick: countdown(`pause ${snapshot.key}`, snapshot.paused_for_ms, found?.base ?? 0),
            }),
          )
        : null,
      snapshot.resource === snapshot.key ? null : fact('Key', h('code', { class: 'anywhere' }, visible(snapshot.key, 2000))),
    ),
  );
}

/** @param {Found} found */
function charts({ timeline }) {
  if (!timeline) return null;
  return section(
    'charts',
    'Waits and holds',
    h(
      'div',
      { class: 'charts', key: 'charts' },
      durations('waits', 'Waits', timeline.waits),
      durations('holds', 'Holds', timeline.holds),
    ),
  );
}

/** @param {Snapshot} snapshot */
function terminal({ resource }) {
  return section(
    'commands',
    'In a terminal',
    h(
      'div',
      { class: 'stack', key: 'stack' },
      command(`leasehold why ${quoted(resource)}`, 'that says why it is held'),
      command(`leasehold watch ${quoted(resource)}`, 'that follows it'),
    ),
  );
}

// Who holds a resource, and who waits for it, in full.

import { openAction } from './action_dialog.js';
import { KINDS } from './actions.js';
import { countdown } from './clock.js';
import { h } from './dom.js';
import { icon } from './icons.js';
import { button, command, empty, fact, holder, holderState, section, since } from './parts.js';
import { mayOrder } from './state.js';
import { count, number, quoted, span, untrusted, visible } from './text.js';

/** @typedef {import('./types/api').Snapshot} Snapshot */
/** @typedef {import('./types/api').HeldBy} HeldBy */

const SHOWN = 50;
/** The capacity of a read-write lock is the largest number. */
const UNLIMITED = 0xffff_fffe;

/** @param {Snapshot} snapshot @param {HeldBy[]} held @param {number} base @param {string[]} hasSteps the tokens of holders whose orders are among the steps */
export function holdersSection(snapshot, held, base, hasSteps) {
  const locks = snapshot.foreign ?? [];
  if (snapshot.unreadable) return null;
  const more = snapshot.holder_count - held.length;
  return section(
    'holders',
    held.length > 1 || locks.length > 1
      ? ['Holders ', h('span', { class: 'badge' }, number(snapshot.holder_count + locks.length))]
      : 'Holder',
    held.length || locks.length
      ? null
      : empty(
          'Nobody holds it.',
          h('p', null, 'To hold it while a command runs:'),
          command(`leasehold run ${quoted(snapshot.resource)} -- COMMAND`, 'that holds it'),
        ),
    h(
      'ul',
      { class: 'list', key: 'list' },
      held.slice(0, SHOWN).map((one) => holderCard(snapshot, one, base, hasSteps.includes(one.token))),
      locks.map((lock) => foreignCard(snapshot, lock, base)),
    ),
    more > 0 || held.length > SHOWN
      ? h(
          'p',
          { class: 'quiet', key: 'more' },
          `and ${count(snapshot.holder_count - Math.min(held.length, SHOWN), 'more holder')}`,
        )
      : null,
  );
}

/** @param {Snapshot} snapshot @param {HeldBy} held @param {number} base @param {boolean} hasSteps */
function holderCard(snapshot, held, base, hasSteps) {
  const give = (/** @type {string} */ action) =>
    button(KINDS[action].button, () => openAction({ action, on: snapshot, token: held.token, held, base }), {
      class: KINDS[action].confirmation ? 'danger' : '',
      about: `${held.holder.label || held.holder.pid} on ${held.holder.host}`,
      key: action,
      test: `do-${action}`,
    });
  return h(
    'li',
    { key: held.token, class: 'card', 'data-test': 'holder' },
    h('div', { class: 'card-head' }, holder(held.holder, 4000), holderState(snapshot.key, held, base)),
    h(
      'dl',
      { class: 'facts wide' },
      fact(
        held.kept ? 'Granted' : 'Held for',
        since(`held ${snapshot.key} ${held.token}`, held.held_for_ms, base),
        held.kept ? ' ago' : '',
      ),
      fact('Token', h('code', { 'data-test': 'token' }, held.token)),
      held.ttl_ms ? fact('Ttl', span(held.ttl_ms)) : null,
      snapshot.capacity > 1
        ? fact('Share', `${number(held.weight)} of ${snapshot.capacity >= UNLIMITED ? 'all' : number(snapshot.capacity)}`)
        : null,
      held.handovers ? fact('Handed over', count(held.handovers, 'time')) : null,
      held.asked
        ? fact('Asked to finish', 'by ', untrusted(held.asked.by), ': ', untrusted(held.asked.why, { most: 1000 }))
        : null,
      held.note !== undefined
        ? fact('Note', h('pre', { class: 'note', tabindex: '0' }, untrusted(held.note, { most: 8000, lines: true })))
        : null,
      held.note_base64
        ? fact('Note, in base64', h('pre', { class: 'note', tabindex: '0' }, visible(held.note_base64, 8000)))
        : null,
    ),
    mayOrder() && !held.kept && !hasSteps
      ? h(
          'div',
          { class: 'buttons start' },
          held.evicting ? null : give('ask'),
          held.evicting ? null : give('evict'),
          give('evict-now'),
        )
      : null,
    mayOrder() && held.kept && !hasSteps ? h('div', { class: 'buttons start' }, give('evict-now')) : null,
  );
}

/** @param {Snapshot} snapshot @param {import('./types/api').Foreign} lock @param {number} base */
function foreignCard(snapshot, lock, base) {
  const ends =
    typeof lock.remaining_ms === 'number'
      ? h('span', { class: 'whole count', tick: countdown(`foreign ${lock.key}`, lock.remaining_ms, base) })
      : 'no end';
  return h(
    'li',
    { key: `foreign ${lock.key} ${lock.value_hash}`, class: 'card' },
    h(
      'div',
      { class: 'card-head' },
      h('span', { class: 'mark calm' }, icon('foreign'), 'a lock of another program'),
      h('span', { class: 'ends' }, 'lease: ', ends),
    ),
    h(
      'p',
      { class: 'quiet small' },
      'Nothing is known about its process, or since when it holds. Its value may be the secret that releases it, so only a hash is shown.',
    ),
    h(
      'dl',
      { class: 'facts wide' },
      fact('Key', untrusted(lock.key, { most: 2000 })),
      fact('Form', untrusted(lock.form)),
      fact('Hash of the value', h('code', null, visible(lock.value_hash, 64))),
    ),
    mayOrder()
      ? h(
          'div',
          { class: 'buttons start' },
          button(
            KINDS['evict-foreign'].button,
            () => openAction({ action: 'evict-foreign', on: snapshot, valueHash: lock.value_hash }),
            { class: 'danger', test: 'do-evict-foreign' },
          ),
        )
      : null,
  );
}

/** @param {Snapshot} snapshot @param {number} base */
export function queueSection({ queue, queue_length, key, unreadable }, base) {
  if (unreadable) return null;
  if (!queue_length) return section('queue', 'Queue', h('p', { class: 'quiet', key: 'none' }, 'Nobody waits.'));
  const shown = queue.slice(0, SHOWN);
  return section(
    'queue',
    ['Queue ', h('span', { class: 'badge' }, number(queue_length))],
    h(
      'ol',
      { class: 'queue', key: 'list' },
      shown.map((entry, index) =>
        h(
          'li',
          { key: `${entry.holder.host} ${entry.holder.pid} ${entry.holder.label} ${index}`, 'data-test': 'waiter' },
          h('span', { class: 'place', 'aria-hidden': 'true' }, String(index + 1)),
          entry.foreign ? h('span', { class: 'mark calm' }, icon('foreign'), 'another program') : holder(entry.holder, 120),
          h(
            'span',
            null,
            'waits for ',
            since(`waited ${key} ${index} ${entry.holder.host} ${entry.holder.pid}`, entry.waited_ms, base),
          ),
          entry.silent
            ? h(
                'span',
                { class: 'mark warn', title: 'It could have been granted, and did not answer' },
                icon('silent'),
                'does not answer',
              )
            : null,
          entry.weight > 1
            ? h('span', { class: 'quiet small' }, entry.weight >= UNLIMITED ? 'wants all of it' : `wants ${number(entry.weight)}`)
            : null,
        ),
      ),
    ),
    queue_length > shown.length
      ? h('p', { class: 'quiet', key: 'more' }, `and ${count(queue_length - shown.length, 'more waiter')} behind them`)
      : null,
  );
}

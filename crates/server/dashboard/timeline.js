// What has happened to one resource: changes that the server saw, and what operators ordered.

import { h } from './dom.js';
import { icon } from './icons.js';
import { SAMPLING } from './notices.js';
import { holder, section } from './parts.js';
import { formatMs, number, untrusted, when } from './text.js';
import { changeWords } from './words.js';

/** @typedef {import('./types/api').Timeline} Timeline */
/** @typedef {import('./types/api').Change} Change */

const SHOWN = 100;
export const AUDIT_SHOWN = 5;

/** @param {Timeline | null} past */
export function timeline(past) {
  if (!past) return null;
  const { entries, complete, since } = past;
  const none = h('p', { class: 'quiet', key: 'none' }, 'Nothing has happened since this server began to watch.');
  return section(
    'timeline',
    'Timeline',
    entries.length
      ? h(
          'ol',
          { class: 'timeline', key: 'list' },
          entries.slice(0, SHOWN).map((change, index) => entry(change, index, entries.length)),
        )
      : none,
    h(
      'p',
      { class: 'quiet small', key: 'since' },
      complete ? 'This is all since ' : 'Seen by this server since ',
      when(since),
      `. ${SAMPLING}`,
      entries.length > SHOWN ? ` ${number(entries.length - SHOWN)} older ones are not shown.` : '',
    ),
  );
}

/** @param {Change} change @param {number} index @param {number} length */
function entry(change, index, length) {
  const words = changeWords(change.kind);
  const facts = [
    typeof change.waited_ms === 'number' ? `after a wait of ${formatMs(change.waited_ms)}` : '',
    typeof change.for_ms === 'number' ? lasting(change.kind, change.for_ms) : '',
    change.queue_length ? `${number(change.queue_length)} waiting` : '',
  ].filter(Boolean);
  // Counted from the end, so that a new entry at the top does not change the keys of all others.
  return h(
    'li',
    { key: length - index, class: words.tone, 'data-kind': change.kind },
    h('span', { class: 'bead' }, icon(words.icon, words.tone)),
    h(
      'div',
      null,
      h(
        'p',
        null,
        h('strong', null, words.name),
        change.holder ? [h('span', { class: 'quiet' }, ' · '), holder(change.holder, 80)] : null,
      ),
      h(
        'p',
        { class: 'quiet small' },
        when(change.at),
        facts.length ? ` · ${facts.join(' · ')}` : '',
        change.token ? [' · token ', h('code', null, change.token)] : null,
      ),
      change.by || change.why
        ? h(
            'p',
            { class: 'small' },
            change.by ? ['by ', untrusted(change.by), change.why ? ': ' : ''] : null,
            change.why ? untrusted(change.why, { most: 1000 }) : null,
          )
        : null,
    ),
  );
}

/** What the duration of a change says. @param {string} kind @param {number} ms */
function lasting(kind, ms) {
  if (kind === 'paused') return `for ${formatMs(ms)}`;
  return kind === 'granted' ? '' : `held for ${formatMs(ms)}`;
}

/** @param {import('./types/api').AuditPage | null} page @param {string} key of the resource */
export function auditList(page, key) {
  if (!page) return null;
  const { records, next } = page;
  if (!records.length)
    return section('audit', 'Audit', h('p', { class: 'quiet', key: 'none' }, 'No operator has given an order.'));
  return section(
    'audit',
    'Audit',
    h(
      'ol',
      { class: 'audit-list', key: 'list' },
      records
        .slice(0, AUDIT_SHOWN)
        .map((record, index) =>
          h(
            'li',
            { key: `${record.at_us} ${record.command} ${index}`, 'data-test': 'audit-record' },
            h(
              'p',
              null,
              h('strong', null, untrusted(record.command)),
              record.done ? '' : h('span', { class: 'mark warn' }, icon('info'), 'too late: nothing done'),
            ),
            h('p', { class: 'small' }, untrusted(record.why, { most: 1000 })),
            h('p', { class: 'quiet small' }, untrusted(record.by), ' · ', when(record.at)),
          ),
        ),
    ),
    records.length > AUDIT_SHOWN || next
      ? h(
          'p',
          { class: 'small', key: 'all' },
          h('a', { href: `#/audit?${new URLSearchParams({ key })}` }, 'All orders for this resource'),
        )
      : null,
  );
}

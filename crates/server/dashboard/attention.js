// A resource that needs somebody: which one, who holds it, who waits, and the next step.

import { openAction } from './action_dialog.js';
import { actionOf, KINDS, orderOf } from './actions.js';
import { countdown } from './clock.js';
import { h } from './dom.js';
import { icon } from './icons.js';
import { button, command, fact, holder, holderState, mark, resourceLink, since } from './parts.js';
import { mayOrder } from './state.js';
import { count, number, span, untrusted } from './text.js';
import { holdersOf, marksOf } from './words.js';

/** @typedef {import('./types/api').Item} Item */
/** @typedef {import('./types/api').Step} Step */

const HOLDERS_SHOWN = 2;

/** @param {Item} item @param {number} base @param {{test?: string, without?: string}} [options] `without`: the mark that the heading says */
export function attentionRow(item, base, options = {}) {
  const marks = marksOf(item).filter(({ icon }) => icon !== options.without);
  const worst = item.stuck || item.unreadable || item.deadlock?.length ? 'bad' : 'warn';
  return h(
    'li',
    { key: item.key, class: `attention ${worst}`, 'data-test': options.test ?? 'attention-row', 'data-key': item.key },
    h(
      'dl',
      { class: 'who' },
      fact(
        'Resource',
        h('h3', null, resourceLink(item)),
        h(
          'div',
          { class: 'marks' },
          marks.map((one) => mark(one)),
        ),
      ),
      fact('Holder', holders(item, base)),
      fact('Waiting', waiting(item, base)),
      item.next_step || item.steps?.length ? fact('Next step', nextStep(item, base)) : null,
    ),
  );
}

/** @param {Item} item @param {number} base @param {{isTable?: boolean}} [options] a table has a column for how long it is held */
export function holders(item, base, { isTable = false } = {}) {
  const shown = holdersOf(item)
    .slice(0, HOLDERS_SHOWN)
    .map((held) =>
      h(
        'div',
        { key: held.token, class: 'held-by' },
        holder(held.holder),
        holderState(item.key, held, base),
        isTable
          ? null
          : h(
              'span',
              { class: 'quiet small' },
              held.kept ? 'released ' : 'held for ',
              since(`held ${item.key} ${held.token}`, held.held_for_ms, base),
              held.kept ? ' after its grant' : '',
            ),
      ),
    );
  const more = item.holder_count - shown.length;
  return [
    shown,
    more > 0 ? h('span', { class: 'quiet', key: 'more' }, `and ${count(more, 'more holder')}`) : null,
    item.foreign_count
      ? h(
          'span',
          { class: 'mark calm', key: 'foreign' },
          icon('foreign'),
          count(item.foreign_count, 'lock of another program', 'locks of other programs'),
        )
      : null,
    item.paused_for_ms
      ? h(
          'span',
          { class: 'mark calm', key: 'paused' },
          icon('paused'),
          'paused, for ',
          h('span', { class: 'whole count', tick: countdown(`pause ${item.key}`, item.paused_for_ms, base) }),
        )
      : null,
    item.unreadable ? h('span', { key: 'unreadable' }, untrusted(item.unreadable, { most: 300 })) : null,
    !item.holder_count && !item.foreign_count && !item.unreadable ? h('span', { class: 'quiet', key: 'nobody' }, 'nobody') : null,
  ];
}

/** @param {Item} item @param {number} base @param {{isTable?: boolean}} [options] */
export function waiting(item, base, { isTable = false } = {}) {
  if (!item.queue_length) return h('span', { class: 'quiet' }, isTable ? '–' : 'nobody');
  const { oldest_wait_ms: oldest, first_waiter: first } = item;
  const big = `${isTable ? 'strong' : 'big'} ${item.stuck ? 'bad-text' : ''}`;
  return [
    h(
      'span',
      { class: 'waits' },
      oldest === null || oldest === undefined ? null : h('span', { class: big }, since(`wait ${item.key}`, oldest, base)),
      h('span', { class: 'whole' }, count(item.queue_length, 'waiter')),
    ),
    first && !isTable ? h('span', { class: 'quiet small' }, 'first: ', holder(first, 30)) : null,
    item.unusual_hold ? h('span', { class: 'quiet small' }, `usually held for ${span(item.unusual_hold.usual_ms)}`) : null,
  ];
}

/** @param {Item} item @param {number} base */
function nextStep(item, base) {
  const next = item.next_step ?? item.steps?.[0];
  if (!next) return null;
  const others = (item.steps ?? []).filter((step) => step.step !== next.step || step.token !== next.token);
  return [
    h('div', { 'data-test': 'next-step', 'data-step': next.step, key: 'next' }, stepBody(item, next, base)),
    others.length
      ? h(
          'details',
          { class: 'more', key: 'others' },
          h('summary', null, `Other steps (${number(others.length)})`),
          h(
            'ol',
            { class: 'steps' },
            others.map((step, index) => h('li', { key: `${step.step} ${step.token ?? index}` }, stepBody(item, step, base))),
          ),
        )
      : null,
  ];
}

/** One step: what to do, what it means, the command, and the button. @param {Item} item @param {Step} step @param {number} base @param {boolean} [isNext] of a list, the one to take */
export function stepBody(item, step, base, isNext = false) {
  const order = mayOrder() ? orderOf(item, step, base) : null;
  const action = actionOf(step);
  const kind = action ? KINDS[action] : null;
  const consequence = step.consequence ? untrusted(step.consequence, { most: 400 }) : null;
  return h(
    'div',
    { class: 'step' },
    h(
      'p',
      { class: 'say' },
      h('span', null, untrusted(step.text, { most: 400 })),
      ' ',
      isNext ? [h('span', { class: 'badge next' }, 'do this next'), ' '] : null,
      consequence &&
        h(
          'span',
          { class: kind?.confirmation ? 'follows bad-text' : 'follows quiet' },
          kind?.confirmation ? icon('silent') : null,
          consequence,
        ),
    ),
    step.command || order
      ? h(
          'div',
          { class: 'do' },
          step.command ? command(step.command, `for ${item.resource}`) : null,
          order && kind
            ? button(kind.button, () => openAction(order), {
                class: kind.confirmation ? 'danger' : '',
                about: item.resource,
                test: `do-${order.action}`,
              })
            : null,
        )
      : null,
  );
}

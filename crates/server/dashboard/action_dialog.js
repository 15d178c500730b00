// The dialog of one order: what it does, to whom, and why. It is built once and not touched by live updates, so nothing moves below a hand.

import { asProblem } from './api.js';
import { give, KINDS } from './actions.js';
import { leftNow } from './clock.js';
import { announce } from './copy.js';
import { openDialog } from './dialog.js';
import { h } from './dom.js';
import { icon } from './icons.js';
import { fact, holder, holderState, problemBox } from './parts.js';
import { refreshNow } from './refresh.js';
import { foreign, visible } from './text.js';

/** @typedef {import('./actions').Order} Order */

// As the server limits it.
export const WHY_MAX = 1000;

/** @param {Order} order */
export function openAction(order) {
  const kind = KINDS[order.action];
  const form = { why: '', promised: !kind.promise, duration: kind.duration?.choices[1][1], capacity: order.capacity ?? 1 };
  /** @type {{busy: boolean, done: string, problem: import('./api').Problem | null}} */
  const outcome = { busy: false, done: '', problem: null };

  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (outcome.busy || outcome.done || !isReady(form)) return;
    Object.assign(outcome, { busy: true, problem: null });
    dialog.draw();
    try {
      await give(order, { ...form, why: form.why.trim() });
      outcome.done = `Done: ${kind.title.toLowerCase()}. It is in the audit trail.`;
      announce(outcome.done);
    } catch (error) {
      outcome.problem = asProblem(error);
    }
    outcome.busy = false;
    dialog.draw();
    refreshNow();
    if (outcome.done) document.getElementById('action-close')?.focus();
  };

  const draw = () =>
    h(
      'form',
      { class: 'action', on: { submit }, novalidate: true },
      h('h2', { id: 'action-dialog-title' }, kind.title),
      facts(order),
      h(
        'div',
        { class: `box ${kind.promise ? 'bad' : 'calm'}`, 'data-test': 'consequence' },
        icon(kind.promise ? 'silent' : 'info'),
        h('p', null, foreign(order.consequence || kind.consequence(order), { most: 600 })),
      ),
      outcome.done ? null : fields(order, form, () => dialog.draw()),
      outcome.problem ? refusedBox(outcome.problem) : null,
      outcome.done ? h('p', { class: 'mark good', 'data-test': 'action-done' }, icon('ok'), outcome.done) : null,
      buttons(kind, form, outcome, () => dialog.close()),
    );
  const dialog = openDialog('action-dialog', draw);
}

/** @param {{why: string, promised: boolean}} form */
const isReady = (form) => form.why.trim() !== '' && form.promised;

/** @param {Order} order */
function facts({ on, held, token, base = 0 }) {
  return h(
    'dl',
    { class: 'facts' },
    fact('Resource', foreign(on.resource, { most: 300, class: 'name' })),
    held
      ? fact(
          'Holder',
          holder(held.holder),
          h('br', null),
          holderState(`dialog ${on.key}`, { ...held, remaining_ms: leftNow(held.remaining_ms, base) }, performance.now()),
        )
      : null,
    token ? fact('Token', h('code', null, token)) : null,
  );
}

/** @param {Order} order @param {{why: string, promised: boolean, duration?: number, capacity: number}} form @param {() => void} draw */
function fields(order, form, draw) {
  const { promise, duration } = KINDS[order.action];
  return h(
    'div',
    { class: 'fields', key: 'fields' },
    duration
      ? h(
          'div',
          { class: 'field' },
          h('label', { for: 'action-duration' }, duration.label),
          h(
            'select',
            {
              id: 'action-duration',
              value: form.duration,
              on: { change: (/** @type {any} */ event) => (form.duration = Number(event.target.value)) },
            },
            duration.choices.map(([text, ms]) => h('option', { value: ms, selected: ms === form.duration }, text)),
          ),
        )
      : null,
    order.action === 'resize'
      ? h(
          'div',
          { class: 'field' },
          h('label', { for: 'action-capacity' }, 'New capacity'),
          h('input', {
            id: 'action-capacity',
            type: 'number',
            min: 1,
            max: 4294967295,
            value: form.capacity,
            on: { input: (/** @type {any} */ event) => (form.capacity = Number(event.target.value)) },
          }),
        )
      : null,
    h(
      'div',
      { class: 'field' },
      h('label', { for: 'action-reason' }, 'Reason'),
      h('input', {
        id: 'action-reason',
        type: 'text',
        maxlength: WHY_MAX,
        required: true,
        autocomplete: 'off',
        autofocus: true,
        placeholder: 'INC-512: the morning run waits',
        'aria-describedby': 'action-reason-hint',
        value: form.why,
        on: { input: (/** @type {any} */ event) => ((form.why = event.target.value), draw()) },
      }),
      h(
        'p',
        { class: 'quiet small', id: 'action-reason-hint' },
        'It is written to the audit trail, with your name and the time. The holder may read it.',
      ),
    ),
    promise
      ? h(
          'label',
          { class: 'check' },
          h('input', {
            type: 'checkbox',
            id: 'action-promise',
            checked: form.promised,
            on: { change: (/** @type {any} */ event) => ((form.promised = event.target.checked), draw()) },
          }),
          h('span', null, promise),
        )
      : null,
  );
}

/** @param {import('./api').Problem} problem */
function refusedBox(problem) {
  if (problem.kind !== 'not_that_one') return problemBox(problem);
  return h(
    'div',
    { class: 'box warn', role: 'alert', 'data-test': 'holder-changed' },
    icon('info'),
    h(
      'div',
      null,
      h('p', { class: 'strong' }, 'The holder has changed: nothing was done.'),
      h('p', null, visible(problem.detail, 300)),
      h('p', null, 'Close this, and look at the resource again.'),
    ),
  );
}

/** @param {import('./actions').Kind} kind @param {{why: string, promised: boolean}} form @param {{busy: boolean, done: string, problem: any}} outcome @param {() => void} close */
function buttons(kind, form, outcome, close) {
  const isOver = outcome.done || outcome.problem?.kind === 'not_that_one';
  const confirm = h(
    'button',
    {
      type: 'submit',
      key: 'confirm',
      id: 'action-confirm',
      class: kind.promise ? 'danger' : 'primary',
      disabled: outcome.busy || !isReady(form),
    },
    outcome.busy ? 'Sending…' : kind.confirm,
  );
  return h(
    'div',
    { class: 'buttons' },
    h('button', { type: 'button', key: 'close', id: 'action-close', on: { click: close } }, isOver ? 'Close' : 'Cancel'),
    isOver ? null : confirm,
  );
}

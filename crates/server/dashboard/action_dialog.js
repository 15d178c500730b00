// The dialog of one order: what it does, for which holder, and why. Live updates do not change it, so that nothing moves under the pointer.

import { asProblem, Problem } from './api.js';
import { changeSince, give, KINDS } from './actions.js';
import { leftNow } from './clock.js';
import { announce } from './copy.js';
import { openDialog } from './dialog.js';
import { h } from './dom.js';
import { icon } from './icons.js';
import { fact, holder, holderState, problemBox } from './parts.js';
import { refreshNow } from './refresh.js';
import { untrusted, visible } from './text.js';

/** @typedef {import('./actions').Order} Order */
/** @typedef {{why: string, confirmed: boolean, duration?: number, capacity: number}} Form */
/** `changed`: what is not as the dialog said any more, so it must be confirmed again. @typedef {{busy: boolean, done: string, changed: string, problem: import('./api').Problem | null}} Outcome */

// As the server limits it.
export const WHY_MAX = 1000;

/** @param {Order} order */
export function openAction(order) {
  const kind = KINDS[order.action];
  /** @type {Form} */
  const form = { why: '', confirmed: !kind.confirmation, duration: kind.duration?.choices[1][1], capacity: order.capacity ?? 1 };
  /** @type {Outcome} */
  const outcome = { busy: false, done: '', changed: '', problem: null };

  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (outcome.busy || isOver(outcome) || !isReady(form)) return;
    Object.assign(outcome, { busy: true, changed: '', problem: null });
    dialog.draw();
    const isAsBefore = await isAsSeen(order, outcome);
    if (!isOpen) return; // Cancelled meanwhile, and nothing was sent yet.
    if (isAsBefore) await send(order, form, outcome);
    outcome.busy = false;
    dialog.draw();
    refreshNow();
    if (isOver(outcome)) document.getElementById('action-close')?.focus();
  };

  const draw = () =>
    h(
      'form',
      { class: 'action', on: { submit }, novalidate: true },
      h('h2', { id: 'action-dialog-title' }, kind.title),
      facts(order),
      h(
        'div',
        { class: `box ${kind.confirmation ? 'bad' : 'calm'}`, 'data-test': 'consequence' },
        icon(kind.confirmation ? 'silent' : 'info'),
        h('p', null, untrusted(order.consequence || kind.consequence(order), { most: 600 })),
      ),
      isOver(outcome) ? null : fields(order, form, () => dialog.draw()),
      outcome.changed ? changedBox(outcome.changed) : null,
      outcome.problem ? refusedBox(outcome.problem, order) : null,
      outcome.done ? h('p', { class: 'mark good', 'data-test': 'action-done' }, icon('ok'), outcome.done) : null,
      buttons(kind, form, outcome, () => dialog.close()),
    );
  let isOpen = true;
  const dialog = openDialog('action-dialog', draw, () => (isOpen = false));
}

/** Whether the resource still is as the person saw it. @param {Order} order @param {Outcome} outcome */
async function isAsSeen(order, outcome) {
  try {
    const change = await changeSince(order);
    if (!change) return true;
    order.seen = change.seen;
    outcome.changed = change.text;
  } catch (error) {
    const { status, kind, title, message, hint } = asProblem(error);
    // Nothing was sent but a question.
    outcome.problem = new Problem({ title, status, kind, detail: message, hint, effect: 'none' });
  }
  return false;
}

/** @param {Order} order @param {Form} form @param {Outcome} outcome */
async function send(order, form, outcome) {
  try {
    await give(order, { ...form, why: form.why.trim() });
    outcome.done = `Done: ${KINDS[order.action].title.toLowerCase()}. It is in the audit trail.`;
    announce(outcome.done);
  } catch (error) {
    outcome.problem = asProblem(error);
  }
}

/** Nothing can be sent any more from this dialog. @param {Outcome} outcome */
function isOver({ done, problem }) {
  return done !== '' || (problem !== null && (problem.kind === 'not_that_one' || isUnknown(problem)));
}

/** @param {Form} form */
const isReady = (form) => form.why.trim() !== '' && form.confirmed;

/** @param {Order} order */
function facts({ on, held, token, base = 0 }) {
  return h(
    'dl',
    { class: 'facts' },
    fact('Resource', untrusted(on.resource, { most: 300, class: 'name' })),
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

/** @param {Order} order @param {Form} form @param {() => void} draw */
function fields(order, form, draw) {
  const { confirmation, duration } = KINDS[order.action];
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
    confirmation
      ? h(
          'label',
          { class: 'check' },
          h('input', {
            type: 'checkbox',
            id: 'action-confirmation',
            checked: form.confirmed,
            on: { change: (/** @type {any} */ event) => ((form.confirmed = event.target.checked), draw()) },
          }),
          h('span', null, confirmation),
        )
      : null,
  );
}

/** @param {string} text */
function changedBox(text) {
  return h(
    'div',
    { class: 'box warn', role: 'alert', 'data-test': 'resource-changed', key: 'changed' },
    icon('info'),
    h(
      'div',
      null,
      h('p', { class: 'strong' }, 'The resource has changed: nothing was sent.'),
      h('p', null, text),
      h('p', null, 'Confirm again if you still want this.'),
    ),
  );
}

/** The answer to an order was lost, or says that it cannot be known. @param {Problem} problem @param {{key: string}} on */
function unknownBox(problem, { key }) {
  return h(
    'div',
    { class: 'box warn', role: 'alert', 'data-test': 'effect-unknown', key: 'unknown' },
    icon('silent'),
    h(
      'div',
      null,
      h('p', { class: 'strong' }, 'The order may have been carried out.'),
      h('p', null, untrusted(`${problem.title}: ${problem.message}.`, { most: 500 })),
      h(
        'p',
        null,
        'Look at the ',
        h('a', { href: `#/audit?${new URLSearchParams({ key })}` }, 'audit trail of the resource'),
        ' before you give it again.',
      ),
    ),
  );
}

/** @param {Problem} problem */
export const isUnknown = (problem) => problem.effect !== 'none' && problem.kind !== 'not_that_one';

/** @param {Problem} problem @param {Order} order */
function refusedBox(problem, order) {
  if (isUnknown(problem)) return unknownBox(problem, order.on);
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

/** @param {import('./actions').Kind} kind @param {Form} form @param {Outcome} outcome @param {() => void} close */
function buttons(kind, form, outcome, close) {
  const confirm = h(
    'button',
    {
      type: 'submit',
      key: 'confirm',
      id: 'action-confirm',
      class: kind.confirmation ? 'danger' : 'primary',
      disabled: outcome.busy || !isReady(form),
    },
    outcome.busy ? 'Sending…' : kind.confirm,
  );
  return h(
    'div',
    { class: 'buttons' },
    h('button', { type: 'button', key: 'close', id: 'action-close', on: { click: close } }, isOver(outcome) ? 'Close' : 'Cancel'),
    isOver(outcome) ? null : confirm,
  );
}

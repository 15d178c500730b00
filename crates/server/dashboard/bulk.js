// Evicts all holders whose process is known to be gone: a list to look at first, one reason, one order for each, one result for each.

import { asProblem, get } from './api.js';
import { give, orderOf } from './actions.js';
import { WHY_MAX } from './action_dialog.js';
import { announce } from './copy.js';
import { openDialog } from './dialog.js';
import { h } from './dom.js';
import { icon } from './icons.js';
import { holder, problemBox } from './parts.js';
import { refreshNow } from './refresh.js';
import { count, foreign, visible } from './text.js';

/** @typedef {import('./actions').Order} Order */
/** @typedef {{order: Order, chosen: boolean, result: 'none' | 'sending' | 'done' | 'changed' | 'failed', why: string}} Row */

const ROWS_MAX = 200;

export function openBulk() {
  /** @type {{rows: Row[] | null, more: number, why: string, promised: boolean, busy: boolean, over: boolean, problem: import('./api').Problem | null}} */
  const form = { rows: null, more: 0, why: '', promised: false, busy: false, over: false, problem: null };

  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!isReady(form)) return;
    form.busy = true;
    for (const row of form.rows ?? []) {
      if (!row.chosen) continue;
      if (!isOpen) break; // Closed meanwhile: what was not sent yet is not sent.
      row.result = 'sending';
      dialog.draw();
      await evict(row, form.why.trim());
    }
    Object.assign(form, { busy: false, over: true });
    const done = form.rows?.filter((row) => row.result === 'done').length ?? 0;
    announce(`${count(done, 'holder')} evicted`);
    dialog.draw();
    refreshNow();
  };

  let isOpen = true;
  const dialog = openDialog(
    'bulk-dialog',
    () =>
      h(
        'form',
        { class: 'action', on: { submit } },
        h('h2', { id: 'bulk-dialog-title' }, 'Evict all whose process is gone'),
        h(
          'p',
          null,
          'These processes were on the host of this server and have ended. Each order is for this grant only: if the holder has changed, nothing is done.',
        ),
        form.problem
          ? problemBox(form.problem)
          : form.rows === null
            ? h('p', { 'aria-busy': 'true' }, 'Reading the list…')
            : list(form, () => dialog.draw()),
        form.rows?.length && !form.over ? fields(form, () => dialog.draw()) : null,
        h(
          'div',
          { class: 'buttons' },
          h(
            'button',
            { type: 'button', key: 'close', id: 'bulk-close', on: { click: () => dialog.close() } },
            form.over || !form.rows?.length ? 'Close' : 'Cancel',
          ),
          form.over || !form.rows?.length
            ? null
            : h(
                'button',
                { type: 'submit', key: 'confirm', id: 'bulk-confirm', class: 'danger', disabled: !isReady(form) },
                form.busy ? 'Sending…' : `Evict ${chosen(form)}`,
              ),
        ),
      ),
    () => (isOpen = false),
  );
  void read(form).then(() => dialog.draw());
}

/** @param {{rows: Row[] | null}} form */
const chosen = (form) => form.rows?.filter((row) => row.chosen).length ?? 0;

/** @param {{rows: Row[] | null, why: string, promised: boolean, busy: boolean, over: boolean}} form */
const isReady = (form) => !form.busy && !form.over && form.promised && form.why.trim() !== '' && chosen(form) > 0;

/** @param {{rows: Row[] | null, more: number, problem: any}} form */
async function read(form) {
  try {
    /** @type {{body: import('./types/api').Overview, base: number}} */
    const { body, base } = await get('v1/overview', { only: 'gone', limit: ROWS_MAX });
    form.rows = body.items.flatMap((item) => rowsOf(item, base - body.sampled_ms_ago));
    form.more = body.matched - body.items.length;
  } catch (error) {
    form.problem = asProblem(error);
  }
}

/** The holders of the resource that are gone, with the order that the server calls safe for each. @param {import('./types/api').Item} item @param {number} base @returns {Row[]} */
function rowsOf(item, base) {
  return item.holders
    .filter((held) => held.state === 'gone')
    .map((held) => {
      const own = [item.next_step, ...(item.steps ?? [])].find(
        (step) => step?.step.startsWith('evict') && step.token === held.token,
      );
      const order = own ? orderOf(item, own, base) : null;
      return {
        order: order ?? { action: 'evict', on: item, token: held.token, held, base },
        chosen: true,
        result: 'none',
        why: '',
      };
    });
}

/** @param {Row} row @param {string} why */
async function evict(row, why) {
  try {
    await give(row.order, { why });
    row.result = 'done';
  } catch (error) {
    const problem = asProblem(error);
    row.result = problem.kind === 'not_that_one' ? 'changed' : 'failed';
    row.why = problem.message;
  }
}

/** @param {{rows: Row[] | null, more: number, busy: boolean, over: boolean}} form @param {() => void} draw */
function list(form, draw) {
  if (!form.rows?.length) return h('p', { class: 'box good' }, icon('ok'), 'No process is known to be gone now.');
  return h(
    'div',
    { class: 'bulk-list' },
    h(
      'ul',
      { tabindex: '0', 'aria-label': 'Holders to evict' },
      form.rows.map((row, index) =>
        h(
          'li',
          { key: `${row.order.on.key} ${row.order.token}`, 'data-test': 'bulk-row' },
          h(
            'label',
            null,
            h('input', {
              type: 'checkbox',
              checked: row.chosen,
              disabled: form.busy || form.over,
              id: `bulk-${index}`,
              on: { change: (/** @type {any} */ event) => ((row.chosen = event.target.checked), draw()) },
            }),
            h(
              'span',
              null,
              foreign(row.order.on.resource, { class: 'name' }),
              ' ',
              row.order.held ? holder(row.order.held.holder, 40) : null,
              h('span', { class: 'quiet small' }, row.order.action === 'evict-now' ? ' at once' : ' at its expiry'),
            ),
          ),
          result(row),
        ),
      ),
    ),
    form.more > 0 ? h('p', { class: 'quiet' }, `${count(form.more, 'resource')} more: do this again afterwards.`) : null,
  );
}

/** @param {Row} row */
function result({ result, why }) {
  if (result === 'sending') return h('span', { class: 'mark calm' }, icon('late'), 'sending');
  if (result === 'done') return h('span', { class: 'mark good' }, icon('ok'), 'evicted');
  if (result === 'changed') return h('span', { class: 'mark warn' }, icon('info'), 'the holder has changed: nothing was done');
  if (result === 'failed') return h('span', { class: 'mark bad' }, icon('stuck'), visible(why, 200));
  return null;
}

/** @param {{why: string, promised: boolean, busy: boolean}} form @param {() => void} draw */
function fields(form, draw) {
  return h(
    'div',
    { class: 'fields', key: 'fields' },
    h(
      'div',
      { class: 'field' },
      h('label', { for: 'bulk-reason' }, 'Reason, for all of them'),
      h('input', {
        id: 'bulk-reason',
        type: 'text',
        required: true,
        maxlength: WHY_MAX,
        autocomplete: 'off',
        disabled: form.busy,
        placeholder: 'INC-512: the host was restarted',
        value: form.why,
        on: { input: (/** @type {any} */ event) => ((form.why = event.target.value), draw()) },
      }),
    ),
    h(
      'label',
      { class: 'check' },
      h('input', {
        type: 'checkbox',
        id: 'bulk-promise',
        checked: form.promised,
        disabled: form.busy,
        on: { change: (/** @type {any} */ event) => ((form.promised = event.target.checked), draw()) },
      }),
      h('span', null, 'I know that their work has ended, or that two at once do no harm.'),
    ),
  );
}

// Evicts all holders whose process is known to be gone: a list to check first, one reason, one order for each, one result for each.

import { asProblem, get } from './api.js';
import { give, orderOf } from './actions.js';
import { isUnknown, WHY_MAX } from './action_dialog.js';
import { announce } from './copy.js';
import { openDialog } from './dialog.js';
import { h } from './dom.js';
import { icon } from './icons.js';
import { holder, problemBox } from './parts.js';
import { refreshNow } from './refresh.js';
import { count, untrusted, visible } from './text.js';
import { holdersOf, isGone } from './words.js';

/** @typedef {import('./actions').Order} Order */
/** @typedef {{order: Order, chosen: boolean, result: 'none' | 'sending' | 'done' | 'changed' | 'failed' | 'unknown' | 'not_sent', why: string}} Row */

const ROWS_MAX = 200;

export function openBulk() {
  /** @type {{rows: Row[] | null, more: number, why: string, confirmed: boolean, busy: boolean, over: boolean, problem: import('./api').Problem | null}} */
  const form = { rows: null, more: 0, why: '', confirmed: false, busy: false, over: false, problem: null };

  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!isReady(form)) return;
    form.busy = true;
    let isLost = false;
    for (const row of form.rows ?? []) {
      if (!row.chosen) continue;
      // The dialog was closed, or the server does not answer: what was not sent yet is not sent.
      if (!isOpen || isLost) {
        row.result = 'not_sent';
        continue;
      }
      row.result = 'sending';
      dialog.draw();
      isLost = await evict(row, form.why.trim());
    }
    Object.assign(form, { busy: false, over: true });
    announce(summary(form.rows ?? []));
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

/** @param {{rows: Row[] | null, why: string, confirmed: boolean, busy: boolean, over: boolean}} form */
const isReady = (form) => !form.busy && !form.over && form.confirmed && form.why.trim() !== '' && chosen(form) > 0;

/** @param {{rows: Row[] | null, more: number, problem: any}} form */
async function read(form) {
  try {
    /** @type {{body: import('./types/api').Overview, base: number}} */
    const { body, base } = await get('v1/overview', { only: 'gone', limit: ROWS_MAX });
    form.rows = body.items.flatMap((item) => rowsOf(item, base - body.sampled_ms_ago));
    form.more = body.matched - body.items.length + body.items.filter(({ gone_more }) => gone_more).length;
  } catch (error) {
    form.problem = asProblem(error);
  }
}

/** The holders of the resource that are gone, with the order that the server calls safe for each. @param {import('./types/api').Item} item @param {number} base @returns {Row[]} */
function rowsOf(item, base) {
  return holdersOf(item)
    .filter(isGone)
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

/** @param {Row} row @param {string} why @returns {Promise<boolean>} whether the server does not answer any more */
async function evict(row, why) {
  try {
    await give(row.order, { why });
    row.result = 'done';
    return false;
  } catch (error) {
    const problem = asProblem(error);
    row.result = problem.kind === 'not_that_one' ? 'changed' : isUnknown(problem) ? 'unknown' : 'failed';
    row.why = problem.message;
    return problem.isOutage;
  }
}

/** What came of it, for screen readers. @param {Row[]} rows */
function summary(rows) {
  const carriedOut = rows.filter(({ result }) => result === 'done');
  const atOnce = carriedOut.filter(({ order }) => order.action === 'evict-now').length;
  const later = carriedOut.length - atOnce;
  const unknown = rows.filter(({ result }) => result === 'unknown').length;
  const parts = [`${count(atOnce, 'holder')} evicted`];
  if (later) parts.push(`${count(later, 'lease ends at its', 'leases end at their')} expiry`);
  if (unknown) parts.push(`${count(unknown, 'order')} may have been carried out`);
  return parts.join(', ');
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
              untrusted(row.order.on.resource, { class: 'name' }),
              ' ',
              row.order.held ? holder(row.order.held.holder, 40) : null,
              h('span', { class: 'quiet small' }, row.order.action === 'evict-now' ? ' at once' : ' at its expiry'),
            ),
          ),
          result(row),
        ),
      ),
    ),
    form.more > 0
      ? h('p', { class: 'quiet' }, `${count(form.more, 'more resource')} with such holders: do this again afterwards.`)
      : null,
  );
}

/** @param {Row} row */
function result({ order, result, why }) {
  if (result === 'sending') return h('span', { class: 'mark calm' }, icon('late'), 'sending');
  if (result === 'done')
    return h('span', { class: 'mark good' }, icon('ok'), order.action === 'evict-now' ? 'evicted' : 'ends at its expiry');
  if (result === 'changed') return h('span', { class: 'mark warn' }, icon('info'), 'the holder has changed: nothing was done');
  if (result === 'unknown')
    return h('span', { class: 'mark warn' }, icon('silent'), `may have been carried out, see the audit: ${visible(why, 200)}`);
  if (result === 'not_sent') return h('span', { class: 'mark calm' }, icon('info'), 'not sent');
  if (result === 'failed') return h('span', { class: 'mark bad' }, icon('stuck'), visible(why, 200));
  return null;
}

/** @param {{why: string, confirmed: boolean, busy: boolean}} form @param {() => void} draw */
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
        id: 'bulk-confirmation',
        checked: form.confirmed,
        disabled: form.busy,
        on: { change: (/** @type {any} */ event) => ((form.confirmed = event.target.checked), draw()) },
      }),
      h('span', null, 'I know that their work has ended, or that two at once do no harm.'),
    ),
  );
}

// What operators can do, what it means, and the request for it.

import { post } from './api.js';
import { span } from './text.js';

/** @typedef {import('./types/api').Step} Step */
/** @typedef {import('./types/api').HeldBy} HeldBy */

/**
 * One order, as a person is about to give it.
 * @typedef {object} Order
 * @property {string} action as the server names it
 * @property {{resource: string, key: string}} on
 * @property {string} [token] the grant that it is for: it does nothing to another one
 * @property {string} [valueHash] the lock of another program that it is for
 * @property {HeldBy} [held] whom it is for
 * @property {number} [base] the instant from which the durations of `held` count
 * @property {string} [consequence] in the words of the server
 * @property {number} [capacity] the capacity now
 */

/**
 * @typedef {object} Kind
 * @property {string} button
 * @property {string} title
 * @property {string} confirm
 * @property {(order: Order) => string} consequence
 * @property {string} [promise] what a person must confirm first, because two may run
 * @property {{name: string, label: string, choices: [string, number][]}} [duration]
 */

const MINUTE = 60_000;

/** @type {Record<string, Kind>} */
export const KINDS = {
  ask: {
    button: 'Ask to finish…',
    title: 'Ask the holder to finish',
    confirm: 'Ask',
    consequence: () =>
      'The holder learns of this at its next renewal. A program gets an event, a command a signal. Nothing else happens: it keeps the lease until it gives it back.',
    duration: {
      name: 'within_ms',
      label: 'Time for the holder',
      choices: [
        ['10 s', 10_000],
        ['30 s', 30_000],
        ['2 min', 2 * MINUTE],
        ['10 min', 10 * MINUTE],
      ],
    },
  },
  evict: {
    button: 'Evict at expiry…',
    title: 'Evict the holder at its expiry',
    confirm: 'Evict at expiry',
    consequence: ({ held }) =>
      `Its lease is not renewed any more${held ? ` and ends within ${span(held.ttl_ms ?? held.remaining_ms)}` : ''}. A holder that is alive is told, and stops in time. Nobody else is granted before that.`,
  },
  'evict-now': {
    button: 'Evict now…',
    title: 'Evict the holder now',
    confirm: 'Evict now',
    consequence: () =>
      'The lease ends at once, and the next claim may be granted at once. The holder learns of it only at its next renewal: until then, two may run.',
    promise: 'I know that its work has ended, or that two at once do no harm.',
  },
  'evict-foreign': {
    button: 'Remove the other lock…',
    title: 'Remove the lock of another program',
    confirm: 'Remove the lock',
    consequence: () => 'The lock is removed at once. The other program is not told: two may run.',
    promise: 'I know that the other program has ended, or that two at once do no harm.',
  },
  pause: {
    button: 'Pause…',
    title: 'Pause the resource',
    confirm: 'Pause',
    consequence: () => 'Nothing is granted until the pause ends. Who holds it keeps it and may renew. Waiters keep their places.',
    duration: {
      name: 'lasting_ms',
      label: 'For how long',
      choices: [
        ['10 min', 10 * MINUTE],
        ['30 min', 30 * MINUTE],
        ['2 h', 120 * MINUTE],
        ['24 h', 1440 * MINUTE],
      ],
    },
  },
  resume: {
    button: 'Resume…',
    title: 'End the pause',
    confirm: 'Resume',
    consequence: () => 'From now on the resource is granted again, in the order of the queue.',
  },
  resize: {
    button: 'Change the capacity…',
    title: 'Change the capacity',
    confirm: 'Change the capacity',
    consequence: () =>
      'New claims must name the new capacity; those that name another one are refused. Who holds a part keeps it, also if it is now more than the whole.',
  },
};

/** The action of a step of the server, if it has one. @param {Step} step @returns {string | null} */
export function actionOf(step) {
  const action = step.value_hash ? 'evict-foreign' : step.step.replaceAll('_', '-');
  return action in KINDS && action !== 'wait' ? action : null;
}

/** The order of a step. @param {{resource: string, key: string, holders?: HeldBy[]}} item @param {Step} step @param {number} base @returns {Order | null} */
export function orderOf(item, step, base) {
  const action = actionOf(step);
  if (!action) return null;
  const held = item.holders?.find((one) => one.token === step.token) ?? (step.token ? undefined : item.holders?.[0]);
  // Without a token the order would be for whoever holds it at that time.
  const isForHolder = action === 'ask' || action.startsWith('evict');
  const token = isForHolder && !step.value_hash ? (step.token ?? held?.token) : undefined;
  if (isForHolder && !token && !step.value_hash) return null;
  return { action, on: item, token, valueHash: step.value_hash, held, base, consequence: step.consequence ?? undefined };
}

/** Gives the order. @param {Order} order @param {{why: string, duration?: number, capacity?: number}} details */
export async function give(order, { why, duration, capacity }) {
  const { resource, key } = order.on;
  const kind = KINDS[order.action];
  /** @type {Record<string, unknown>} */
  const body = { action: order.action, why, ...(resource === key ? { resource } : { key }) };
  if (order.token) body.token = order.token;
  if (order.valueHash) body.value_hash = order.valueHash;
  if (kind.duration) body[kind.duration.name] = duration;
  if (order.action === 'resize') body.capacity = capacity;
  await post('v1/orders', body);
}

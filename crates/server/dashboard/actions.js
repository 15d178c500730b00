// What operators can do, what it means, and the request for it.

import { get, post } from './api.js';
import { number, span } from './text.js';
import { holdersOf } from './words.js';

/** @typedef {import('./types/api').Step} Step */
/** @typedef {import('./types/api').HeldBy} HeldBy */

/**
 * One order, as a person is about to give it.
 * @typedef {object} Order
 * @property {string} action as the server names it
 * @property {{resource: string, key: string}} on
 * @property {string} [token] the grant that it is for: it does nothing to another one
 * @property {string} [valueHash] the lock of another program that it is for
 * @property {HeldBy} [held] the holder that it is for
 * @property {number} [base] the instant from which the durations of `held` count
 * @property {string} [consequence] in the words of the server
 * @property {number} [capacity] the capacity now
 * @property {Seen} [seen] what the person has seen of the resource
 */

/** What a person saw of the resource: when its pause ends (`null`: it is not paused), and its capacity. @typedef {{pauseEnds: number | null, capacity: number}} Seen */

/**
 * @typedef {object} Kind
 * @property {string} button
 * @property {string} title
 * @property {string} confirm
 * @property {(order: Order) => string} consequence
 * @property {string} [confirmation] what a person must confirm first, because two may run
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
    confirmation: 'I know that its work has ended, or that two at once do no harm.',
  },
  'evict-foreign': {
    button: 'Remove the other lock…',
    title: 'Remove the lock of another program',
    confirm: 'Remove the lock',
    consequence: () => 'The lock is removed at once. The other program is not told: two may run.',
    confirmation: 'I know that the other program has ended, or that two at once do no harm.',
  },
  pause: {
    button: 'Pause…',
    title: 'Pause the resource',
    confirm: 'Pause',
    consequence: () =>
      'Nothing is granted until the pause ends. Current holders keep their leases and can renew. Waiters keep their places.',
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
      'New claims must name the new capacity; those that name another one are refused. Current holders keep their permits, even if they exceed the new capacity.',
  },
};

/** The action of a step of the server, if it has one. @param {Step} step @returns {string | null} */
export function actionOf(step) {
  const action = step.value_hash ? 'evict-foreign' : step.step.replaceAll('_', '-');
  return action in KINDS && action !== 'wait' ? action : null;
}

/** Whether the step is an order about one grant. @param {Step} step */
export function isForHolder(step) {
  const action = actionOf(step);
  return action === 'ask' || action === 'evict' || action === 'evict-now';
}

/** The order of a step. @param {import('./types/api').Item} item @param {Step} step @param {number} base @returns {Order | null} */
export function orderOf(item, step, base) {
  const action = actionOf(step);
  if (!action) return null;
  // Without a token the order would be for the process that holds the resource at that time.
  if (isForHolder(step) && !step.token) return null;
  const token = isForHolder(step) ? step.token : undefined;
  const held = holdersOf(item).find((one) => one.token === token);
  const seen = seenOf(item, base);
  return { action, on: item, token, valueHash: step.value_hash, held, base, seen, consequence: step.consequence ?? undefined };
}

/** @param {{paused_for_ms?: number | null, capacity: number}} one @param {number} base @returns {Seen} */
export function seenOf({ paused_for_ms, capacity }, base) {
  return { pauseEnds: typeof paused_for_ms === 'number' ? base + paused_for_ms : null, capacity };
}

// The end of a pause is computed from the time of a request.
const SAME_MS = 5000;

/**
 * Orders about a resource name no grant, so they would also be carried out after somebody else has given another one: the resource is read
 * again just before.
 * @param {Order} order @returns {Promise<{text: string, seen: Seen} | null>} what has changed since the dialog was opened
 */
export async function changeSince({ action, on, seen }) {
  if (!seen || !['pause', 'resume', 'resize'].includes(action)) return null;
  const { resource, key } = on;
  /** @type {{body: import('./types/api').Snapshot, base: number}} */
  const { body, base } = await get('v1/resource', resource === key ? { name: resource } : { key });
  const now = seenOf(body, base);
  if (action === 'resize') {
    if (now.capacity === seen.capacity) return null;
    return { text: `The capacity is ${number(now.capacity)} now. It was ${number(seen.capacity)}.`, seen: now };
  }
  const isSame =
    (now.pauseEnds === null) === (seen.pauseEnds === null) && Math.abs((now.pauseEnds ?? 0) - (seen.pauseEnds ?? 0)) < SAME_MS;
  return isSame ? null : { text: `${pauseText(now, 'is')} ${pauseText(seen, 'was')}`, seen: now };
}

/** @param {Seen} seen @param {'is' | 'was'} verb */
function pauseText({ pauseEnds }, verb) {
  const now = verb === 'is' ? ' now' : '';
  if (pauseEnds === null) return `It ${verb} not paused${now}.`;
  return `It ${verb} paused${now}, for ${span(pauseEnds - performance.now())} more.`;
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

// What the page says about resources and their holders.

import { number } from './text.js';

/** @typedef {import('./types/api').Overview} Overview */
/** @typedef {import('./types/api').Item} Item */
/** @typedef {import('./types/api').HeldBy} HeldBy */
/** @typedef {'bad' | 'warn' | 'good' | 'calm' | 'plain'} Tone */
/** @typedef {{icon: string, tone: Tone, text: string, title?: string}} Mark */

/** @type {Record<string, Mark>} */
const STATES = {
  renewing: { icon: 'renewing', tone: 'good', text: 'renewing', title: 'It renews its lease when it should' },
  late: {
    icon: 'late',
    tone: 'warn',
    text: 'late',
    title: 'A renewal is overdue: the holder is slow, stopped, cut off or dead, or it never renews',
  },
  silent: {
    icon: 'silent',
    tone: 'bad',
    text: 'silent',
    title: 'Less than a sixth of its ttl is left: a holder at work has stopped by now',
  },
  gone: { icon: 'gone', tone: 'bad', text: 'gone', title: 'Its process was on the host of this server, and has ended' },
};

/** The state of a holder. @param {HeldBy} held @returns {Mark} */
export function stateOf(held) {
  if (held.kept)
    return { icon: 'lock', tone: 'calm', text: 'kept closed', title: 'Released, and closed for a while: nobody holds it' };
  const known = STATES[held.state ?? ''];
  return known ?? { icon: 'dot', tone: 'plain', text: held.state || 'held', title: 'Whether it renews cannot be told' };
}

/** Whether its lease ends unless someone renews it, which is not to be expected. @param {HeldBy} held */
export function isEnding(held) {
  return held.evicting || held.kept || held.state === 'silent' || held.state === 'gone' || held.state === 'late';
}

/** The holders that the item lists, those whose process is gone first. @param {{holders: HeldBy[], gone?: HeldBy[]}} item @returns {HeldBy[]} */
export function holdersOf({ holders, gone }) {
  const first = gone ?? holders.filter(isGone);
  return [...first, ...holders.filter(({ token }) => !first.some((one) => one.token === token))];
}

/** @param {HeldBy} held */
export const isGone = ({ state }) => state === 'gone';

/** What is wrong or special about a resource, the worst first. @param {Item} item @returns {Mark[]} */
export function marksOf(item) {
  /** @type {Mark[]} */
  const marks = [];
  if (item.stuck) marks.push({ icon: 'stuck', tone: 'bad', text: 'stuck' });
  if (item.deadlock?.length) marks.push({ icon: 'deadlock', tone: 'bad', text: 'possible deadlock' });
  if (item.unreadable) marks.push({ icon: 'unreadable', tone: 'bad', text: 'unreadable' });
  if (item.gone?.length || item.holders.some(isGone)) marks.push({ icon: 'gone', tone: 'bad', text: 'process gone' });
  if (item.paused_for_ms) marks.push({ icon: 'paused', tone: 'calm', text: 'paused' });
  if (item.unusual_hold) marks.push({ icon: 'unusual', tone: 'warn', text: 'held unusually long' });
  if (item.led)
    marks.push({
      icon: 'info',
      tone: 'calm',
      text: 'holder has a note',
      title: 'Its holder renews and has a note, as the leader of an election has: its waiters do not count as stuck',
    });
  if (item.foreign_count) marks.push({ icon: 'foreign', tone: 'calm', text: 'another program' });
  if (item.holders.some((held) => held.evicting)) marks.push({ icon: 'lost', tone: 'warn', text: 'evicting' });
  if (item.holders.some((held) => held.asked)) marks.push({ icon: 'info', tone: 'calm', text: 'asked to finish' });
  return marks;
}

/** How bad it is, for the sign at the top. @param {Overview} overview @returns {Tone} */
export function severity(overview) {
  const { stuck, unreadable, deadlocks, gone, unusual, paused, store, failing, last_hour } = overview;
  if (stuck || unreadable || deadlocks || failing || store?.state === 'down') return 'bad';
  if (gone || unusual || paused || last_hour?.lost || (store && store.state !== 'healthy')) return 'warn';
  return 'good';
}

/** @param {number} n @param {string} one @param {string} many */
const says = (n, one, many) => `${number(n)} ${n === 1 ? one : many}`;

/** The first clause of the sentence. @param {Overview} overview */
export function headline(overview) {
  if (overview.stuck) return says(overview.stuck, 'resource is stuck', 'resources are stuck');
  if (overview.deadlocks) return says(overview.deadlocks, 'possible deadlock', 'possible deadlocks');
  if (overview.unreadable) return says(overview.unreadable, 'resource cannot be read', 'resources cannot be read');
  if (!overview.held && !overview.waiting) return 'Nothing is held';
  return 'Nothing is stuck';
}

/** The facts that follow, without those of the first clause. @param {Overview} overview @returns {string[]} */
export function asides(overview) {
  const { stuck, deadlocks = 0, unreadable, gone = 0, paused, held, waiting } = overview;
  const out = [];
  if (stuck && deadlocks) out.push(says(deadlocks, 'possible deadlock', 'possible deadlocks'));
  if ((stuck || deadlocks) && unreadable) out.push(says(unreadable, 'resource cannot be read', 'resources cannot be read'));
  if (gone) out.push(says(gone, 'resource is held by a process that is gone', 'resources are held by processes that are gone'));
  if (paused) out.push(says(paused, 'resource is paused', 'resources are paused'));
  if (!stuck && (held || waiting))
    out.push(`${says(held, 'resource is held', 'resources are held')}, ${says(waiting, 'claim waits', 'claims wait')}`);
  return out;
}

/** What the store says of itself, or its bare facts. @param {Overview} overview */
export function storeSentence({ store }) {
  if (!store) return '';
  const { quorum } = store;
  const has = quorum && !/quorum/i.test(store.sentence);
  const spare = quorum && (quorum.margin > 0 ? `${quorum.margin} to spare` : 'none to spare');
  return has ? `${store.sentence}, quorum ${quorum.up} of ${quorum.nodes}, ${spare}` : store.sentence;
}

/** @type {Record<string, [string, string, Tone]>} what has happened, icon, tone */
const CHANGES = {
  granted: ['Granted', 'granted', 'good'],
  released: ['Released', 'released', 'plain'],
  expired: ['Lost: it expired', 'lost', 'bad'],
  taken_over: ['Lost: it expired, and the next claim holds it', 'lost', 'bad'],
  handed_over: ['Handed over inside one client', 'arrow', 'plain'],
  ended: ['Ended (released or expired)', 'released', 'plain'],
  evicted: ['Evicted', 'lost', 'bad'],
  evicting: ['Eviction ordered: it is not renewed any more', 'lost', 'warn'],
  asked: ['Asked to finish', 'info', 'calm'],
  renewed_late: ['Renewed late', 'late', 'warn'],
  queued: ['New waiters', 'waiting', 'plain'],
  left: ['Waiters left', 'waiting', 'plain'],
  paused: ['Paused', 'paused', 'calm'],
  resumed: ['Resumed', 'play', 'calm'],
  resized: ['Capacity changed', 'info', 'calm'],
  unreadable: ['Cannot be read', 'unreadable', 'bad'],
  readable: ['Can be read again', 'ok', 'good'],
};

/** @param {string} kind @returns {{name: string, icon: string, tone: Tone}} */
export function changeWords(kind) {
  const [name, icon, tone] = CHANGES[kind] ?? [kind.replaceAll('_', ' '), 'dot', 'plain'];
  return { name, icon, tone };
}

/** How its holders use it. @param {{capacity: number, mode?: string, holders: HeldBy[]}} item */
export function modeOf(item) {
  const { capacity, holders } = item;
  const known = (item.mode ?? '').replaceAll('_', '-');
  if (capacity >= 0xffff_ffff || capacity === 0xffff_fffe) return known && known !== 'shared' ? known : 'read-write';
  if (known === 'exclusive' || capacity === 1) return 'exclusive';
  if (!holders.length) return known;
  const taken = holders.reduce((sum, held) => sum + held.weight, 0);
  return capacity > 1 ? `${number(taken)} of ${number(capacity)} permits` : known;
}

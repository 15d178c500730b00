// Text from outside (names, labels, notes, reasons) as people may safely see it, and durations in words.

import { h } from './dom.js';

// Characters that are invisible, or that change how the characters around them are shown: control characters, zero-width ones, marks
// and overrides of the direction, line separators, tags, and halves of surrogate pairs. The zero-width joiner stays: emoji need it.
const HIDDEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|\p{Cs}/gu;

/** Longer texts are cut in lists. The page of the resource has the whole. */
export const SHORT = 120;

/** @param {string} character */
function escaped(character) {
  const code = character.codePointAt(0) ?? 0;
  const known = { 9: '\\t', 10: '\\n', 13: '\\r', 27: '\\e' }[code];
  return known ?? `\\u{${code.toString(16)}}`;
}

/** @param {string} text @returns {boolean} whether it has characters that people cannot see */
export function hasHidden(text) {
  return text.search(HIDDEN) >= 0;
}

/** The text with its hidden characters written out. @param {string} text @param {number} [most] */
export function visible(text, most = Infinity) {
  const cut = cutTo(text, most);
  return cut.replace(HIDDEN, escaped) + (cut.length < text.length ? '…' : '');
}

/** @param {string} text @param {number} most */
function cutTo(text, most) {
  if (text.length <= most) return text;
  // Not in the middle of a surrogate pair.
  const end = /[\ud800-\udbff]/.test(text[most - 1]) ? most - 1 : most;
  return text.slice(0, end);
}

/**
 * Text from outside, isolated from the direction of the text around it.
 * @param {string} text @param {{most?: number, class?: string, lines?: boolean}} [options] `lines`: line breaks are shown as such
 */
export function untrusted(text, options = {}) {
  const { most = SHORT } = options;
  const cut = cutTo(text, most);
  const parts = [];
  let from = 0;
  for (const match of cut.matchAll(HIDDEN)) {
    if (options.lines && match[0] === '\n') continue;
    parts.push(
      cut.slice(from, match.index),
      h('span', { class: 'escaped', title: 'a character that is not visible' }, escaped(match[0])),
    );
    from = match.index + match[0].length;
  }
  parts.push(cut.slice(from) + (cut.length < text.length ? '…' : ''));
  const title = cut.length < text.length ? visible(text, 1000) : undefined;
  return h(
    'bdi',
    { dir: 'auto', class: options.class, title },
    parts.filter((part) => part !== ''),
  );
}

/** A duration of the past or the future, in words: two units at most. @param {number} ms */
export function span(ms) {
  const seconds = Math.floor(Math.max(0, ms) / 1000);
  if (seconds < 1) return '< 1 s';
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 10 && seconds % 60) return `${minutes} min ${seconds % 60} s`;
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  const days = Math.floor(hours / 24);
  return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
}

/** What is left, in words: 0 s at the end, and never less. @param {number} ms */
export function left(ms) {
  return ms < 1000 ? '0 s' : span(ms);
}

/** A short measured time. @param {number | null | undefined} ms */
export function formatMs(ms) {
  if (ms === null || ms === undefined) return '–';
  if (Math.abs(ms) >= 10_000) return span(Math.abs(ms));
  if (Math.abs(ms) >= 1000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.abs(ms) < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
}

/** @param {number} n @param {string} one @param {string} [many] */
export function count(n, one, many = `${one}s`) {
  return `${number(n)} ${n === 1 ? one : many}`;
}

/** @param {number} n */
export function number(n) {
  return n.toLocaleString('en');
}

const DAY = new Intl.DateTimeFormat('en-CA', { year: 'numeric', month: '2-digit', day: '2-digit' });
const TIME = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
/** The time zone in which the page shows times. */
export const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC';

/** A time of the server, in the time zone of the browser; without the date if it is today. @param {string | null | undefined} rfc3339 */
export function clockTime(rfc3339) {
  const at = new Date(rfc3339 ?? '');
  if (Number.isNaN(at.getTime())) return visible(rfc3339 ?? '–', 40);
  const day = DAY.format(at);
  return day === DAY.format(new Date()) ? TIME.format(at) : `${day} ${TIME.format(at)}`;
}

/** @param {string | null | undefined} rfc3339 */
export function when(rfc3339) {
  if (!rfc3339) return h('span', { class: 'quiet' }, '–');
  return h('time', { datetime: visible(rfc3339, 40), title: visible(rfc3339, 40), class: 'whole' }, clockTime(rfc3339));
}

/** A word for a shell. @param {string} word */
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) && !word.startsWith('-') ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

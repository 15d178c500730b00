// Parts that several pages show: a resource, a holder, a command to copy, a problem, an empty list.

import { age, countdown } from './clock.js';
import { copyText } from './copy.js';
import { h } from './dom.js';
import { icon } from './icons.js';
import { hasHidden, untrusted, visible } from './text.js';
import { isEnding, stateOf } from './words.js';

/** @typedef {import('./types/api').HeldBy} HeldBy */
/** @typedef {import('./types/api').Holder} Holder */
/** @typedef {import('./dom').VNode} VNode */
/** @typedef {import('./dom').Child} Child */

/** How the resource is named in a request: by its name, or, if its id is a hash, by its key. @param {{resource: string, key: string}} one
 * @returns {Record<string, string>} */
export function nameOf({ resource, key }) {
  return resource === key ? { name: resource } : { key };
}

/** @param {{resource: string, key: string}} one @returns {string} */
export function linkTo(one) {
  return `#/resource?${new URLSearchParams(nameOf(one))}`;
}

/** @param {{resource: string, key: string}} one @param {{most?: number, class?: string}} [options] */
export function resourceLink(one, options = {}) {
  return h('a', { href: linkTo(one), class: `name ${options.class ?? ''}` }, untrusted(one.resource, { most: options.most }));
}

/** The process: its label (or else the process id and host) first, because that is what people know it by. @param {Holder} holder @param {number} [most] */
export function holder({ label, host, pid, subject }, most = 60) {
  const place = [
    h('span', { class: visible(host).length < 18 ? 'whole' : '' }, 'host ', untrusted(host, { most }), ','),
    ' ',
    h('span', { class: 'whole' }, `pid ${pid}`),
  ];
  const as = subject ? [', as ', untrusted(subject, { most })] : [];
  const name = label ? untrusted(label, { most, class: 'label' }) : h('bdi', { class: 'label' }, `${pid}@${visible(host, most)}`);
  return h('span', { class: 'holder' }, name, ' ', h('span', { class: 'process' }, ...(label ? place : ['no label']), ...as));
}

/** @param {import('./words').Mark} mark @param {Child[]} more */
export function mark(mark, ...more) {
  return h('span', { class: `mark ${mark.tone}`, title: mark.title }, icon(mark.icon), h('span', null, mark.text, ...more));
}

/** The state of a holder, and when its lease ends. @param {string} key @param {HeldBy} held @param {number} base */
export function holderState(key, held, base) {
  const counts = h('span', { class: 'whole count', tick: countdown(`${key} ${held.token}`, held.remaining_ms, base) });
  const ends = held.kept ? 'opens in ' : isEnding(held) ? 'ends in ' : 'lease: ';
  const evicting = held.evicting ? h('span', { class: 'mark warn' }, icon('lost'), 'evicting') : null;
  const asked = held.asked && !held.evicting ? h('span', { class: 'mark calm' }, icon('info'), 'asked to finish') : null;
  return h('span', { class: 'holder-state' }, mark(stateOf(held)), evicting, asked, h('span', { class: 'ends' }, ends, counts));
}

/** @param {string} name @param {number} ms @param {number} base @param {string} [className] */
export function since(name, ms, base, className = '') {
  return h('span', { class: `whole count ${className}`, tick: age(name, ms, base) });
}

// The placeholder of commands for the reason, which a person must fill in.
const PLACEHOLDER = /(\bWHY\b)/;

/** A command of the command line, with a button that copies it. @param {string} text @param {string} [about] what it is for, for screen readers */
export function command(text, about = '') {
  const isSafe = !hasHidden(text);
  const parts = text
    .split(PLACEHOLDER)
    .map((part) => (part === 'WHY' ? h('mark', { title: 'Write the reason here' }, part) : untrusted(part, { most: 2000 })));
  const copy = h(
    'button',
    {
      type: 'button',
      class: 'copy',
      'aria-label': `Copy the command ${visible(about, 60)}`,
      on: { click: (/** @type {Event} */ event) => copyText(text, event) },
    },
    icon('copy'),
    h('span', { class: 'copied', 'aria-hidden': 'true' }, 'Copy'),
  );
  // A terminal would act on control characters while they are pasted.
  const unsafe = h('span', { class: 'quiet small' }, 'not to be pasted: it has characters that are not visible');
  return h(
    'span',
    { class: 'command' },
    h('code', { 'data-test': 'command', tabindex: '0', role: 'group', 'aria-label': `Command ${visible(about, 60)}` }, parts),
    isSafe ? copy : unsafe,
  );
}

/** A refusal or a failure. @param {import('./api').Problem} problem */
export function problemBox(problem) {
  return h(
    'div',
    { class: 'box bad', role: 'alert', 'data-test': 'problem' },
    icon('stuck'),
    h(
      'div',
      null,
      h('p', { class: 'strong' }, untrusted(problem.title, { most: 300 })),
      said(problem.detail),
      said(problem.hint),
    ),
  );
}

/** @param {string} text */
function said(text) {
  return text ? h('p', null, untrusted(text, { most: 1000 })) : null;
}

/** @param {string} tone @param {string} iconName @param {Child[]} children */
export function box(tone, iconName, ...children) {
  return h('div', { class: `box ${tone}` }, icon(iconName), h('div', null, ...children));
}

/** @param {string} title @param {Child[]} children */
export function empty(title, ...children) {
  return h('div', { class: 'empty' }, h('p', { class: 'strong' }, title), ...children);
}

/** @param {string} id @param {Child} title @param {Child[]} children */
export function section(id, title, ...children) {
  return h(
    'section',
    { key: id, id, class: 'section', 'aria-labelledby': `${id}-title` },
    h('h2', { id: `${id}-title` }, title),
    ...children,
  );
}

/** A name and what it is. @param {string} name @param {Child[]} children */
export function fact(name, ...children) {
  return h('div', { class: 'fact', key: `fact ${name}` }, h('dt', null, name), h('dd', null, ...children));
}

/** @param {string} label @param {(event: any) => void} click @param {{class?: string, icon?: string, test?: string, about?: string, id?: string, key?: string, disabled?: boolean}} [options] */
export function button(label, click, options = {}) {
  const about = options.about ? h('span', { class: 'visually-hidden' }, ` ${visible(options.about, 80)}`) : null;
  return h(
    'button',
    {
      type: 'button',
      key: options.key,
      id: options.id,
      class: options.class,
      'data-test': options.test,
      disabled: options.disabled,
      on: { click },
    },
    options.icon ? icon(options.icon) : null,
    h('span', null, label, about),
  );
}

/** A table that becomes a list of cards on a narrow screen. @param {string} label @param {string[]} columns @param {VNode[]} rows @param {string} [className] */
export function table(label, columns, rows, className = '') {
  const head = h(
    'tr',
    null,
    columns.map((column) => h('th', { scope: 'col', key: column }, column)),
  );
  return h('table', { class: `table ${className}`, 'aria-label': label }, h('thead', null, head), h('tbody', null, rows));
}

/** @param {string} key @param {[string, Child][]} cells the name of the column, for cards, and the content */
export function row(key, cells) {
  return h(
    'tr',
    { key },
    cells.map(([name, content], index) =>
      h(index ? 'td' : 'th', { scope: index ? undefined : 'row', 'data-column': name }, content),
    ),
  );
}

/** The first command of somebody who has never held anything. */
export function firstCommand() {
  const here = `${location.origin}${location.pathname.replace(/\/(index\.html)?$/, '')}`;
  return command(`leasehold --store ${here} run report/1 -- sleep 60`, 'that takes a first lease');
}

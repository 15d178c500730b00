// The keyboard: single keys, unless a person turns them off (speech input types letters), and the list of them.

import { h } from './dom.js';
import { isDialogOpen, openDialog } from './dialog.js';
import { PAGES } from './header.js';
import { go } from './route.js';
import { read, write } from './theme.js';

const KEPT = 'leasehold-keys';

/** @type {[string, string][]} */
const LIST = [
  ['/', 'find a resource'],
  ['p', 'pause or resume live updates'],
  ['t', 'theme: system, light, dark'],
  ['1 – 5', 'Overview, Resources, Store, Jobs, Audit'],
  ['j  k', 'next, previous row'],
  ['Esc', 'close a dialog; leave the search'],
  ['?', 'this list'],
];

/** @param {{pause: () => void, theme: () => void}} commands */
export function startKeys(commands) {
  addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const at = event.target instanceof HTMLElement ? event.target : document.body;
    if (event.key === 'Escape' && at.id === 'search') return at.blur();
    if (isDialogOpen() || at.closest('input, textarea, select, [contenteditable]')) return;
    if (read(KEPT) === 'off') return;
    const act = actionOf(event.key, commands);
    if (!act) return;
    event.preventDefault();
    act();
  });
}

/** @param {string} key @param {{pause: () => void, theme: () => void}} commands @returns {(() => void) | null} */
function actionOf(key, commands) {
  const page = PAGES[Number(key) - 1];
  if (/^[1-5]$/.test(key) && page) return () => go(`#/${page[0]}`);
  switch (key) {
    case '/':
      return () => document.getElementById('search')?.focus();
    case 'p':
      return commands.pause;
    case 't':
      return commands.theme;
    case '?':
      return openKeys;
    case 'j':
      return () => step(1);
    case 'k':
      return () => step(-1);
    default:
      return null;
  }
}

/** The focus goes to the link of the next row. @param {number} by */
function step(by) {
  const links = /** @type {HTMLElement[]} */ ([...document.querySelectorAll('main .attention h3 a, main .table tbody th a')]);
  const rows = links.map((link) => link.closest('li, tr'));
  const at = rows.findIndex((row) => row?.contains(document.activeElement));
  links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
}

export function openKeys() {
  const dialog = openDialog('keys-dialog', () =>
    h(
      'div',
      { class: 'action' },
      h('h2', { id: 'keys-dialog-title' }, 'Keys'),
      h(
        'dl',
        { class: 'key-list' },
        LIST.map(([key, what]) =>
          h(
            'div',
            { key },
            h(
              'dt',
              null,
              key.split('  ').map((one) => h('kbd', { key: one }, one)),
            ),
            h('dd', null, what),
          ),
        ),
      ),
      h(
        'label',
        { class: 'check' },
        h('input', {
          type: 'checkbox',
          id: 'keys-on',
          checked: read(KEPT) !== 'off',
          on: { change: (/** @type {any} */ event) => write(KEPT, event.target.checked ? null : 'off') },
        }),
        h('span', null, 'Enable single-key shortcuts'),
      ),
      h('div', { class: 'buttons' }, h('button', { type: 'button', on: { click: () => dialog.close() } }, 'Close')),
    ),
  );
}

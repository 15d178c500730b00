// Modal dialogs: the browser keeps the focus inside, closes them on Esc, and gives the focus back.

import { create, h, patch } from './dom.js';

/** @typedef {{draw: () => void, close: () => void}} Dialog */

/** @returns {boolean} */
export function isDialogOpen() {
  return document.querySelector('dialog[open]') !== null;
}

/** Another page or another caller: what an open dialog asks about is not there any more. */
export function closeDialogs() {
  for (const element of document.querySelectorAll('dialog')) element.close();
}

/** @param {string} id @param {() => import('./dom').VNode} describe @param {() => void} [closed] @returns {Dialog} */
export function openDialog(id, describe, closed) {
  const element = /** @type {HTMLDialogElement} */ (create(h('dialog', { id, 'aria-labelledby': `${id}-title` })));
  const draw = () => patch(element, describe());
  draw();
  document.getElementById('dialogs')?.append(element);
  const opener = /** @type {HTMLElement | null} */ (document.activeElement);
  element.addEventListener('close', () => {
    element.remove();
    // The row of the button may have gone meanwhile. The keyboard must not begin at the top of the page again.
    if (!opener?.isConnected && document.activeElement === document.body) document.getElementById('main')?.focus();
    closed?.();
  });
  // A click beside the dialog closes it, unless something was typed.
  element.addEventListener('click', (event) => {
    const typed = [...element.querySelectorAll('input')].some(
      (input) => input.type !== 'checkbox' && input.value !== input.defaultValue && input.value !== '',
    );
    if (event.target === element && !typed) element.close();
  });
  element.showModal();
  return { draw, close: () => element.close() };
}

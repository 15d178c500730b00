// Copies text. The clipboard of the browser is only there for HTTPS and loopback; elsewhere the old way is used.

const SHOWN_MS = 2000;

/** @param {string} text @param {Event} event the click on the button that says when it is done */
export async function copyText(text, event) {
  const button = /** @type {HTMLElement} */ (event.currentTarget ?? event.target);
  const label = button.closest('button')?.querySelector('.copied');
  const done = (await byClipboard(text)) || bySelection(text, button);
  if (!label) return;
  label.textContent = done ? 'Copied' : 'Select it, and copy it by hand';
  announce(done ? 'Copied' : 'Not copied');
  setTimeout(() => (label.textContent = 'Copy'), SHOWN_MS);
}

/** Says something to screen readers. @param {string} text */
export function announce(text) {
  const status = document.getElementById('announcement');
  if (status && status.textContent !== text) status.textContent = text;
}

/** @param {string} text */
async function byClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** @param {string} text @param {HTMLElement} button */
function bySelection(text, button) {
  const field = document.createElement('textarea');
  field.value = text;
  field.className = 'visually-hidden';
  field.setAttribute('readonly', '');
  // Inside an open dialog everything outside of it cannot be selected.
  (button.closest('dialog') ?? document.body).append(field);
  field.select();
  const done = document.execCommand('copy');
  field.remove();
  button.closest('button')?.focus();
  return done;
}

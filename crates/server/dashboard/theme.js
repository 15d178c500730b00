// The theme: that of the system, unless this browser was told otherwise.

const KEY = 'leasehold-theme';

/** @typedef {'system' | 'light' | 'dark'} Theme */

/** @returns {Theme} */
export function theme() {
  const kept = read(KEY);
  return kept === 'light' || kept === 'dark' ? kept : 'system';
}

/** @returns {Theme} the theme after this one */
export function nextTheme() {
  return theme() === 'system' ? 'light' : theme() === 'light' ? 'dark' : 'system';
}

/** @param {Theme} chosen */
export function setTheme(chosen) {
  write(KEY, chosen === 'system' ? null : chosen);
  apply();
}

/** @param {string} key @returns {string | null} what this browser keeps under the key */
export function read(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null; // Storage may be forbidden: then each visit begins anew.
  }
}

/** @param {string} key @param {string | null} value */
export function write(key, value) {
  try {
    if (value === null) localStorage.removeItem(key);
    else localStorage.setItem(key, value);
  } catch {
    // As above.
  }
}

function apply() {
  const chosen = theme();
  if (chosen === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
}

apply();
// Another tab of this browser has changed it.
addEventListener('storage', (event) => {
  if (event.key === KEY) apply();
});

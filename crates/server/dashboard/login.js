// The log-in: the token goes to the server once, which keeps it in a cookie that no script can read.

import { asProblem, get, post, Problem } from './api.js';
import { h } from './dom.js';
import { icon } from './icons.js';
import { box, command, problemBox } from './parts.js';
import { changed, onForget } from './state.js';

/** @type {{busy: boolean, problem: import('./api').Problem | null}} */
const form = { busy: false, problem: null };

const NEEDS_HTTPS =
  'Log-in needs HTTPS: this page was loaded over plain HTTP, and there a browser does not keep the cookie of the log-in. Open it by HTTPS, or on the machine of the server itself.';

onForget(() => Object.assign(form, { busy: false, problem: null }));

/** The server has taken the token. Whether the browser sends it from now on is another matter. */
async function checkCookie() {
  try {
    await get('v1/info');
  } catch (error) {
    const problem = asProblem(error);
    if (problem.status !== 401) throw problem;
    const detail = isSecureContext ? 'Allow cookies for this page, and log in again.' : NEEDS_HTTPS;
    throw new Problem({ title: 'The browser did not keep the log-in', status: 401, kind: 'cookie', detail, effect: 'none' });
  }
}

/** @param {() => void} done */
export function drawLogin(done) {
  const submit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const field = /** @type {HTMLInputElement | null} */ (document.getElementById('login-token'));
    const token = field?.value.trim();
    if (!token || form.busy) return;
    Object.assign(form, { busy: true, problem: null });
    changed();
    try {
      await post('v1/login', { token });
      await checkCookie();
      if (field) field.value = '';
      form.busy = false;
      done();
    } catch (error) {
      const problem = asProblem(error);
      // The hint is for programs: they send a header.
      if (problem.kind === 'unauthenticated') problem.hint = '';
      Object.assign(form, { busy: false, problem });
      changed();
      field?.focus();
      field?.select();
    }
  };
  return h(
    'div',
    { class: 'login', key: 'login' },
    h(
      'form',
      { class: 'card', on: { submit }, method: 'post', autocomplete: 'on' },
      h('p', { class: 'sign' }, icon('lock')),
      h('h1', { tabindex: '-1' }, 'Log in with a token'),
      h(
        'p',
        { class: 'quiet' },
        'This server shows its leases to people with a token. It begins with ',
        h('code', null, 'lh_'),
        '.',
      ),
      // Password managers want a name beside the secret.
      h('input', {
        type: 'text',
        name: 'username',
        autocomplete: 'username',
        value: 'leasehold',
        class: 'visually-hidden',
        tabindex: '-1',
        'aria-hidden': 'true',
        readonly: true,
      }),
      h(
        'div',
        { class: 'field' },
        h('label', { for: 'login-token' }, 'Token'),
        h('input', {
          id: 'login-token',
          name: 'token',
          type: 'password',
          autocomplete: 'current-password',
          required: true,
          spellcheck: 'false',
          'aria-invalid': form.problem ? 'true' : undefined,
          placeholder: 'lh_…',
          made: (/** @type {HTMLInputElement} */ element) => queueMicrotask(() => element.focus()),
        }),
      ),
      form.problem ? problemBox(form.problem) : isSecureContext ? null : box('warn', 'silent', h('p', null, NEEDS_HTTPS)),
      h(
        'div',
        { class: 'buttons' },
        h(
          'button',
          { type: 'submit', class: 'primary', id: 'login-submit', disabled: form.busy },
          form.busy ? 'Logging in…' : 'Log in',
        ),
      ),
      h(
        'details',
        { class: 'more' },
        h('summary', null, 'I have no token'),
        h('p', null, 'Someone with access to the tokens file of the server makes one. It is shown once:'),
        command('leasehold token --tokens TOKENS_FILE new NAME --role viewer', 'that makes a token'),
      ),
    ),
  );
}

// What the page says of itself: the line under the bar when something does not work, the panels of the signs, the foot.

import { h } from './dom.js';
import { icon } from './icons.js';
import { ageMs, readOnlyBecause, state } from './state.js';
import { span, untrusted, visible, when } from './text.js';

/** What a sample cannot show. */
export const SAMPLING = 'A change that starts and ends between two samples is not shown.';

/** Explains how fresh the page is. Its element is outside of the bar, because it lies above the page. */
export function panels() {
  const overview = state.overview?.body;
  const { info } = state;
  return [
    h(
      'div',
      {
        key: 'freshness',
        id: 'freshness-more',
        class: 'panel',
        popover: 'auto',
        role: 'dialog',
        'aria-label': 'How fresh this is',
      },
      h('h2', null, 'How fresh this is'),
      h('p', null, `The server samples the store every ${Math.round(state.everyMs / 100) / 10} s. ${SAMPLING}`),
      h(
        'dl',
        { class: 'facts' },
        h(
          'div',
          { class: 'fact' },
          h('dt', null, 'Last sample'),
          h(
            'dd',
            null,
            h('span', {
              tick: () => {
                const ms = ageMs();
                return ms === null ? 'none yet' : `${span(ms)} ago`;
              },
            }),
          ),
        ),
        h(
          'div',
          { class: 'fact' },
          h('dt', null, 'Updates'),
          h(
            'dd',
            null,
            state.paused
              ? 'paused by you'
              : state.connection === 'live'
                ? 'as they happen, by one stream for all tabs'
                : state.connection === 'lost'
                  ? 'none: the server does not answer'
                  : 'every 5 s: there is no stream. A proxy may hold it back',
          ),
        ),
        overview ? h('div', { class: 'fact' }, h('dt', null, 'Watching since'), h('dd', null, when(overview.since))) : null,
        overview?.truncated
          ? h(
              'div',
              { class: 'fact' },
              h('dt', null, 'Not complete'),
              h('dd', null, 'the store has more resources than a sample holds'),
            )
          : null,
      ),
    ),
    h(
      'div',
      { key: 'account', id: 'account-more', class: 'panel', popover: 'auto', role: 'dialog', 'aria-label': 'Who you are' },
      h('h2', null, info?.caller.subject ? untrusted(info.caller.subject, { most: 80 }) : 'Without a token'),
      h(
        'p',
        { 'data-test': 'role' },
        readOnlyBecause() ? `Read-only: ${readOnlyBecause()}.` : 'You may give orders: role operator.',
      ),
      info
        ? h(
            'dl',
            { class: 'facts' },
            h('div', { class: 'fact' }, h('dt', null, 'Roles'), h('dd', null, visible(info.caller.roles.join(', '), 80))),
            h(
              'div',
              { class: 'fact' },
              h('dt', null, 'Namespaces'),
              h('dd', null, visible(info.caller.namespaces?.join(', ') ?? 'all', 300)),
            ),
            h(
              'div',
              { class: 'fact' },
              h('dt', null, 'Kinds'),
              h('dd', null, visible(info.caller.kinds?.join(', ') ?? 'all', 300)),
            ),
          )
        : null,
      h(
        'div',
        { class: 'buttons start' },
        h('button', { type: 'button', id: 'show-keys', key: 'keys' }, icon('keys'), 'Keys'),
        info?.caller.subject ? h('button', { type: 'button', id: 'logout', key: 'logout' }, 'Log out') : null,
      ),
    ),
  ];
}

/** The line under the bar when something keeps it from being true. */
export function banner() {
  const { problem, connection, overview, notice } = state;
  const failing = overview?.body.failing;
  if (state.login) return null;
  if (notice) return problemLine(notice);
  if (connection === 'lost') {
    const since = state.lostSince ? ` since ${state.lostSince.toTimeString().slice(0, 8)}` : '';
    return h(
      'p',
      { class: 'bad', key: 'lost' },
      icon('silent'),
      h(
        'span',
        null,
        h('strong', null, `The server does not answer${since}.`),
        overview ? ' You see its last state; the clocks have stopped. ' : ' ',
        'This page tries again by itself.',
      ),
    );
  }
  if (failing)
    return h(
      'p',
      { class: 'bad', key: 'failing' },
      icon('silent'),
      h(
        'span',
        null,
        h('strong', null, 'The server cannot read the store'),
        ` (${visible(failing, 60)}). You see its last sample; the clocks have stopped, and no order can be given.`,
      ),
    );
  if (state.suspended)
    return h(
      'p',
      { class: 'warn', key: 'suspended' },
      icon('info'),
      'This computer was suspended. The page asks the server again.',
    );
  if (problem) return problemLine(problem);
  if (state.info?.draining) return h('p', { class: 'warn', key: 'draining' }, icon('info'), 'The server is shutting down.');
  return null;
}

/** @param {import('./api').Problem} problem */
function problemLine(problem) {
  return h(
    'p',
    { class: 'warn', key: 'problem' },
    icon('info'),
    h(
      'span',
      null,
      h('strong', null, untrusted(problem.title, { most: 200 })),
      problem.detail ? [': ', untrusted(problem.detail, { most: 400 })] : '',
      problem.hint ? ['. ', untrusted(problem.hint, { most: 300 })] : '',
    ),
  );
}

export function footer() {
  const { info, overview } = state;
  if (!overview) return null;
  const { body } = overview;
  return [
    h(
      'p',
      { key: 'sampling', id: 'sampling' },
      `Sampled every ${Math.round(state.everyMs / 100) / 10} s by this server since `,
      when(body.since),
      `. ${SAMPLING}`,
      body.truncated ? ' The store has more resources than a sample holds.' : '',
    ),
    info ? h('p', { key: 'version' }, 'leasehold ', untrusted(info.server, { most: 40 })) : null,
  ];
}

// Small drawings. Each has a shape of its own, so that no meaning hangs on a colour alone. A text always stands beside them.

import { h } from './dom.js';

const FILLED = 'filled';
/** Paths on a grid of 16. @type {Record<string, string[]>} */
const PATHS = {
  ok: ['M8 1.8a6.2 6.2 0 1 0 0 12.4a6.2 6.2 0 0 0 0-12.4z', 'M5.2 8.2l2 2 3.7-4'],
  renewing: ['M3 8a5 5 0 0 1 8.6-3.4L13 6', 'M13 2.8V6h-3.2', 'M13 8a5 5 0 0 1-8.6 3.4L3 10', 'M3 13.2V10h3.2'],
  late: ['M8 1.8a6.2 6.2 0 1 0 0 12.4a6.2 6.2 0 0 0 0-12.4z', 'M8 4.6V8l2.3 1.6'],
  silent: ['M8 2L14.4 13.4H1.6z', 'M8 6.6v3', 'M8 11.5v.1'],
  gone: ['M8 1.8a6.2 6.2 0 1 0 0 12.4a6.2 6.2 0 0 0 0-12.4z', 'M5.7 5.7l4.6 4.6', 'M10.3 5.7l-4.6 4.6'],
  stuck: ['M5.2 1.8h5.6L14.2 5.2v5.6l-3.4 3.4H5.2l-3.4-3.4V5.2z', 'M8 4.9v3.8', 'M8 11v.1'],
  deadlock: [
    'M6.2 9.8a2.9 2.9 0 0 1-4-4l1.6-1.6a2.9 2.9 0 0 1 4 0',
    'M9.8 6.2a2.9 2.9 0 0 1 4 4l-1.6 1.6a2.9 2.9 0 0 1-4 0',
    'M6 10l4-4',
  ],
  unusual: ['M4 1.8h8', 'M4 14.2h8', 'M5 2c0 4 6 4 6 8v4', 'M11 2c0 4-6 4-6 8v4'],
  paused: ['M5.3 3v10', 'M10.7 3v10'],
  play: ['M5 3l7.5 5L5 13z'],
  unreadable: ['M3.5 1.8h6l3 3v9.4h-9z', 'M6.3 7.3l3.4 3.4', 'M9.7 7.3l-3.4 3.4'],
  foreign: ['M8 1.8L14.2 8 8 14.2 1.8 8z'],
  lost: ['M8 2v7', 'M4.8 6.2L8 9.4l3.2-3.2', 'M2.5 13.5h11'],
  waiting: ['M2.5 4h11', 'M2.5 8h8', 'M2.5 12h5'],
  copy: ['M5.5 5.5h8v8h-8z', 'M10.5 5.5v-3h-8v8h3'],
  search: ['M7 2.3a4.7 4.7 0 1 0 0 9.4a4.7 4.7 0 0 0 0-9.4z', 'M10.5 10.5l3.5 3.5'],
  sun: [
    'M8 5a3 3 0 1 0 0 6a3 3 0 0 0 0-6z',
    'M8 1v1.5',
    'M8 13.5V15',
    'M1 8h1.5',
    'M13.5 8H15',
    'M3 3l1.1 1.1',
    'M11.9 11.9L13 13',
    'M3 13l1.1-1.1',
    'M11.9 4.1L13 3',
  ],
  moon: ['M13.5 9.7A6 6 0 1 1 6.3 2.5a4.8 4.8 0 0 0 7.2 7.2z'],
  system: ['M8 2a6 6 0 1 0 0 12a6 6 0 0 0 0-12z', 'M8 2a6 6 0 0 1 0 12z'],
  person: ['M8 2.2a2.8 2.8 0 1 0 0 5.6a2.8 2.8 0 0 0 0-5.6z', 'M2.8 14a5.2 5.2 0 0 1 10.4 0'],
  lock: ['M3.5 7h9v6.7h-9z', 'M5.5 7V4.8a2.5 2.5 0 0 1 5 0V7'],
  keys: ['M1.5 4h13v8.5h-13z', 'M4 6.7v.1', 'M6.7 6.7v.1', 'M9.3 6.7v.1', 'M12 6.7v.1', 'M5 10h6'],
  granted: ['M3 8.5l3.3 3.3L13 5'],
  released: ['M3.5 7h9v6.7h-9z', 'M5.5 7V4.8a2.5 2.5 0 0 1 4.8-1'],
  arrow: ['M2.5 8h11', 'M9.5 4l4 4-4 4'],
  info: ['M8 1.8a6.2 6.2 0 1 0 0 12.4a6.2 6.2 0 0 0 0-12.4z', 'M8 7.3v3.7', 'M8 4.9v.1'],
  dot: [FILLED, 'M8 5a3 3 0 1 0 0 6a3 3 0 0 0 0-6z'],
};

/** @param {string} name @param {string} [tone] a class of colour */
export function icon(name, tone) {
  const paths = PATHS[name] ?? PATHS.dot;
  const isFilled = paths[0] === FILLED;
  return h(
    'svg',
    { class: `icon ${tone ?? ''}`, viewBox: '0 0 16 16', width: 16, height: 16, 'aria-hidden': 'true', focusable: 'false' },
    paths.filter((path) => path !== FILLED).map((d) => h('path', { d, class: isFilled ? 'filled' : undefined })),
  );
}

// The order of a list while somebody points at it or has a dialog open: rows are updated in their places, and not moved.

import { isDialogOpen } from './dialog.js';

// A pointer that rests on a list for longer does not want anything there.
const POINTING_MS = 5000;
const LISTS_MAX = 20;

/** @type {Map<string, string[]>} */
const orders = new Map();
let movedAt = -Infinity;
/** @type {Element | null} */
let under = null;

addEventListener(
  'pointermove',
  (event) => {
    movedAt = performance.now();
    under = event.target instanceof Element ? event.target : null;
  },
  { passive: true },
);

/** @param {string} list */
function isInUse(list) {
  const selector = `[data-keep-order="${list}"]`;
  const isPointedAt = performance.now() - movedAt < POINTING_MS && under?.closest(selector);
  return isDialogOpen() || Boolean(isPointedAt) || document.activeElement?.closest(selector) !== null;
}

/** The items in the order of the last time if the list is in use, and new ones behind them. @template {{key: string}} T @param {string} list @param {T[]} items @returns {T[]} */
export function keepOrder(list, items) {
  const before = orders.get(list);
  let out = items;
  if (before && isInUse(list)) {
    const rank = new Map(before.map((key, index) => [key, index]));
    out = items
      .map((item, index) => ({ item, rank: rank.get(item.key) ?? before.length + index }))
      .sort((a, b) => a.rank - b.rank)
      .map(({ item }) => item);
  }
  // The newest is last. A search for each typed letter is a list of its own.
  orders.delete(list);
  orders.set(
    list,
    out.map(({ key }) => key),
  );
  for (const name of orders.keys()) {
    if (orders.size <= LISTS_MAX) break;
    orders.delete(name);
  }
  return out;
}

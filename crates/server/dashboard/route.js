// Addresses of pages: what follows the # of the page's address. The server never sees it, so that a proxy's prefix does not matter.

/** @returns {{page: string, params: Record<string, string>}} */
export function route() {
  const text = location.hash.replace(/^#\/?/, '');
  const at = text.indexOf('?');
  const [page, query] = at < 0 ? [text, ''] : [text.slice(0, at), text.slice(at + 1)];
  return { page, params: Object.fromEntries(new URLSearchParams(query)) };
}

/** Opens a page. @param {string} address @param {{replace?: boolean}} [options] without an entry in the history of the browser */
export function go(address, options = {}) {
  if (options.replace) location.replace(address);
  else location.hash = address;
}

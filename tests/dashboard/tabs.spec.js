// Several tabs of one browser: one stream of events, and all of them follow.

import { expect, isLive, logIn, test } from './lib/test.js';

/** Counts the streams that are open. @param {import('@playwright/test').BrowserContext} context */
function streams(context) {
  /** @type {Set<import('@playwright/test').Request>} */
  const open = new Set();
  const isStream = (/** @type {import('@playwright/test').Request} */ request) => new URL(request.url()).pathname.endsWith('/v1/events');
  context.on('response', (response) => {
    if (isStream(response.request()) && response.status() === 200) open.add(response.request());
  });
  context.on('requestfinished', (request) => open.delete(request));
  context.on('requestfailed', (request) => open.delete(request));
  // Nothing else is said of the requests of a tab that is closed.
  context.on('page', (page) => page.on('close', () => [...open].filter((request) => request.frame().page() === page).forEach((request) => open.delete(request))));
  return open;
}

for (const count of [2, 7]) {
  test(`${count} tabs share one stream, and follow when its tab is closed`, async ({ context, server, watch }) => {
    void watch;
    const open = streams(context);
    const page = await context.newPage();
    await logIn(page, server, server.tokens.operator);
    const tabs = [page];
    while (tabs.length < count) {
      const tab = await context.newPage();
      await tab.goto(server.url);
      tabs.push(tab);
    }
    for (const tab of tabs) await isLive(tab);
    await server.hold({ resource: 'report/1' });
    for (const tab of tabs) await expect(tab.locator('#sentence')).toContainText('1 resource is held');
    expect(open.size).toBe(1);
    // The tab that reads the stream is closed.
    await [...open][0].frame().page().close();
    const left = tabs.filter((tab) => !tab.isClosed());
    expect(left).toHaveLength(count - 1);
    await expect.poll(() => open.size).toBe(1);
    for (const tab of left) await isLive(tab);
    await server.hold({ resource: 'report/2' });
    for (const tab of left) await expect(tab.locator('#sentence')).toContainText('2 resources are held');
    expect(open.size).toBe(1);
  });
}

test('a hidden browser ends the stream, and still says in its title what is stuck', async ({ page, context, server, watch }) => {
  test.slow();
  void watch;
  const open = streams(context);
  await logIn(page, server, server.tokens.operator);
  await isLive(page);
  expect(open.size).toBe(1);
  const hide = (/** @type {boolean} */ hidden) =>
    page.evaluate((is) => {
      Object.defineProperty(document, 'hidden', { value: is, configurable: true });
      document.dispatchEvent(new Event('visibilitychange', { bubbles: true }));
    }, hidden);
  await hide(true);
  await expect.poll(() => open.size).toBe(0);
  (await server.hold({ resource: 'report/1' })).keep();
  void server.waitFor({ resource: 'report/1' });
  await expect(page).toHaveTitle(/^\(1 stuck\)/, { timeout: 60_000 });
  expect(open.size).toBe(0);
  await hide(false);
  await expect.poll(() => open.size).toBe(1);
  await isLive(page);
});

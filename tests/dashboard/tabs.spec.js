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
    // What has happened is listed in each tab once, and in the same order.
    for (const resource of ['report/7', 'report/8', 'report/9']) await server.ask('POST', '/v1/orders', { resource, action: 'pause', lasting_ms: 600_000, why: 'a test' });
    for (const tab of tabs) await expect(tab.locator('#recent li')).toHaveCount(3);
    const lists = await Promise.all(tabs.map((tab) => tab.locator('#recent li .name').allTextContents()));
    for (const list of lists) expect(list).toEqual(lists[0]);
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

test('a list of changes says where some are missing', async ({ page, server, watch }) => {
  void watch;
  const change = (/** @type {string} */ id, /** @type {string} */ kind, /** @type {string} */ key) =>
    `id: ${id}\nevent: change\ndata: ${JSON.stringify({ at: new Date().toISOString(), kind, resource: key, key, token: '1', queue_length: 0 })}\n\n`;
  let streams = 0;
  await page.route('**/v1/events', (route) => {
    streams += 1;
    const start = 'id: a-0\nevent: resync\ndata: {"reason":"start"}\n\n';
    const later = 'id: a-9\nevent: resync\ndata: {"reason":"lag","changes":1500}\n\n';
    const body = streams === 1 ? `${start}${change('a-1', 'expired', 'report/1')}${later}${change('a-10', 'expired', 'report/2')}` : ': nothing more\n\n';
    return route.fulfill({ status: 200, headers: { 'content-type': 'text/event-stream', 'cache-control': 'no-store' }, body });
  });
  // Before the log-in the page would read the stream, too.
  await page.context().request.post(`${server.url}/v1/login`, { data: { token: server.tokens.operator } });
  await page.goto(server.url);
  const rows = page.locator('#recent li');
  await expect(rows).toHaveCount(3);
  await expect(rows.nth(0)).toContainText('report/2');
  await expect(rows.nth(1)).toContainText('1,500 changes before this are not listed');
  await expect(rows.nth(2)).toContainText('report/1');
});

test.describe('a server that seldom takes samples', () => {
  test.use({ settings: { options: ['--sample-every', '30s'] } });

  test('a stream that is silent for too long is opened again', async ({ page, context, server, watch }) => {
    void watch;
    // Nobody wants to wait for 40 seconds.
    await context.addInitScript(() => {
      const real = globalThis.setTimeout;
      Object.assign(globalThis, { setTimeout: (/** @type {() => void} */ act, /** @type {number} */ ms) => real(act, ms === 40_000 ? 1000 : ms) });
    });
    let opened = 0;
    context.on('response', (response) => {
      if (response.url().endsWith('/v1/events') && response.status() === 200) opened += 1;
    });
    await logIn(page, server, server.tokens.operator);
    await expect.poll(() => opened).toBeGreaterThanOrEqual(3);
    await isLive(page);
  });
});

// Many resources, and many changes.

import { createServer, request as ask } from 'node:http';

import { expect, isLive, logIn, stuckRow, test } from './lib/test.js';

/** @typedef {import('@playwright/test').Page} Page */

const MANY = 10_000;
/** A page that does not answer for longer than this feels frozen. On a machine that is busy with tests, too. */
const FROZEN_MS = 1500;

/**
 * The longest time for which the page did nothing else, while `meanwhile` went on. The machine may be busy with other things: an empty
 * page measures the same, and its longest pause is taken off.
 * @param {Page} page @param {() => Promise<unknown>} meanwhile
 */
async function longestPause(page, meanwhile) {
  const [other] = await Promise.all([page.context().newPage(), page.evaluate(measure)]);
  await other.evaluate(measure);
  await meanwhile();
  const [pause, ofMachine] = await Promise.all([page.evaluate(measured), other.evaluate(measured)]);
  await other.close();
  return pause - ofMachine;
}

/** Measures the longest pause between two calls of a timer. */
function measure() {
  const state = /** @type {any} */ (globalThis);
  let last = performance.now();
  state.longest = 0;
  state.timer = setInterval(() => {
    const now = performance.now();
    state.longest = Math.max(state.longest, now - last);
    last = now;
  }, 10);
}

/** @returns {number} */
function measured() {
  const state = /** @type {any} */ (globalThis);
  clearInterval(state.timer);
  return state.longest;
}

test(`${MANY} resources are searched, filtered, sorted and paged, and few of them are in the page`, async ({ operator: page, server }) => {
  const kinds = ['report', 'import', 'customer', 'export'];
  const names = Array.from({ length: MANY }, (_, number) => `${kinds[number % kinds.length]}/${String(number).padStart(5, '0')}`);
  await server.holdAll(names.map((resource) => ({ resource, label: `worker ${resource}` })));
  void server.waitFor({ resource: 'report/00004', label: 'waits for one of many' });
  await expect(page.locator('#sentence')).toContainText('report/00004');
  const longest = await longestPause(page, async () => {
    await page.locator('nav a', { hasText: 'Resources' }).click();
    await expect(page.locator('#matched')).toHaveText('10,000 resources');
    expect(await page.locator('main tbody tr').count()).toBeLessThanOrEqual(200);
    await page.locator('#search').fill('0777');
    await expect(page.locator('#matched')).toHaveText('11 resources found');
    await expect(page.locator('main tbody tr')).toHaveCount(11);
    await page.locator('#search').fill('');
    await page.locator('#select-kind').selectOption('export');
    await expect(page.locator('#matched')).toHaveText('2,500 resources found');
    await page.locator('#select-sort').selectOption('name');
    await expect(page.locator('main tbody tr').first()).toContainText('export/00003');
    await page.locator('nav.pages a', { hasText: 'Next' }).click();
    await expect(page.locator('main tbody tr').first()).toContainText('export/00203');
    await page.locator('nav.pages a', { hasText: 'Next' }).click();
    await expect(page.locator('main tbody tr').first()).toContainText('export/00403');
    await page.locator('nav.pages a', { hasText: 'Page before' }).click();
    await expect(page.locator('main tbody tr').first()).toContainText('export/00203');
    expect(await page.locator('main tbody tr').count()).toBeLessThanOrEqual(200);
  });
  expect(longest).toBeLessThan(FROZEN_MS);
  await page.locator('nav a', { hasText: 'Overview' }).click();
  await expect(stuckRow(page, 'report/00004')).toBeVisible();
});

/** The real server, but its stream has so many changes a second. @param {string} url @param {number} rate @returns {Promise<{url: string, sent: () => number, close: () => void}>} */
async function busyServer(url, rate) {
  const EVERY_MS = 100;
  let sent = 0;
  /** @type {Set<NodeJS.Timeout>} */
  const timers = new Set();
  const server = createServer((request, response) => {
    const headers = { ...request.headers, host: new URL(url).host };
    if (headers.origin) headers.origin = url;
    if (request.url !== '/v1/events') {
      const passedOn = ask(url + request.url, { method: request.method, headers }, (answer) => {
        response.writeHead(answer.statusCode ?? 502, answer.headers);
        answer.pipe(response);
      });
      passedOn.on('error', () => response.destroy());
      request.pipe(passedOn);
      return;
    }
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' });
    const timer = setInterval(() => {
      let text = '';
      for (let number = 0; number < (rate * EVERY_MS) / 1000; number += 1) {
        sent += 1;
        const key = `report/${sent % 3000}`;
        const holder = { host: 'host-a', pid: sent, label: 'busy' };
        text += `id: x-${sent}\nevent: change\ndata: ${JSON.stringify({ at: new Date().toISOString(), kind: sent % 10 ? 'granted' : 'expired', resource: key, key, token: String(sent), holder, queue_length: 0 })}\n\n`;
      }
      response.write(`${text}event: sampled\ndata: {"age_ms":0,"every_ms":300,"event_id":"x-${sent}"}\n\n`);
    }, EVERY_MS);
    timers.add(timer);
    response.on('close', () => clearInterval(timer));
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(null)));
  const { port } = /** @type {import('node:net').AddressInfo} */ (server.address());
  return {
    url: `http://127.0.0.1:${port}`,
    sent: () => sent,
    close: () => {
      timers.forEach(clearInterval);
      server.closeAllConnections();
      server.close();
    },
  };
}

test('5000 changes a second do not freeze the page', async ({ page, server, watch }) => {
  await server.holdAll(Array.from({ length: 3000 }, (_, number) => ({ resource: `report/${number}` })));
  const busy = await busyServer(server.url, 5000);
  const origin = server.url;
  try {
    server.url = busy.url;
    await logIn(page, server, server.tokens.operator);
    await isLive(page);
    const longest = await longestPause(page, async () => {
      await expect.poll(busy.sent).toBeGreaterThan(10_000);
      // A person goes on working.
      await page.locator('nav a', { hasText: 'Resources' }).click();
      await page.locator('#search').fill('777');
      await expect(page.locator('#matched')).toHaveText('3 resources found');
      await page.locator('nav a', { hasText: 'Overview' }).click();
      await expect(page.locator('#recent')).toContainText('Lost: it expired');
      await expect.poll(busy.sent).toBeGreaterThan(30_000);
    });
    expect(longest).toBeLessThan(FROZEN_MS);
    await isLive(page);
    expect(await page.locator('*').count(), 'elements').toBeLessThan(5000);
  } finally {
    watch.expect(/console: Failed to load resource: net::ERR_/);
    await page.goto('about:blank');
    busy.close();
    server.url = origin;
  }
});

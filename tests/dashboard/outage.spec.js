// A server that goes away, one that hangs, and one that comes back.

import { Redis } from './lib/redis.js';
import { Server } from './lib/server.js';
import { expect, isLive, logIn, openResource, recorded, stuckRow, test, Watch } from './lib/test.js';

test('the server is lost, and returns', async ({ operator: page, server, watch }) => {
  watch.expect(/console: Failed to load resource: net::ERR_/);
  await server.hold({ resource: 'report/1' });
  await openResource(page, 'report/1');
  await expect(page.locator('[data-test=holder] [data-test=do-ask]')).toBeVisible();
  await isLive(page);
  await server.kill();
  await expect(page.locator('#banner')).toContainText('The server does not answer');
  await expect(page.locator('body')).toHaveClass(/stale/);
  // The last state stays, and nothing can be ordered.
  await expect(page.locator('[data-test=holder]')).toContainText('nightly');
  await expect(page.locator('[data-test=holder] [data-test=do-ask]')).toHaveCount(0);
  await server.restart();
  await expect(page.locator('#banner')).not.toContainText('does not answer');
  await isLive(page);
  await expect(page.locator('[data-test=holder] [data-test=do-ask]')).toBeVisible();
  await server.hold({ resource: 'report/2' });
  await page.locator('nav a', { hasText: 'Overview' }).click();
  await expect(page.locator('#sentence')).toContainText('2 resources are held');
});

test('a server that shuts down says so', async ({ operator: page, server, watch }) => {
  watch.expect(/console: Failed to load resource: (net::ERR_|.* status of 503)/);
  await isLive(page);
  const banner = await recorded(page, '#banner');
  server.child?.kill('SIGTERM');
  await expect(page.locator('#banner')).toContainText('The server does not answer');
  expect(await banner()).toContain('The server is shutting down.');
  await server.restart();
  await isLive(page);
  await expect(page.locator('#banner')).toBeEmpty();
});

test('a server that hangs is told from one that is well', async ({ operator: page, server, watch }) => {
  watch.expect(/console: Failed to load resource: net::ERR_/);
  await isLive(page);
  server.child?.kill('SIGSTOP');
  try {
    await expect(page.locator('#freshness')).toHaveAttribute('data-state', 'stale');
    await expect(page.locator('#freshness')).toContainText('stale');
  } finally {
    server.child?.kill('SIGCONT');
  }
  await isLive(page);
});

/** How old the page says that it is, in seconds. @param {import('@playwright/test').Page} page */
async function ageSeconds(page) {
  const text = await page.locator('#freshness').textContent();
  return Number(/(\d+) s ago/.exec(text ?? '')?.[1] ?? 0);
}

test('the store cannot be read: the clocks stand still, and no order can be given', async ({ page, context }) => {
  const redis = await Redis.start();
  /** @type {Server | undefined} */
  let server;
  try {
    server = await Server.start({ store: redis.url });
    const { url, tokens } = server;
    const watch = new Watch();
    watch.expect(/console: Failed to load resource: .* status of (401|503)/);
    await watch.follow(context, () => url);
    await server.hold({ resource: 'report/1', ttl_ms: 600_000 });
    void server.waitFor({ resource: 'report/1' });
    await logIn(page, server, tokens.operator);
    await expect(stuckRow(page, 'report/1').locator('[data-test^=do-]').first()).toBeVisible();
    await redis.kill();
    await expect(page.locator('#banner')).toContainText('cannot read the store');
    await expect(page.locator('body')).toHaveClass(/stale/);
    await expect(page.locator('#freshness')).toHaveAttribute('data-state', 'stale');
    await expect(page.locator('#account')).toContainText('read-only');
    await expect(page.locator('main [data-test^=do-]')).toHaveCount(0);
    const clocks = page.locator('main [data-test=stuck-row] .count');
    const before = await clocks.allTextContents();
    expect(before.length).toBeGreaterThan(1);
    const age = await ageSeconds(page);
    await expect.poll(() => ageSeconds(page), 'the sign goes on to say how old this is').toBeGreaterThan(age + 2);
    expect(await clocks.allTextContents()).toEqual(before);
    await redis.startAgain();
    await isLive(page);
    await expect(page.locator('#banner')).toBeEmpty();
    await expect(stuckRow(page, 'report/1').locator('[data-test^=do-]').first()).toBeVisible();
    expect(watch.unexpected()).toEqual([]);
  } finally {
    await server?.end();
    await redis.end();
  }
});

test('after the computer was suspended the page is stale until the server has answered', async ({ operator: page, server }) => {
  await server.hold({ resource: 'report/1' });
  await isLive(page);
  // The server does not answer yet.
  let answer = () => {};
  const answered = new Promise((resolve) => (answer = () => resolve(null)));
  await page.route('**/v1/overview?*', async (route) => {
    await answered;
    await route.continue();
  });
  await page.evaluate(() => {
    const before = Date.now.bind(Date);
    Date.now = () => before() + 600_000;
  });
  await expect(page.locator('body')).toHaveClass(/stale/);
  await expect(page.locator('#account')).toContainText('read-only');
  answer();
  await isLive(page);
  await expect(page.locator('#account')).toContainText('operator');
});

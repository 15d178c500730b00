// A server that goes away, one that hangs, and one that comes back.

import { expect, isLive, openResource, test } from './lib/test.js';

test.beforeEach(({ watch }) => {
  watch.expect(/console: Failed to load resource: net::ERR_/);
});

test('the server is lost, and returns', async ({ operator: page, server }) => {
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

test('a server that hangs is told from one that is well', async ({ operator: page, server }) => {
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

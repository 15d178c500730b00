// What happens to one lease, as people see it.

import { expect, isLive, openResource, test } from './lib/test.js';

/** What the countdown of the holder shows, in seconds. @param {import('@playwright/test').Page} page */
async function secondsLeft(page) {
  const text = await page.locator('[data-test=holder] .holder-state .count').first().textContent();
  const seconds = /^(\d+) s$/.exec(text?.trim() ?? '');
  return seconds ? Number(seconds[1]) : NaN;
}

test('a lease appears, counts down, is renewed, and expires', async ({ operator: page, server }) => {
  await expect(page.locator('#sentence')).toContainText('Nothing is held');
  await isLive(page);
  const lease = await server.hold({ resource: 'report/1', ttl_ms: 10_000, host: 'vm-3', pid: 811, label: 'nightly report' });
  await expect(page.locator('#sentence')).toContainText('1 resource is held');
  await openResource(page, 'report/1');
  const holder = page.locator('[data-test=holder]');
  await expect(holder).toContainText('nightly report');
  await expect(holder).toContainText('vm-3');
  await expect(holder).toContainText('811');
  await expect(holder.locator('[data-test=token]')).toHaveText(lease.token);
  // It counts down by itself, second by second.
  await expect.poll(() => secondsLeft(page)).toBeLessThanOrEqual(6);
  expect((await lease.renew()).status).toBe(200);
  await expect.poll(() => secondsLeft(page)).toBeGreaterThanOrEqual(8);
  // Nobody renews it any more.
  await expect.poll(() => secondsLeft(page)).toBeLessThanOrEqual(2);
  await expect(page.locator('[data-test=summary]')).toContainText('Nobody holds it.');
  await expect(page.locator('#timeline')).toContainText('Lost: it expired');
  await expect(page.locator('#timeline')).toContainText('Granted');
});

test('a command under `leasehold run` is seen, and the next in line after it', async ({ operator: page, server }) => {
  const command = server.startBeside('run', '--label', 'deploy 12', 'deploy/production', '--', 'sleep', '1000');
  await expect(page.locator('#sentence')).toContainText('1 resource is held');
  server.startBeside('run', '--label', 'deploy 13', 'deploy/production', '--', 'sleep', '1000');
  await openResource(page, 'deploy/production');
  await expect(page.locator('[data-test=holder]')).toContainText('deploy 12');
  await expect(page.locator('[data-test=holder]')).toContainText('renewing');
  await expect(page.locator('[data-test=waiter]')).toContainText('deploy 13');
  command.kill('SIGTERM');
  await expect(page.locator('[data-test=holder]')).toContainText('deploy 13');
  await expect(page.locator('[data-test=waiter]')).toHaveCount(0);
});

test('updates can be paused, and go on', async ({ operator: page, server }) => {
  await isLive(page);
  await page.keyboard.press('p');
  await expect(page.locator('#pause')).toHaveAttribute('aria-label', 'Resume live updates');
  await server.hold({ resource: 'report/1' });
  await expect(page.locator('#freshness')).toContainText('paused');
  await expect(page.locator('#sentence')).toContainText('Nothing is held');
  await page.locator('#pause').click();
  await expect(page.locator('#sentence')).toContainText('1 resource is held');
});

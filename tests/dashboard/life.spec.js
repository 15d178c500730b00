// What happens to one lease, as people see it.

import { expect, isLive, logIn, openResource, recorded, test } from './lib/test.js';

/** @param {string[]} shown @returns {number[]} the seconds that a countdown has shown */
function seconds(shown) {
  return shown.flatMap((text) => /^(\d+) s$/.exec(text)?.[1] ?? []).map(Number);
}

test('a lease appears, counts down, is renewed, is late and silent, and expires', async ({ operator: page, server }) => {
  await expect(page.locator('#sentence')).toContainText('Nothing is held');
  await isLive(page);
  const ttl_ms = 15_000;
  const lease = await server.hold({ resource: 'report/1', ttl_ms, host: 'vm-3', pid: 811, label: 'nightly report' });
  await expect(page.locator('#sentence')).toContainText('1 resource is held');
  await openResource(page, 'report/1');
  const holder = page.locator('[data-test=holder]');
  await expect(holder).toContainText('nightly report');
  await expect(holder).toContainText('vm-3');
  await expect(holder).toContainText('811');
  await expect(holder.locator('[data-test=token]')).toHaveText(lease.token);
  const shown = await recorded(page, '[data-test=holder] .holder-state .count');
  const lowest = async () => Math.min(...seconds(await shown()));
  const first = await lowest();
  // It counts down by itself, second by second.
  await expect.poll(lowest).toBeLessThanOrEqual(first - 3);
  const before = (await shown()).length;
  expect((await lease.renew()).status).toBe(200);
  const states = await recorded(page, '[data-test=holder] .holder-state .mark');
  const sinceRenewal = async () => seconds((await shown()).slice(before));
  await expect.poll(async () => Math.max(...(await sinceRenewal()))).toBeGreaterThan(first - 3);
  // Nobody renews it any more.
  await expect(page.locator('[data-test=summary]')).toContainText('Nobody holds it.');
  const numbers = await sinceRenewal();
  expect(Math.min(...numbers)).toBeLessThanOrEqual(3);
  expect(Math.max(...numbers)).toBeLessThanOrEqual(ttl_ms / 1000);
  expect((await states()).slice(-2)).toEqual(['late', 'silent']);
  await expect(page.locator('#timeline')).toContainText('Lost: it expired');
  await expect(page.locator('#timeline')).toContainText('Granted');
});

test('countdowns are right although the clock of the browser is wrong by hours', async ({ page, context, server, watch }) => {
  void watch;
  await context.addInitScript(() => {
    const right = Date.now.bind(Date);
    Date.now = () => right() + 5 * 3_600_000;
  });
  await server.hold({ resource: 'report/1', ttl_ms: 55_000 });
  await logIn(page, server, server.tokens.operator, '#/resource?name=report/1');
  const shown = await page.locator('[data-test=holder] .holder-state .count').textContent();
  expect(seconds([shown ?? ''])[0]).toBeGreaterThan(0);
  expect(seconds([shown ?? ''])[0]).toBeLessThanOrEqual(55);
  await isLive(page);
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

test('a page that is opened while updates are paused shows what is left now', async ({ operator: page, server }) => {
  await isLive(page);
  await server.hold({ resource: 'report/1', ttl_ms: 50_000 });
  await expect(page.locator('#sentence')).toContainText('1 resource is held');
  await page.keyboard.press('p');
  await expect(page.locator('#freshness')).toContainText('paused');
  const left = async () => (await server.ask('GET', '/v1/resource?name=report/1')).body.holders[0].remaining_ms;
  const atPause = await left();
  await expect.poll(left).toBeLessThan(atPause - 6000);
  const most = (await left()) / 1000;
  await openResource(page, 'report/1');
  const shown = await page.locator('[data-test=holder] .holder-state .count').textContent();
  expect(seconds([shown ?? ''])[0]).toBeLessThanOrEqual(most);
  // The dialog of an order, too.
  await page.locator('[data-test=do-ask]').click();
  const inDialog = await page.locator('#action-dialog .holder-state .count').textContent();
  expect(seconds([inDialog ?? ''])[0]).toBeLessThanOrEqual(most);
});

// Orders of operators: from finding what is stuck to the record in the audit trail.

import { hostname } from 'node:os';

import { deadProcess } from './lib/server.js';
import { expect, openResource, stuckRow, test } from './lib/test.js';

/** @typedef {import('@playwright/test').Page} Page */

/** Confirms the order in the open dialog. @param {Page} page @param {string} reason */
async function confirm(page, reason) {
  await page.locator('#action-reason').fill(reason);
  const promise = page.locator('#action-confirmation');
  if (await promise.count()) await promise.check();
  await page.locator('#action-confirm').click();
}

/** Closes the dialog after the order is carried out. @param {Page} page */
async function done(page) {
  await expect(page.locator('[data-test=action-done]')).toBeVisible();
  await page.locator('#action-close').click();
  await expect(page.locator('#action-dialog')).toHaveCount(0);
}

test('what is stuck is found, evicted, and in the audit trail', async ({ operator: page, server }) => {
  const lease = await server.hold({ resource: 'report/42', label: 'hangs', host: 'vm-3', pid: 811 });
  lease.keep();
  const next = server.waitFor({ resource: 'report/42', label: 'morning run' });
  await server.hold({ resource: 'report/43' });
  await expect(page.locator('#sentence')).toContainText('1 resource is stuck');
  const row = stuckRow(page, 'report/42');
  await expect(row).toContainText('hangs');
  await expect(row).toContainText('morning run');
  await row.locator('h3 a').click();
  await expect(page.locator('main h1')).toHaveText('report/42');
  await page.locator('main [data-test=do-evict-now]').click();
  const dialog = page.locator('#action-dialog');
  await expect(dialog).toContainText('report/42');
  await expect(dialog).toContainText('hangs');
  await expect(dialog.locator('[data-test=consequence]')).toContainText(/two may run/i);
  // Without a reason and the promise nothing can be sent.
  await expect(page.locator('#action-confirm')).toBeDisabled();
  await page.locator('#action-reason').fill('INC-7: the holder hangs');
  await expect(page.locator('#action-confirm')).toBeDisabled();
  await confirm(page, 'INC-7: the holder hangs');
  await done(page);
  expect((await next)?.claim.label).toBe('morning run');
  await expect(page.locator('[data-test=holder]')).toContainText('morning run');
  await expect(page.locator('[data-test=audit-record]')).toContainText('INC-7: the holder hangs');
  await page.locator('nav a', { hasText: 'Audit' }).click();
  const record = page.locator('main tbody tr').first();
  for (const text of ['evict-now', 'report/42', 'done', 'INC-7: the holder hangs', 'ops', lease.token]) await expect(record).toContainText(text);
  await page.locator('nav a', { hasText: 'Overview' }).click();
  await expect(page.locator('#sentence')).toContainText('Nothing is stuck');
});

test('the keyboard alone is enough to evict', async ({ operator: page, server }) => {
  const lease = await server.hold({ resource: 'report/42', label: 'hangs' });
  lease.keep();
  void server.waitFor({ resource: 'report/42' });
  await expect(stuckRow(page, 'report/42')).toBeVisible();
  await page.keyboard.press('j');
  await expect(stuckRow(page, 'report/42').locator('h3 a')).toBeFocused();
  await page.keyboard.press('Enter');
  await expect(page.locator('main h1')).toHaveText('report/42');
  await tabTo(page, 'main [data-test=do-evict]');
  await page.keyboard.press('Enter');
  await expect(page.locator('#action-reason')).toBeFocused();
  await page.keyboard.type('it hangs');
  await tabTo(page, '#action-confirm');
  await page.keyboard.press('Enter');
  await expect(page.locator('[data-test=action-done]')).toBeVisible();
  await expect(page.locator('#action-close')).toBeFocused();
  await page.keyboard.press('Enter');
  await expect(page.locator('#action-dialog')).toHaveCount(0);
  await expect.poll(async () => (await server.audit()).map(({ command, why }) => [command, why])).toEqual([['evict', 'it hangs']]);
});

/** Presses Tab until an element has the focus. @param {Page} page @param {string} selector */
async function tabTo(page, selector) {
  for (let presses = 0; presses < 60; presses += 1) {
    if (await page.evaluate((wanted) => document.activeElement?.matches(wanted) ?? false, selector)) return;
    await page.keyboard.press('Tab');
  }
  throw new Error(`${selector} cannot be reached with Tab`);
}

test('an order for a holder that has changed does nothing', async ({ operator: page, server, watch }) => {
  watch.expect(/console: Failed to load resource: .* status of 412/);
  const first = await server.hold({ resource: 'report/42', label: 'the first' });
  await expect(page.locator('#sentence')).toContainText('1 resource is held');
  await openResource(page, 'report/42');
  await page.locator('[data-test=holder] [data-test=do-evict-now]').click();
  await first.release();
  const second = await server.hold({ resource: 'report/42', label: 'the second' });
  await confirm(page, 'it hangs');
  await expect(page.locator('[data-test=holder-changed]')).toContainText('nothing was done');
  await expect(page.locator('#action-confirm')).toHaveCount(0);
  expect((await second.renew()).status).toBe(200);
  await page.locator('#action-close').click();
  await expect(page.locator('[data-test=holder]')).toContainText('the second');
});

test('a resource is paused, resumed and resized', async ({ operator: page, server }) => {
  await server.hold({ resource: 'gpu/pool', share: { weight: 1, capacity: 3 } });
  await openResource(page, 'gpu/pool');
  await page.locator('[data-test=do-pause]').click();
  await expect(page.locator('[data-test=consequence]')).toContainText('Nothing is granted');
  await confirm(page, 'the driver is replaced');
  await done(page);
  await expect(page.locator('#facts')).toContainText('Paused for');
  expect((await server.ask('GET', '/v1/resource?name=gpu/pool')).body.paused_for_ms).toBeGreaterThan(0);
  await page.locator('#orders [data-test=do-resume]').click();
  await confirm(page, 'it is replaced');
  await done(page);
  await expect(page.locator('#facts')).not.toContainText('Paused for');
  await page.locator('[data-test=do-resize]').click();
  await page.locator('#action-capacity').fill('5');
  await confirm(page, 'two more cards');
  await done(page);
  await expect(page.locator('#facts dd', { hasText: /^5$/ })).toBeVisible();
  expect((await server.audit()).map(({ command, by }) => [command, by])).toEqual([['resize', 'ops'], ['resume', 'ops'], ['pause', 'ops']]);
});

test('all holders whose process is gone are evicted at once, after a look at the list', async ({ operator: page, server }) => {
  const pid = await deadProcess();
  for (const id of ['customers', 'orders', 'stock']) await server.hold({ resource: `export/${id}`, host: hostname(), pid, label: 'export', ttl_ms: 3_600_000 });
  await server.hold({ resource: 'export/alive', host: hostname(), pid: process.pid, label: 'export' });
  await page.locator('[data-test=bulk-evict]').click();
  const rows = page.locator('[data-test=bulk-row]');
  await expect(rows).toHaveCount(3);
  await rows.filter({ hasText: 'export/stock' }).locator('input').uncheck();
  await expect(page.locator('#bulk-confirm')).toBeDisabled();
  await page.locator('#bulk-reason').fill('the host has crashed');
  await page.locator('#bulk-confirmation').check();
  await page.locator('#bulk-confirm').click();
  await expect(rows.filter({ hasText: 'evicted' })).toHaveCount(2);
  await page.locator('#bulk-close').click();
  await expect.poll(async () => (await server.audit()).map(({ key, done }) => [key, done]).sort()).toEqual([['export/customers', true], ['export/orders', true]]);
  await expect(page.locator('#gone')).toContainText('export/stock');
  await expect(page.locator('#gone')).not.toContainText('export/orders');
});

test('an order whose answer is lost may have been carried out, and is not offered again', async ({ operator: page, server, watch }) => {
  watch.expect(/console: Failed to load resource: net::ERR_/);
  await server.hold({ resource: 'report/42', label: 'hangs' });
  await expect(page.locator('#sentence')).toContainText('1 resource is held');
  await openResource(page, 'report/42');
  await page.locator('[data-test=holder] [data-test=do-evict-now]').click();
  // The server carries it out, and the connection breaks before its answer.
  await page.route('**/v1/orders', async (route) => {
    await route.fetch();
    await route.abort();
  });
  await confirm(page, 'it hangs');
  await expect(page.locator('[data-test=effect-unknown]')).toContainText('may have been carried out');
  await expect(page.locator('#action-confirm')).toHaveCount(0);
  await page.locator('[data-test=effect-unknown] a').click();
  await expect(page.locator('dialog')).toHaveCount(0);
  await expect(page.locator('main h1')).toHaveText('Audit');
  await expect(page.locator('main tbody tr')).toHaveCount(1);
  await expect(page.locator('main tbody tr')).toContainText('it hangs');
});

test('a pause that somebody else has changed meanwhile must be confirmed again', async ({ operator: page, server }) => {
  await server.hold({ resource: 'gpu/pool', share: { weight: 1, capacity: 3 } });
  await openResource(page, 'gpu/pool');
  await page.locator('[data-test=do-pause]').click();
  const order = { resource: 'gpu/pool', action: 'pause', lasting_ms: 24 * 3_600_000, why: 'the other operator' };
  expect((await server.ask('POST', '/v1/orders', order)).status).toBe(200);
  await confirm(page, 'the driver is replaced');
  await expect(page.locator('[data-test=resource-changed]')).toContainText('It is paused now, for 23 h 59 min more. It was not paused.');
  expect((await server.audit()).map(({ why }) => why)).toEqual(['the other operator']);
  await page.locator('#action-confirm').click();
  await done(page);
  expect((await server.audit()).map(({ why }) => why)).toEqual(['the driver is replaced', 'the other operator']);
  // The capacity, too.
  await page.locator('[data-test=do-resize]').click();
  expect((await server.ask('POST', '/v1/orders', { resource: 'gpu/pool', action: 'resize', capacity: 7, why: 'the other operator' })).status).toBe(200);
  await page.locator('#action-capacity').fill('5');
  await confirm(page, 'two more cards');
  await expect(page.locator('[data-test=resource-changed]')).toContainText('The capacity is 7 now. It was 3.');
});

test('an order that is cancelled while the resource is read again is not sent', async ({ operator: page, server }) => {
  await server.hold({ resource: 'gpu/pool', share: { weight: 1, capacity: 3 } });
  await openResource(page, 'gpu/pool');
  await page.locator('[data-test=do-pause]').click();
  let answer = () => {};
  const cancelled = new Promise((resolve) => (answer = () => resolve(null)));
  const read = new Promise((resolve) =>
    page.route('**/v1/resource?*', async (route) => {
      resolve(null);
      await cancelled;
      await route.continue();
    }),
  );
  let sent = 0;
  page.on('request', (request) => (sent += Number(request.url().endsWith('/v1/orders'))));
  await confirm(page, 'a test');
  await read;
  await page.locator('#action-close').click();
  await expect(page.locator('dialog')).toHaveCount(0);
  const answered = page.waitForResponse('**/v1/resource?*');
  answer();
  await answered;
  await page.locator('nav a', { hasText: 'Audit' }).click();
  await expect(page.locator('main')).toContainText('No operator has given an order.');
  expect(sent).toBe(0);
});

test('holders that are gone are evicted until the server does not answer', async ({ operator: page, server, watch }) => {
  watch.expect(/console: Failed to load resource: net::ERR_/);
  const pid = await deadProcess();
  for (const id of ['customers', 'orders', 'stock']) await server.hold({ resource: `export/${id}`, host: hostname(), pid, label: 'export', ttl_ms: 3_600_000 });
  await page.locator('[data-test=bulk-evict]').click();
  const rows = page.locator('[data-test=bulk-row]');
  await expect(rows).toHaveCount(3);
  let requests = 0;
  await page.route('**/v1/orders', async (route) => {
    requests += 1;
    if (requests === 1) return route.continue();
    await route.fetch();
    await route.abort();
  });
  await page.locator('#bulk-reason').fill('the host has crashed');
  await page.locator('#bulk-confirmation').check();
  await page.locator('#bulk-confirm').click();
  await expect(rows.nth(0)).toContainText('evicted');
  await expect(rows.nth(1)).toContainText('may have been carried out');
  await expect(rows.nth(2)).toContainText('not sent');
  expect(await server.audit()).toHaveLength(2);
});

test('of a shared resource, each holder whose process is gone can be evicted, and no other', async ({ operator: page, server }) => {
  const pid = await deadProcess();
  const share = { weight: 1, capacity: 12 };
  const alive = await server.hold({ resource: 'gpu/pool', host: hostname(), pid: process.pid, label: 'alive', share, ttl_ms: 7_200_000 });
  for (let number = 1; number <= 7; number += 1) await server.hold({ resource: 'gpu/pool', host: hostname(), pid, label: `crashed ${number}`, share, ttl_ms: 3_600_000 });
  const row = page.locator('#gone [data-key="gpu/pool"]');
  await expect(row.locator('[data-test=next-step]')).toContainText('crashed');
  await expect(row.locator('[data-test=next-step]')).toHaveAttribute('data-step', 'evict_now');
  await page.locator('[data-test=bulk-evict]').click();
  const rows = page.locator('[data-test=bulk-row]');
  await expect(rows).toHaveCount(7);
  await expect(rows.filter({ hasText: 'alive' })).toHaveCount(0);
  await page.locator('#bulk-reason').fill('the host has crashed');
  await page.locator('#bulk-confirmation').check();
  await page.locator('#bulk-confirm').click();
  await expect(rows.filter({ hasText: 'evicted' })).toHaveCount(7);
  await page.locator('#bulk-close').click();
  await expect(page.locator('#gone')).toHaveCount(0);
  expect((await alive.renew()).status).toBe(200);
});

// What other programs have written to a store of Redis: their locks, and data that cannot be read.

import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

import { Redis } from './lib/redis.js';
import { Server } from './lib/server.js';
import { expect, isAccessible, logIn, openResource, test, Watch } from './lib/test.js';

const run = promisify(execFile);

test('the lock of another program is shown without its value, and removed; corrupt data is named', async ({ page, context }) => {
  const redis = await Redis.start();
  /** @type {Server | undefined} */
  let server;
  try {
    server = await Server.start({ store: redis.url });
    const { url, tokens } = server;
    const watch = new Watch();
    watch.expect(/console: Failed to load resource: .* status of (401|500)/);
    await watch.follow(context, () => url);
    const set = (/** @type {string} */ key, /** @type {string} */ value) => run('redis-cli', ['-p', String(redis.nodes[0].port), 'set', key, value]);
    await set('lock:v1:{report/1}:owner', 'the-secret-of-another-program');
    await server.hold({ resource: 'report/2' });
    await set('lock:v1:{report/2}:fence', 'not-a-number');
    await logIn(page, server, tokens.operator);
    const row = page.locator('#unreadable [data-key="report/2"]');
    await expect(row.locator('[data-test=next-step]')).toHaveAttribute('data-step', 'inspect');
    await openResource(page, 'report/2');
    await expect(page.locator('[data-test=problem]')).toContainText("key lock:v1:{report/2}:fence is corrupt: expected a number, found 'not-a-number'");
    await isAccessible(page, 'a resource that cannot be read');
    await openResource(page, 'report/1');
    await expect(page.locator('[data-test=summary]')).toContainText('Held by a lock of another program.');
    await expect(page.locator('body')).not.toContainText('the-secret');
    await isAccessible(page, 'the lock of another program');
    await page.locator('main [data-test=do-evict-foreign]').first().click();
    await expect(page.locator('[data-test=consequence]')).toContainText(/two may run/i);
    await isAccessible(page, 'the dialog that removes the lock of another program');
    await page.locator('#action-reason').fill('its program has ended');
    await page.locator('#action-confirmation').check();
    await page.locator('#action-confirm').click();
    await expect(page.locator('[data-test=action-done]')).toBeVisible();
    await page.locator('#action-close').click();
    await expect(page.locator('[data-test=summary]')).toContainText('Nobody holds it.');
    await expect(page.locator('[data-test=audit-record]')).toContainText('its program has ended');
    expect(watch.unexpected()).toEqual([]);
  } finally {
    await server?.end();
    await redis.end();
  }
});

// What a viewer may see and do.

import { readFile, rename, writeFile } from 'node:fs/promises';

import { stuckLine } from './lib/incident.js';
import { expect, logIn, openResource, stuckRow, test } from './lib/test.js';

test('a viewer sees everything, is told that it is read-only and why, and has no actions', async ({ page, server, watch }) => {
  void watch;
  const head = await stuckLine(server);
  await logIn(page, server, server.tokens.viewer);
  await expect(stuckRow(page, 'deploy/production').locator('[data-test=next-step]')).toBeVisible();
  await expect(page.locator('#account')).toContainText('read-only');
  await expect(page.locator('[data-test^=do-], [data-test=bulk-evict]')).toHaveCount(0);
  await openResource(page, 'deploy/production');
  await expect(page.locator('[data-test=holder]')).toContainText('deploy 12');
  await expect(page.locator('[data-test=read-only]')).toContainText('role operator');
  await expect(page.locator('[data-test^=do-], [data-test=bulk-evict]')).toHaveCount(0);
  // The server refuses it, too.
  const answer = await page.evaluate(async (token) => {
    const body = JSON.stringify({ resource: 'deploy/production', action: 'evict-now', token, why: 'because' });
    const response = await fetch('v1/orders', { method: 'POST', headers: { 'content-type': 'application/json' }, body });
    return response.status;
  }, head.token);
  expect(answer).toBe(403);
  watch.expect(/console: Failed to load resource: .* status of 403 .*\/v1\/orders/);
});

test('a viewer of one kind sees nothing of the others', async ({ page, server, watch }) => {
  void watch;
  const token = await server.newToken('reports only', ['viewer'], ['--kind', 'report']);
  await expect.poll(async () => (await fetch(`${server.url}/v1/info`, { headers: { authorization: `Bearer ${token}` } })).status).toBe(200);
  await stuckLine(server);
  await server.hold({ resource: 'report/1' });
  await logIn(page, server, token);
  await expect(page.locator('#sentence')).toContainText('Nothing is stuck');
  await expect(page.locator('#sentence')).toContainText('1 resource is held');
  await page.locator('nav a', { hasText: 'Resources' }).click();
  await expect(page.locator('main tbody tr')).toHaveCount(1);
  await expect(page.locator('body')).not.toContainText('deploy');
});

test('a token that gets another role is told so, without a reload', async ({ page, server, watch }) => {
  void watch;
  await server.hold({ resource: 'report/1' });
  await logIn(page, server, server.tokens.viewer, '#/resource?name=report/1');
  await expect(page.locator('#account')).toContainText('read-only');
  const file = `${server.folder}/tokens.toml`;
  const text = await readFile(file, 'utf8');
  await writeFile(`${file}.new`, text.replace('roles = ["viewer"]', 'roles = ["viewer", "operator"]'), { mode: 0o600 });
  await rename(`${file}.new`, file);
  await expect(page.locator('#account')).toContainText('operator');
  await expect(page.locator('[data-test=holder] [data-test=do-ask]')).toBeVisible();
});

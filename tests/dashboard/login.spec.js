// Logging in with a token, and out again.

import { expect, logIn, openResource, test } from './lib/test.js';

test('a wrong token is refused, and the page says so', async ({ page, server, watch }) => {
  void watch;
  await page.goto(server.url);
  await expect(page.locator('h1')).toHaveText('Log in with a token');
  await page.locator('#login-token').fill('lh_none_at_all');
  await page.locator('#login-submit').click();
  await expect(page.locator('[data-test=problem]')).toContainText(/token/i);
  await expect(page.locator('#login-token')).toBeFocused();
  await expect(page.locator('#header nav')).toHaveCount(0);
});

test('a token opens the page, in all tabs, until the log-out', async ({ page, context, server, watch }) => {
  void watch;
  const other = await context.newPage();
  await other.goto(`${server.url}/#/audit`);
  await expect(other.locator('#login-token')).toBeVisible();
  await logIn(page, server, server.tokens.operator);
  await expect(page.locator('#sentence')).toContainText('Nothing is held');
  await expect(page.locator('#account')).toContainText('operator');
  await expect(other.locator('h1')).toHaveText('Audit');
  await page.reload();
  await expect(page.locator('#sentence')).toBeVisible();
  await page.locator('#account').click();
  await expect(page.locator('#account-more')).toContainText('ops');
  await page.locator('#logout').click();
  await expect(page.locator('#login-token')).toBeVisible();
  await expect(other.locator('#login-token')).toBeVisible();
  await page.reload();
  await expect(page.locator('#login-token')).toBeVisible();
});

test('no script can read the token, and the address does not have it', async ({ operator: page, server, context }) => {
  const kept = await page.evaluate(() => JSON.stringify([document.cookie, { ...localStorage }, { ...sessionStorage }, location.href]));
  expect(kept).not.toContain('lh_');
  const [cookie] = await context.cookies(server.url);
  expect(cookie).toMatchObject({ httpOnly: true, sameSite: 'Strict', path: '/' });
});

test('a token that is revoked ends the page', async ({ page, server, watch }) => {
  void watch;
  const token = await server.newToken('leaver', ['viewer']);
  const id = token.split('_')[1];
  await expect.poll(async () => (await fetch(`${server.url}/v1/info`, { headers: { authorization: `Bearer ${token}` } })).status).toBe(200);
  await logIn(page, server, token);
  await server.run('token', '--tokens', `${server.folder}/tokens.toml`, 'revoke', id);
  await expect(page.locator('#login-token')).toBeVisible();
});

test('after a log-out, the next caller sees nothing of what the first one could read', async ({ operator: page, server, watch }) => {
  watch.expect(/console: Failed to load resource: .* status of 403/);
  const narrow = await server.newToken('reports only', ['viewer'], ['--kind', 'report']);
  await expect.poll(async () => (await fetch(`${server.url}/v1/info`, { headers: { authorization: `Bearer ${narrow}` } })).status).toBe(200);
  (await server.hold({ resource: 'secret/merger', label: 'hidden label', note: 'hidden note' })).keep();
  void server.waitFor({ resource: 'secret/merger', label: 'hidden waiter' });
  for (const hash of ['#/resources', '#/audit', '#/jobs', '#/store', '#/']) {
    await page.evaluate((to) => (location.hash = to), hash);
    await expect(page.locator('main h1')).toBeVisible();
    await expect(page.locator('main [aria-busy=true]')).toHaveCount(0);
  }
  await openResource(page, 'secret/merger');
  await expect(page.locator('[data-test=holder] .note')).toContainText('hidden note');
  await expect(page.locator('[data-test=waiter]')).toContainText('hidden waiter');
  await page.locator('#account').click();
  await page.locator('#logout').click();
  await page.locator('#login-token').fill(narrow);
  await page.locator('#login-submit').click();
  await expect(page.locator('[data-test=problem]')).toBeVisible();
  await expect(page.locator('body')).not.toContainText('hidden');
  for (const name of ['Overview', 'Resources', 'Jobs', 'Audit']) {
    await page.locator('nav a', { hasText: name }).click();
    await expect(page.locator('main h1')).toBeVisible();
    await expect(page.locator('main')).not.toContainText('hidden');
    await expect(page.locator('main')).not.toContainText('merger');
  }
});

test('a dialog does not outlive the log-in', async ({ page, server, watch }) => {
  void watch;
  const token = await server.newToken('leaver', ['client', 'operator']);
  await expect.poll(async () => (await fetch(`${server.url}/v1/info`, { headers: { authorization: `Bearer ${token}` } })).status).toBe(200);
  await server.hold({ resource: 'secret/merger', label: 'hidden label' });
  await logIn(page, server, token, '#/resource?name=secret/merger');
  await page.locator('[data-test=holder] [data-test=do-ask]').click();
  await expect(page.locator('#action-dialog')).toContainText('hidden label');
  await server.run('token', '--tokens', `${server.folder}/tokens.toml`, 'revoke', token.split('_')[1]);
  await expect(page.locator('#login-token')).toBeVisible();
  await expect(page.locator('dialog')).toHaveCount(0);
  await expect(page.locator('#login-token')).toBeFocused();
  await expect(page.locator('body')).not.toContainText('hidden label');
});

test('a log-out that fails is reported', async ({ operator: page, watch }) => {
  watch.expect(/console: Failed to load resource: net::ERR_/);
  await page.route('**/v1/logout', (route) => route.abort());
  await page.locator('#account').click();
  await page.locator('#logout').click();
  await expect(page.locator('#banner')).toContainText('You are not logged out');
  await page.unroute('**/v1/logout');
  await page.locator('#account').click();
  await page.locator('#logout').click();
  await expect(page.locator('#login-token')).toBeVisible();
});

test('a browser that does not keep the cookie is told so', async ({ page, context, server, watch }) => {
  void watch;
  await page.route('**/v1/login', async (route) => {
    const response = await route.fetch();
    // Playwright has kept it.
    await context.clearCookies();
    const headers = Object.entries(response.headers()).filter(([name]) => name !== 'set-cookie');
    await route.fulfill({ status: response.status(), headers: Object.fromEntries(headers), body: await response.body() });
  });
  await page.goto(server.url);
  await page.locator('#login-token').fill(server.tokens.operator);
  await page.locator('#login-submit').click();
  await expect(page.locator('[data-test=problem]')).toContainText('did not keep the log-in');
});

// Logging in with a token, and out again.

import { expect, logIn, test } from './lib/test.js';

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

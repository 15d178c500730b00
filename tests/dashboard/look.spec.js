// Every page in both themes: for screen readers, on a phone, and without anything that spills over.

import { crashed, everything } from './lib/incident.js';
import { expect, fits, isAccessible, logIn, stuckRow, test, WIDTHS } from './lib/test.js';

// The name of each page, its address, and what shows that it is drawn.
const PAGES = [
  ['overview', '#/', '[data-test=stuck-row]'],
  ['resources', '#/resources', 'main tbody tr'],
  ['a resource', '#/resource?name=deploy/production', '[data-test=waiter]'],
  ['store', '#/store', '[data-test=store-sentence]'],
  ['jobs', '#/jobs', 'main section'],
  ['audit', '#/audit', 'main tbody tr'],
];
for (const theme of /** @type {const} */ (['light', 'dark'])) {
  test.describe(theme, () => {
    test.use({ colorScheme: theme });

    test(`every page is accessible, and fits a phone, in the ${theme} theme`, async ({ operator: page, server }) => {
      test.slow();
      await everything(server);
      await expect(stuckRow(page, 'deploy/production')).toBeVisible();
      for (const [name, hash, drawn] of PAGES) {
        await page.evaluate((to) => (location.hash = to), hash);
        await expect(page.locator(drawn).first()).toBeVisible();
        await expect(page.locator('main [aria-busy=true]')).toHaveCount(0);
        await isAccessible(page, name);
        for (const width of WIDTHS) {
          await page.setViewportSize({ width, height: 900 });
          await fits(page, `${name} at ${width} px`);
        }
        await page.setViewportSize({ width: 360, height: 740 });
        await isAccessible(page, `${name} on a phone`);
        await page.setViewportSize({ width: 1280, height: 900 });
      }
    });

    test(`the log-in and the dialogs are accessible in the ${theme} theme`, async ({ page, server, watch }) => {
      void watch;
      await page.goto(server.url);
      await expect(page.locator('#login-token')).toBeVisible();
      await isAccessible(page, 'log-in');
      await page.setViewportSize({ width: 360, height: 740 });
      await fits(page, 'log-in');
      await server.hold({ resource: 'report/1' });
      await logIn(page, server, server.tokens.operator, '#/resource?name=report/1');
      await page.locator('[data-test=holder] [data-test=do-evict-now]').click();
      await isAccessible(page, 'the dialog of an eviction');
      await fits(page, 'the dialog of an eviction');
      await page.keyboard.press('Escape');
      await expect(page.locator('#action-dialog')).toHaveCount(0);
      await page.keyboard.press('?');
      await isAccessible(page, 'the list of keys');
      await page.keyboard.press('Escape');
      for (const order of ['ask', 'pause']) {
        await page.locator(`[data-test=do-${order}]`).click();
        await isAccessible(page, `the dialog of ${order}`);
        await fits(page, `the dialog of ${order}`);
        await page.keyboard.press('Escape');
        await expect(page.locator('#action-dialog')).toHaveCount(0);
      }
      for (const panel of ['freshness', 'account']) {
        await page.locator(`#${panel}`).click();
        await expect(page.locator(`#${panel}-more`)).toBeVisible();
        await isAccessible(page, `the panel of ${panel}`);
        await fits(page, `the panel of ${panel}`);
        await page.keyboard.press('Escape');
      }
      await crashed(server);
      await page.locator('nav a', { hasText: 'Overview' }).click();
      await page.locator('[data-test=bulk-evict]').click();
      await expect(page.locator('[data-test=bulk-row]')).toHaveCount(1);
      await isAccessible(page, 'the dialog of all whose process is gone');
      await fits(page, 'the dialog of all whose process is gone');
    });

    test(`what a viewer sees, and a page that is stale, are accessible in the ${theme} theme`, async ({ page, server, watch }) => {
      watch.expect(/console: Failed to load resource: net::ERR_/);
      await server.hold({ resource: 'report/1' });
      await logIn(page, server, server.tokens.viewer, '#/resource?name=report/1');
      await expect(page.locator('[data-test=read-only]')).toBeVisible();
      await isAccessible(page, 'what a viewer sees');
      await server.kill();
      await expect(page.locator('#banner')).toContainText('does not answer');
      await isAccessible(page, 'a page that is stale');
    });
  });
}

test('a store without leases says how to take the first one', async ({ operator: page }) => {
  for (const [name, hash] of PAGES) {
    await page.evaluate((to) => (location.hash = to), hash);
    await expect(page.locator('main h1')).toBeVisible();
    await expect(page.locator('main [aria-busy=true]')).toHaveCount(0);
    await isAccessible(page, `${name} without leases`);
  }
  await page.evaluate(() => (location.hash = '#/'));
  await expect(page.locator('main')).toContainText('leasehold --store http');
});

test('the theme is that of the system, until a person chooses one', async ({ operator: page }) => {
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.emulateMedia({ colorScheme: 'light' });
  const light = await background();
  await page.emulateMedia({ colorScheme: 'dark' });
  const dark = await background();
  expect(dark).not.toBe(light);
  await page.locator('#theme').click();
  await expect.poll(background).toBe(light);
  await page.reload();
  await expect(page.locator('#sentence')).toBeVisible();
  expect(await background(), 'it is kept').toBe(light);
  await page.keyboard.press('t');
  await expect.poll(background).toBe(dark);
});

// Names, labels and notes are chosen by whoever takes a lease. They are shown as text, and change nothing else.

import { expect, openResource, stuckRow, test } from './lib/test.js';

const SCRIPT = `<script>globalThis.pwned = 1</script><img src=x onerror="globalThis.pwned = 2"><svg onload=globalThis.pwned=3>`;
const BIDI = 'report \u202e\u2066tnes si\u2069 evil';
const ESCAPES = 'red \u001b[31mtext\u001b[0m \u0007 \u0000 tab\t';
const LONG = '大'.repeat(1000) + 'x'.repeat(1096);

/** @param {import('@playwright/test').Page} page */
async function isHarmless(page) {
  expect(await page.evaluate(() => /** @type {any} */ (globalThis).pwned)).toBeUndefined();
  await expect(page.locator('main script, main img, main iframe, main [onerror], main [onload]')).toHaveCount(0);
  const text = await page.locator('body').evaluate((body) => body.textContent ?? '');
  // eslint-disable-next-line no-control-regex
  expect(text.match(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g)).toBeNull();
  const wide = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
  expect(wide[0], 'nothing makes the page wider').toBeLessThanOrEqual(wide[1]);
}

for (const [what, label, shown] of [
  ['a script', SCRIPT, '<script>globalThis.pwned = 1</script>'],
  ['text that changes its direction', BIDI, '\\u{202e}'],
  ['escape sequences', ESCAPES, 'red'],
  ['4 KB', LONG, '大大大'],
]) {
  test(`${what} in a label, a host and a note`, async ({ operator: page, server, watch }) => {
    // The server refuses a reason of 4 KB, and the page says so.
    if (label === LONG) watch.expect(/console: Failed to load resource: .* status of 422 .*\/v1\/orders/);
    const claim = { label, host: label.replaceAll(' ', '') };
    (await server.hold({ resource: 'report/1', ...claim })).keep();
    (await server.hold({ resource: 'report/2', ...claim, note: label })).keep();
    void server.waitFor({ resource: 'report/1', label, host: label });
    await expect(stuckRow(page, 'report/1')).toContainText(shown);
    await isHarmless(page);
    await openResource(page, 'report/1');
    await expect(page.locator('[data-test=waiter]')).toContainText(shown);
    await isHarmless(page);
    await openResource(page, 'report/2');
    await expect(page.locator('[data-test=holder] .note')).toContainText(shown);
    await isHarmless(page);
    await page.evaluate(() => (location.hash = '#/jobs'));
    await expect(page.locator('main')).toContainText('report/2');
    await isHarmless(page);
    await openResource(page, 'report/2');
    await page.locator('[data-test=holder] [data-test=do-ask]').click();
    await page.locator('#action-reason').fill(label);
    await page.locator('#action-confirm').click();
    await expect(page.locator('[data-test=action-done], [data-test=problem]')).toBeVisible();
    await page.locator('#action-close').click();
    await page.evaluate(() => (location.hash = '#/audit'));
    await expect(page.locator('main h1')).toHaveText('Audit');
    await isHarmless(page);
  });
}

test('names are links to themselves, whatever is in them', async ({ operator: page, server }) => {
  // [the name, how it is shown]
  const names = [
    // The first one is the oldest wait, which is said to screen readers.
    ['report/\u202egnp.exe', 'report/\\u{202e}gnp.exe'],
    [`report/${SCRIPT}`],
    ['report/?q=1&only=stuck#/store'],
    ['report/%2e%2e%2f'],
    ["report/it's; rm -rf $HOME `id`"],
    ['report/مرحبا'],
    [`report/${'y'.repeat(200)}`],
  ];
  for (const [resource] of names) {
    (await server.hold({ resource })).keep();
    void server.waitFor({ resource });
  }
  const rows = page.locator('[data-test=stuck-row]');
  await expect(rows).toHaveCount(names.length);
  await expect(page.locator('#announcement')).toContainText('the oldest wait is for report/');
  await isHarmless(page);
  for (const [name, shown = name] of names) {
    await rows.filter({ hasText: shown.slice(0, 60) }).locator('h3 a').click();
    await expect(page.locator('main h1')).toHaveText(shown);
    await expect(page.locator('[data-test=waiter]')).toHaveCount(1);
    await isHarmless(page);
    await page.locator('nav a', { hasText: 'Overview' }).click();
    await expect(rows).toHaveCount(names.length);
  }
});

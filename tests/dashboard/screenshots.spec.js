// The pictures of the README, from the demonstration: so it is known that both can be made. `cargo xtask screenshots` writes them to
// docs/images.

import { stat } from 'node:fs/promises';
import { join } from 'node:path';

import { expect, isLive, stuckRow, test } from './lib/test.js';

const SIZE_MAX = 200_000;

test.use({ settings: { demo: true, options: ['--sample-every', '500ms'] } });

test('the demonstration has its pictures taken, in both themes', async ({ page, server, watch }, info) => {
  void watch;
  const folder = process.env.LEASEHOLD_SCREENSHOTS ?? info.outputDir;
  await page.setViewportSize({ width: 1280, height: 860 });
  await page.goto(server.url);
  for (const key of ['deploy/production', 'account/7001', 'import/partner-feed']) await expect(stuckRow(page, key)).toBeVisible();
  await expect(page.locator('[data-test=deadlock]')).toBeVisible();
  await expect(page.locator('#account')).toContainText('operator');
  // The charts of the README show some minutes.
  const minutes = process.env.LEASEHOLD_SCREENSHOTS ? 8 : 1;
  test.setTimeout((minutes + 5) * 90_000);
  await expect.poll(async () => (await server.ask('GET', '/v1/overview')).body.rates.granted.length, { timeout: minutes * 90_000 }).toBeGreaterThanOrEqual(minutes);
  await expect.poll(async () => (await server.ask('GET', '/v1/overview')).body.last_hour.granted).toBeGreaterThan(50);
  await page.reload();
  for (const key of ['deploy/production', 'account/7001']) await expect(stuckRow(page, key)).toBeVisible();
  await isLive(page);
  // A busy machine takes fewer samples: not in the pictures of the README.
  if (process.env.LEASEHOLD_SCREENSHOTS) await expect(page.locator('#freshness')).toHaveText('live, every 0.5 s', { timeout: 300_000 });
  for (const theme of /** @type {const} */ (['light', 'dark'])) {
    await page.emulateMedia({ colorScheme: theme, reducedMotion: 'reduce' });
    const path = join(folder, `dashboard-${theme}.png`);
    await page.screenshot({ path, animations: 'disabled' });
    const { size } = await stat(path);
    expect(size, `${path} is small enough for a README`).toBeLessThan(SIZE_MAX);
  }
});

// The page of jobs: the schedules of `leasehold cron`, and elections.

import { FAILS, STORE, SUCCEEDS } from './lib/schedules.js';
import { expect, fits, isAccessible, test, WIDTHS } from './lib/test.js';

test.use({ settings: { store: process.env[STORE] } });

test('a schedule with its ticks, a failed one first, and who leads an election', async ({ operator: page, server }) => {
  // If this is the first test, the first tick is up to a minute away.
  test.slow();
  server.startBeside('elect', '--value', 'http://sched-1:8080', 'scheduler/eu', 'sleep', '1000');
  await page.locator('nav a', { hasText: 'Jobs' }).click();
  const election = page.locator('#elections tbody tr');
  await expect(election).toContainText('scheduler/eu');
  await expect(election).toContainText('http://sched-1:8080');
  await expect(election).toContainText('renewing');
  const schedules = page.locator('#schedules tbody tr');
  await expect(schedules).toHaveCount(2, { timeout: 100_000 });
  await expect(schedules.first()).toContainText(FAILS);
  await expect(schedules.first()).toContainText('* * * * *');
  await expect(schedules.first()).toContainText('failed');
  await expect(schedules.last()).toContainText(SUCCEEDS);
  await expect(schedules.last()).toContainText('succeeded');
  await expect(page.locator('.page-head')).toContainText('2 schedules, 1 with a failed or missed tick; 1 election');
  for (const theme of /** @type {const} */ (['light', 'dark'])) {
    await page.emulateMedia({ colorScheme: theme });
    await isAccessible(page, `jobs, ${theme}`);
  }
  for (const width of WIDTHS) {
    await page.setViewportSize({ width, height: 900 });
    await fits(page, `jobs at ${width} px`);
    await isAccessible(page, `jobs at ${width} px`);
  }
});

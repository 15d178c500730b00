// It is three in the morning. From the first screen alone: which resource, which holder, and what to do next?

import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

import { crashed, deadlock, paused, stuckLine } from './lib/incident.js';
import { Redis } from './lib/redis.js';
import { PROGRAM, Server } from './lib/server.js';
import { expect, logIn, stuckRow, test, Watch } from './lib/test.js';

const run = promisify(execFile);

/** What a person reads about one resource. @param {import('@playwright/test').Page} page @param {string} key */
async function reads(page, key) {
  const row = page.locator(`[data-key="${key}"]`);
  await expect(row).toHaveCount(1);
  const step = row.locator('[data-test=next-step]');
  await expect(step).toBeVisible();
  const command = step.locator('[data-test=command]');
  return {
    text: await row.innerText(),
    step: await step.getAttribute('data-step'),
    says: await step.innerText(),
    command: (await command.count()) ? await command.first().innerText() : '',
  };
}

test('an incident: the first screen says which resource, which holder, and the next step', async ({ page, server, watch }) => {
  void watch;
  const head = await stuckLine(server);
  await deadlock(server);
  await paused(server);
  const pid = await crashed(server);
  // Until the newest of them has waited for long enough.
  await expect.poll(async () => (await server.ask('GET', '/v1/overview')).body.stuck).toBe(4);
  await logIn(page, server, server.tokens.operator);
  await expect(page.locator('#sentence')).toContainText('4 resources are stuck');
  await expect(page.locator('#sentence')).toContainText('deploy/production');
  await expect(page.locator('#sentence')).toContainText('1 possible deadlock');
  await expect(page.locator('#sentence')).toContainText('1 resource is paused');

  const stuck = await reads(page, 'deploy/production');
  for (const part of ['deploy/production', 'deploy 12', 'build-7', '4127', 'renewing', '3 waiters']) expect(stuck.text).toContain(part);
  expect(['ask', 'wait']).toContain(stuck.step);
  expect(stuck.command).toContain(`ask deploy/production --token ${head.token}`);

  const cycle = page.locator('[data-test=deadlock]');
  await expect(cycle).toHaveCount(1);
  for (const part of ['account/1', 'account/2', 'billing-1', 'billing-2']) await expect(cycle).toContainText(part);
  for (const [key, label] of [['account/1', 'transfer 1 to 2'], ['account/2', 'transfer 2 to 1']]) {
    const row = await reads(page, key);
    expect(row.text).toContain(label);
    expect(row.text).toContain('deadlock');
    expect(row.command).toContain(key);
  }

  const gone = await reads(page, 'export/customers');
  for (const part of ['nightly export', String(pid), 'gone']) expect(gone.text).toContain(part);
  expect(gone.step).toBe('evict_now');
  expect(gone.command).toContain('evict export/customers');

  const feed = await reads(page, 'import/partner-feed');
  expect(feed.text).toContain('paused');
  expect(feed.step).toBe('resume');
  expect(feed.command).toContain('resume import/partner-feed');

  // The command is complete: it does what it says.
  const words = stuck.command.replace('WHY', 'drill').split(' ').slice(1);
  await server.run(...words);
  await expect(stuckRow(page, 'deploy/production')).toContainText('asked');
});

test('a node of a Redlock set is dead: the first screen says so, and the store page says which one', async ({ page, context }) => {
  const redis = await Redis.start(5);
  /** @type {Server | undefined} */
  let server;
  try {
    await run(PROGRAM, ['redlock', 'found', redis.redlockUrl]);
    server = await Server.start({ store: redis.redlockUrl });
    const { url, tokens } = server;
    const watch = new Watch();
    watch.expect(/console: Failed to load resource: .* status of 401/);
    await watch.follow(context, () => url);
    const head = await server.hold({ resource: 'deploy/production', host: 'build-7', pid: 4127, label: 'deploy 12' });
    head.keep();
    await logIn(page, server, tokens.operator);
    await expect(page.locator('#sentence')).toContainText('Store: ');
    const [dead] = redis.nodes;
    dead.child.kill('SIGKILL');
    await expect(page.locator('#sentence')).toContainText(/4 of 5/);
    await expect(page.locator('#sentence')).toContainText('1 resource is held');
    await page.locator('nav a', { hasText: 'Store' }).click();
    await expect(page.locator('[data-test=quorum]')).toContainText('4 of 5');
    await expect(page.locator('[data-test=finding]').first()).toContainText(`127.0.0.1:${dead.port} is down or has no vote`);
    const nodes = page.locator('main .nodes tbody tr');
    await expect(nodes).toHaveCount(5);
    const down = nodes.filter({ hasText: String(dead.port) });
    await expect(down).toContainText('down or no vote');
    await expect(down.locator('[data-column=Clock]')).toHaveText('not known');
    const up = nodes.filter({ hasText: String(redis.nodes[1].port) });
    await expect(up.locator('[data-column=State]')).toHaveText('up');
    await expect(up.locator('[data-column="Round trip"]')).toHaveText(/^\d+(\.\d)? ms$/);
    await expect(up.locator('[data-column=Clock]')).toHaveText(/^(the same|\d.* (ahead|behind))$/);
    await expect(page.locator('#promise dt', { hasText: 'Level' }).locator('+ dd')).toHaveText('quorum');
    await expect(page.locator('#promise dt', { hasText: 'Because' }).locator('+ dd')).not.toBeEmpty();
    await expect(page.locator('.calls tbody tr').first().locator('[data-column=Median]')).toHaveText(/ms$|s$/);
    expect((await head.renew()).status, 'leases go on').toBe(200);
    expect(watch.unexpected().filter((text) => !/net::ERR_/.test(text))).toEqual([]);
  } finally {
    await server?.end();
    await redis.end();
  }
});

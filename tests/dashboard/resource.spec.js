// One resource, and the numbers of the first page: what people read there, and where it comes from.

import { expect, isLive, openResource, stuckRow, test } from './lib/test.js';

/** Queues claims one after the other, so that their order is known. @param {import('./lib/server.js').Server} server @param {string} resource @param {string[]} labels */
async function queue(server, resource, labels) {
  for (const [index, label] of labels.entries()) {
    void server.waitFor({ resource, label });
    await expect.poll(async () => (await server.ask('GET', `/v1/resource?name=${resource}`)).body.queue_length).toBe(index + 1);
  }
}

test('waiters are listed in the order in which they will be granted', async ({ operator: page, server }) => {
  const first = await server.hold({ resource: 'report/1', label: 'holder' });
  const labels = ['first', 'second', 'third', 'fourth'];
  await queue(server, 'report/1', labels);
  await openResource(page, 'report/1');
  const waiters = page.locator('[data-test=waiter] .label');
  await expect(waiters).toHaveText(labels);
  await first.release();
  await expect(page.locator('[data-test=holder] .label')).toHaveText('first');
  await expect(waiters).toHaveText(labels.slice(1));
});

test('the timeline, the charts and the numbers of the last hour tell what has happened', async ({ operator: page, server }) => {
  await isLive(page);
  const granted = page.locator('#timeline [data-kind=granted]');
  const first = await server.hold({ resource: 'report/1', label: 'first' });
  await openResource(page, 'report/1');
  await expect(granted).toHaveCount(1);
  await queue(server, 'report/1', ['second']);
  await expect(page.locator('#timeline [data-kind=queued]')).toHaveCount(1);
  await server.ask('POST', '/v1/orders', { resource: 'report/1', action: 'ask', token: first.token, within_ms: 30_000, why: 'please finish' });
  await expect(page.locator('#timeline [data-kind=asked]')).toContainText('please finish');
  await expect(page.locator('[data-test=audit-record]')).toContainText('please finish');
  await first.release();
  await expect(granted).toHaveCount(2);
  await expect(granted.first()).toContainText('second');
  await expect(granted.first()).toContainText('after a wait of');
  const charts = page.locator('#charts');
  await expect(charts.locator('svg[role=img]')).toHaveCount(2);
  await expect(charts.locator('svg[role=img]').first()).toHaveAttribute('aria-label', /^Waits: 1 seen, median .* longest/);
  await charts.locator('summary').first().click();
  await expect(charts.locator('tbody tr').first()).toBeVisible();
  await server.ask('POST', '/v1/orders', { resource: 'report/1', action: 'pause', lasting_ms: 60_000, why: 'a test' });
  await expect(page.locator('#timeline [data-kind=paused]')).toContainText('a test');
  await server.ask('POST', '/v1/orders', { resource: 'report/1', action: 'resume', why: 'it is over' });
  await expect(page.locator('#timeline [data-kind=resumed]')).toHaveCount(1);
  const { token } = (await server.ask('GET', '/v1/resource?name=report/1')).body.holders[0];
  await server.ask('POST', '/v1/orders', { resource: 'report/1', action: 'evict-now', token, why: 'it hangs' });
  await expect(page.locator('#timeline [data-kind=evicted]')).toContainText('it hangs');

  await page.locator('nav a', { hasText: 'Overview' }).click();
  const hour = page.locator('#last-hour');
  await expect(hour.locator('div', { hasText: /^granted/ })).toHaveText(/granted2$/);
  await expect(hour.locator('div', { hasText: /^lost/ })).toHaveText(/lost1$/);
  await expect(hour.locator('div', { hasText: /^asked/ })).toHaveText(/1$/);
  await expect(page.locator('#rates svg')).toHaveCount(3);
  await expect(page.locator('#rates svg').first()).toHaveAttribute('aria-label', /^Granted: 2 in/);
  await page.locator('#rates summary').click();
  await expect(page.locator('#rates tbody tr').first()).toBeVisible();
  await expect(page.locator('#sampling')).toContainText('Sampled every 0.3 s');
  await expect(page.locator('#sampling')).toContainText('A change that starts and ends between two samples is not shown.');
});

test('the command of the next step is copied', async ({ operator: page, server, context }) => {
  await context.grantPermissions(['clipboard-read', 'clipboard-write']);
  const lease = await server.hold({ resource: 'report/1' });
  lease.keep();
  void server.waitFor({ resource: 'report/1' });
  const step = stuckRow(page, 'report/1').locator('[data-test=next-step]');
  await step.locator('.copy').click();
  await expect(step.locator('.copied')).toHaveText('Copied');
  expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(`leasehold ask report/1 --token ${lease.token} --by 30s --reason WHY`);
});

test('the list of resources is filtered and sorted', async ({ operator: page, server }) => {
  await server.hold({ resource: 'report/old', ttl_ms: 600_000 });
  (await server.hold({ resource: 'report/queue' })).keep();
  await queue(server, 'report/queue', ['one', 'two']);
  await queue(server, 'report/old', ['one']);
  await server.hold({ resource: 'report/new' });
  await server.ask('POST', '/v1/orders', { resource: 'report/new', action: 'pause', lasting_ms: 600_000, why: 'a test' });
  await expect(stuckRow(page, 'report/queue')).toBeVisible();
  await page.locator('nav a', { hasText: 'Resources' }).click();
  const names = page.locator('main tbody th .name');
  const rows = async () => (await names.allTextContents()).map((name) => name.trim());
  const chip = (/** @type {string} */ text) => page.locator('.chip', { hasText: text }).click();
  await page.locator('#select-sort').selectOption('waiters');
  await expect.poll(rows).toEqual(['report/queue', 'report/old', 'report/new']);
  await page.locator('#select-sort').selectOption('hold');
  await expect.poll(async () => (await rows())[0]).toBe('report/old');
  await chip('With waiters');
  await expect.poll(async () => (await rows()).sort()).toEqual(['report/old', 'report/queue']);
  await chip('Paused');
  await expect.poll(rows).toEqual(['report/new']);
  await chip('Stuck');
  await expect.poll(async () => (await rows()).sort()).toEqual(['report/old', 'report/queue']);
  await page.goBack();
  await expect.poll(rows).toEqual(['report/new']);
});

test('a hold that is far longer than usual for its kind is found, also with a note', async ({ operator: page, server }) => {
  const usual = [];
  for (let number = 0; number < 20; number += 1) usual.push(await server.hold({ resource: `batch/${number}` }));
  await expect(page.locator('#sentence')).toContainText('20 resources are held');
  for (const lease of usual) await lease.release();
  (await server.hold({ resource: 'batch/slow', note: 'http://batch-1:8080' })).keep();
  const row = page.locator('#unusual [data-key="batch/slow"]');
  await expect(row).toBeVisible();
  await expect(row).toContainText('nightly');
  await expect(page.locator('#sentence')).toContainText('Nothing is stuck');
});

test('long waits for a holder with a note are told beside what is stuck', async ({ operator: page, server }) => {
  (await server.hold({ resource: 'scheduler/eu', note: 'http://sched-1:8080' })).keep();
  await queue(server, 'scheduler/eu', ['candidate']);
  await expect(page.locator('[data-test=led]')).toContainText('1 resource has long waits and is not counted as stuck');
  await page.locator('[data-test=led] a').click();
  await expect(page.locator('main tbody tr')).toHaveCount(1);
  await expect(page.locator('main tbody tr')).toContainText('holder has a note');
});

test('the past of a resource is read again only after a change of this resource', async ({ operator: page, server }) => {
  await server.hold({ resource: 'report/1' });
  await openResource(page, 'report/1');
  await expect(page.locator('#timeline [data-kind=granted]')).toHaveCount(1);
  const asked = { overview: 0, timeline: 0 };
  page.on('request', (request) => {
    if (request.url().includes('/v1/overview?only=stuck')) asked.overview += 1;
    if (request.url().includes('/v1/timeline?')) asked.timeline += 1;
  });
  await expect.poll(() => asked.overview).toBeGreaterThanOrEqual(4);
  expect(asked.timeline).toBeLessThanOrEqual(1);
  await server.ask('POST', '/v1/orders', { resource: 'report/1', action: 'pause', lasting_ms: 60_000, why: 'a test' });
  await expect(page.locator('#timeline [data-kind=paused]')).toHaveCount(1);
});

test('a lease whose end the samples cannot tell is shown as ended', async ({ operator: page, server }) => {
  await server.hold({ resource: 'report/1' });
  await page.route('**/v1/timeline?*', async (route) => {
    const response = await route.fetch();
    const body = await response.json();
    body.entries = body.entries.map((/** @type {object} */ entry) => ({ ...entry, kind: 'ended' }));
    await route.fulfill({ json: body });
  });
  await openResource(page, 'report/1');
  const entry = page.locator('#timeline [data-kind=ended]');
  await expect(entry).toContainText('Ended (released or expired)');
  await expect(entry).toHaveClass('plain');
});

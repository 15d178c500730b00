// Starts schedules of `leasehold cron` when the tests begin: their first tick is at the next full minute, and until then other tests run.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { start } from './process.js';
import { environment, PROGRAM } from './server.js';

/** The name of the variable with the URL of their store. */
export const STORE = 'LEASEHOLD_SCHEDULES_STORE';
export const FAILS = 'nightly-report';
export const SUCCEEDS = 'a-good-one';

export default async function startSchedules() {
  const folder = await mkdtemp(join(tmpdir(), 'leasehold-schedules-'));
  const store = `sqlite:${join(folder, 'leases.db')}`;
  const cron = (/** @type {string[]} */ ...words) =>
    start(PROGRAM, ['--store', store, 'cron', '* * * * *', ...words], { env: environment(folder), stdio: 'ignore' });
  const children = [cron(FAILS, '--', 'sh', '-c', 'echo "no space left" >&2; exit 3'), cron(SUCCEEDS, '--', 'true')];
  process.env[STORE] = store;
  return async () => {
    for (const child of children) child.kill('SIGKILL');
    await rm(folder, { recursive: true, force: true, maxRetries: 5 });
  };
}

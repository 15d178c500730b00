// A night on which everything happens at once.

import { hostname } from 'node:os';

import { deadProcess } from './server.js';

/** @typedef {import('./server.js').Server} Server */

/** A holder that renews and never finishes, and waiters behind it. @param {Server} server */
export async function stuckLine(server) {
  const head = await server.hold({ resource: 'deploy/production', host: 'build-7', pid: 4127, label: 'deploy 12' });
  head.keep();
  for (const number of [13, 14, 15]) void server.waitFor({ resource: 'deploy/production', host: 'build-2', pid: 3900 + number, label: `deploy ${number}` });
  return head;
}

/** Two processes, and each waits for what the other one holds. @param {Server} server */
export async function deadlock(server) {
  const one = { host: 'billing-1', pid: 1203, label: 'transfer 1 to 2' };
  const two = { host: 'billing-2', pid: 1187, label: 'transfer 2 to 1' };
  (await server.hold({ resource: 'account/1', ...one })).keep();
  (await server.hold({ resource: 'account/2', ...two })).keep();
  void server.waitFor({ resource: 'account/2', ...one });
  void server.waitFor({ resource: 'account/1', ...two });
}

/** A resource that an operator has paused, and a waiter. @param {Server} server */
export async function paused(server) {
  await server.ask('POST', '/v1/orders', { resource: 'import/partner-feed', action: 'pause', lasting_ms: 4 * 3_600_000, why: 'the partner sends every order twice' });
  void server.waitFor({ resource: 'import/partner-feed', host: 'import-5', pid: 2950, label: 'partner feed' });
}

/** A lease of a process that has ended. @param {Server} server */
export async function crashed(server) {
  const pid = await deadProcess();
  await server.hold({ resource: 'export/customers', host: hostname(), pid, label: 'nightly export', ttl_ms: 3_600_000 });
  return pid;
}

/** @param {Server} server */
export async function everything(server) {
  await Promise.all([stuckLine(server), deadlock(server), paused(server), crashed(server)]);
  await server.hold({ resource: 'scheduler/eu', host: 'sched-1', pid: 701, label: 'scheduler', note: 'http://sched-1:8080' });
  await server.hold({ resource: 'gpu/pool', share: { weight: 2, capacity: 4 }, label: 'train model' });
  await server.hold({ resource: 'index/products', share: 'read', label: 'query' });
}

// Real Redis servers for tests whose store must fail.

import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { nextPort, start } from './process.js';

const ATTEMPTS = 5;

/** @typedef {{port: number, child: import('node:child_process').ChildProcess}} Node */

export class Redis {
  /** @type {Node[]} */
  nodes = [];
  folder = '';

  static async start(count = 1) {
    const redis = new Redis();
    redis.folder = await mkdtemp(join(tmpdir(), 'leasehold-redis-'));
    try {
      while (redis.nodes.length < count) redis.nodes.push(await redis.startNode());
    } catch (error) {
      await redis.end();
      throw error;
    }
    return redis;
  }

  /** Redis cannot choose a free port by itself. If another process has the port, the next one is tried. @returns {Promise<Node>} */
  async startNode() {
    for (let attempt = 1; attempt <= ATTEMPTS; attempt += 1) {
      const node = await this.tryStart(nextPort());
      if (node) return node;
    }
    throw new Error('redis-server does not start');
  }

  /** @param {number} port @returns {Promise<Node | null>} */
  async tryStart(port) {
    const names = ['--dir', this.folder, '--dbfilename', `${port}.rdb`, '--appenddirname', `aof-${port}`];
    const child = start('redis-server', ['--port', String(port), '--bind', '127.0.0.1', '--appendonly', 'yes', '--appendfsync', 'always', ...names], { stdio: ['ignore', 'pipe', 'ignore'] });
    return (await isReady(child)) ? { port, child } : null;
  }

  /** Kills the first server. Its data stays. */
  async kill() {
    const [{ child }] = this.nodes;
    const ended = once(child, 'exit');
    child.kill('SIGKILL');
    await ended;
  }

  /** Starts the first server again, with its data, at its port. */
  async startAgain() {
    const node = await this.tryStart(this.nodes[0].port);
    if (!node) throw new Error('redis-server does not start again');
    this.nodes[0] = node;
  }

  get url() {
    const [{ port }] = this.nodes;
    return `redis://127.0.0.1:${port}`;
  }

  get redlockUrl() {
    return `redlock://${this.nodes.map(({ port }) => `127.0.0.1:${port}`).join(',')}`;
  }

  async end() {
    for (const { child } of this.nodes) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      const ended = once(child, 'exit');
      child.kill('SIGKILL');
      await ended;
    }
    await rm(this.folder, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** @param {import('node:child_process').ChildProcess} child */
async function isReady(child) {
  let output = '';
  for await (const data of /** @type {import('node:stream').Readable} */ (child.stdout).iterator({ destroyOnReturn: false })) {
    output += data;
    if (output.includes('Ready to accept connections')) {
      child.stdout?.resume();
      return true;
    }
  }
  return false;
}

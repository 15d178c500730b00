// A real `leasehold serve`, and the ways in which tests use it.

import { execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { nextPort, start } from './process.js';

const run = promisify(execFile);
const ATTEMPTS = 5;

/** The program: what `cargo xtask test` has built. */
export const PROGRAM = process.env.LEASEHOLD_PROGRAM ?? fileURLToPath(new URL('../../../target/debug/leasehold', import.meta.url));

/** The environment of the program: no store, tokens or settings of the person who runs the tests. @param {string} folder */
export function environment(folder) {
  const kept = Object.entries(process.env).filter(([name]) => !name.startsWith('LEASEHOLD_'));
  return { ...Object.fromEntries(kept), HOME: folder, XDG_CONFIG_HOME: folder, LEASEHOLD_DIR: folder, TMPDIR: folder };
}

/**
 * @typedef {object} Settings
 * @property {string} [store] its URL; by default a SQLite file in the folder of the server
 * @property {string[]} [options] further options of `leasehold serve`
 * @property {boolean} [demo]
 */

/** A claim, as a test makes it: what is left out has a default. @typedef {Record<string, unknown> & {resource: string}} Claim */

export class Server {
  /** @type {import('node:child_process').ChildProcess | null} */
  child = null;
  url = '';
  tokens = { operator: '', viewer: '' };
  /** Claims that wait. They end with the server. */
  waiting = new AbortController();
  /** Processes that were started beside the server. @type {import('node:child_process').ChildProcess[]} */
  beside = [];

  /** @param {string} folder @param {Settings} settings */
  constructor(folder, settings) {
    this.folder = folder;
    this.settings = settings;
    this.store = settings.store ?? `sqlite:${join(folder, 'leases.db')}`;
  }

  /** A server with a tokens file, in a folder of its own. @param {Settings} [settings] */
  static async start(settings = {}) {
    const server = new Server(await mkdtemp(join(tmpdir(), 'leasehold-dashboard-')), settings);
    try {
      if (!settings.demo) {
        server.tokens.operator = await server.newToken('ops', ['client', 'operator']);
        server.tokens.viewer = await server.newToken('guest', ['viewer']);
      }
      await server.beginSomewhere();
    } catch (error) {
      await server.end();
      throw error;
    }
    return server;
  }

  async beginSomewhere() {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.begin(`127.0.0.1:${nextPort()}`);
      } catch (error) {
        // Another program may have the port.
        if (attempt === ATTEMPTS) throw error;
      }
    }
  }

  /** @param {string} name @param {string[]} roles @param {string[]} more */
  async newToken(name, roles, more = []) {
    const made = await this.run('token', '--tokens', join(this.folder, 'tokens.toml'), 'new', name, ...roles.flatMap((role) => ['--role', role]), ...more);
    return made.trim();
  }

  /** The program, on the store of the server. @param {string[]} words */
  async run(...words) {
    const { stdout } = await run(PROGRAM, this.settings.demo ? words : ['--store', this.store, ...words], { env: environment(this.folder) });
    return stdout;
  }

  /** A program that goes on: `leasehold run …`. @param {string[]} words */
  startBeside(...words) {
    const child = start(PROGRAM, ['--store', this.store, ...words], { env: environment(this.folder), stdio: 'ignore' });
    this.beside.push(child);
    return child;
  }

  /** Starts the server, or starts it again. @param {string} listen */
  async begin(listen) {
    const store = this.settings.demo ? [] : ['--store', this.store];
    const mode = this.settings.demo ? ['--demo'] : ['--tokens', join(this.folder, 'tokens.toml')];
    // Often and soon: nobody wants to wait in a test.
    const options = this.settings.options ?? ['--sample-every', '300ms', '--stuck-after', '2s'];
    const child = start(PROGRAM, ['--json', ...store, 'serve', '--listen', listen, ...mode, ...options], { env: environment(this.folder), stdio: ['ignore', 'pipe', 'pipe'] });
    this.child = child;
    let errors = '';
    child.stderr?.on('data', (data) => (errors = (errors + data).slice(-4000)));
    const line = await Promise.race([once(createInterface({ input: /** @type {import('node:stream').Readable} */ (child.stdout) }), 'line').then(([text]) => String(text)), once(child, 'exit').then(() => '')]);
    if (!line) throw new Error(`the server did not start: ${errors}`);
    this.url = JSON.parse(line).listening;
  }

  /** Kills the server. What is in the store stays. */
  async kill() {
    if (!this.child || this.child.exitCode !== null || this.child.signalCode !== null) return;
    const ended = once(this.child, 'exit');
    this.child.kill('SIGKILL');
    await ended;
  }

  /** Starts the server again, at the same address. */
  async restart() {
    await this.kill();
    await this.begin(new URL(this.url).host);
  }

  async end() {
    this.waiting.abort();
    for (const child of this.beside) child.kill('SIGKILL');
    await this.kill();
    await rm(this.folder, { recursive: true, force: true, maxRetries: 5 });
  }

  /** Asks the server as an operator who is also a client. @param {string} method @param {string} path @param {unknown} [body] @param {AbortSignal} [signal] */
  async ask(method, path, body, signal) {
    /** @type {Record<string, string>} */
    const headers = body === undefined ? {} : { 'content-type': 'application/json' };
    if (this.tokens.operator) headers.authorization = `Bearer ${this.tokens.operator}`;
    const response = await fetch(this.url + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal });
    /** @type {any} */
    const answer = await response.json().catch(() => null);
    return { status: response.status, body: answer };
  }

  /** Acquires a lease, which nobody renews unless the test does. @param {Claim} claim */
  async hold(claim) {
    const sent = { owner: newOwner(), ttl_ms: 60_000, host: 'host-a', pid: 7, label: 'nightly', ...claim };
    const { status, body } = await this.ask('POST', '/v1/acquire', sent);
    if (status !== 200) throw new Error(`${claim.resource} was not granted: ${status} ${JSON.stringify(body)}`);
    return new Lease(this, sent, body.token);
  }

  /** Many at once, without a look at each. @param {Claim[]} claims */
  async holdAll(claims) {
    for (let at = 0; at < claims.length; at += 500) {
      const some = claims.slice(at, at + 500).map((claim) => ({ owner: newOwner(), ttl_ms: 600_000, host: 'host-a', pid: 7, label: 'nightly', ...claim }));
      const { status, body } = await this.ask('POST', '/v1/acquire', { claims: some, timeout_ms: 30_000 });
      if (status !== 200) throw new Error(`${status} ${JSON.stringify(body)}`);
    }
  }

  /** Waits for a resource until it is granted, or the test is over. @param {Claim} claim @returns {Promise<Lease | null>} */
  async waitFor(claim) {
    const sent = { owner: newOwner(), ttl_ms: 60_000, host: 'host-b', pid: 8, label: 'waits', ...claim };
    const { signal } = this.waiting;
    while (!signal.aborted) {
      try {
        const { status, body } = await this.ask('POST', '/v1/acquire', { ...sent, wait_ms: 30_000, when_blocked: 'queue' }, signal);
        if (status === 200) return new Lease(this, sent, body.token);
        if (status >= 500) await pause(200, signal);
      } catch {
        // The server is down for a moment: it asks again.
        await pause(200, signal);
      }
    }
    return null;
  }

  /** What operators have ordered. @returns {Promise<any[]>} */
  async audit() {
    return (await this.ask('GET', '/v1/audit')).body.records;
  }
}

/** A lease that a test holds. */
export class Lease {
  /** @param {Server} server @param {any} claim @param {string} token */
  constructor(server, claim, token) {
    this.server = server;
    this.claim = claim;
    this.token = token;
  }

  async renew() {
    const { resource, owner, ttl_ms } = this.claim;
    return this.server.ask('POST', '/v1/renew', { resource, owner, ttl_ms });
  }

  async release() {
    const { resource, owner } = this.claim;
    return this.server.ask('POST', '/v1/release', { resource, owner });
  }

  /** Renews until the test is over, as a holder at work does. Returns at once. */
  keep() {
    const { signal } = this.server.waiting;
    const go = async () => {
      while (!signal.aborted) {
        await pause(this.claim.ttl_ms / 4, signal);
        if (!signal.aborted) await this.renew().catch(() => {});
      }
    };
    void go();
    return this;
  }
}

export function newOwner() {
  return randomBytes(16).toString('hex');
}

/** The id of a process of this host that has ended. */
export async function deadProcess() {
  const child = spawn('true');
  const { pid } = child;
  await once(child, 'exit');
  return /** @type {number} */ (pid);
}

/** @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} */
function pause(ms, signal) {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => (clearTimeout(timer), resolve()), { once: true });
  });
}

/** The recipe of the README: a stale holder is refused by a real PostgreSQL, through node-postgres. */

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { chownSync, readdirSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";

import { Client, type Lease } from "leasehold";
import pg from "pg";

import { atEnd, folder, PROGRAM, startServer } from "./helpers.js";

const PACKAGES = "/usr/lib/postgresql";

/** PostgreSQL refuses to run as root. */
function asAccount(program: string, args: string[]): [string, string[]] {
  return process.getuid?.() === 0 ? ["setpriv", ["--reuid=postgres", "--regid=postgres", "--clear-groups", program, ...args]] : [program, args];
}

function run(program: string, args: string[]): string {
  const ended = spawnSync(program, args, { encoding: "utf8", cwd: "/" });
  assert.equal(ended.status, 0, `${program}: ${ended.error?.message ?? ended.stderr}`);
  return ended.stdout.trim();
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}

/** Starts a server for the tests of this file. */
async function startPostgres(): Promise<pg.Pool> {
  const version = readdirSync(PACKAGES).sort((one, other) => Number(other) - Number(one))[0];
  assert.ok(version !== undefined, "install the package postgresql");
  const bin = join(PACKAGES, version, "bin");
  const [data, port] = [folder(), await freePort()];
  if (process.getuid?.() === 0) chownSync(data, Number(run("id", ["-u", "postgres"])), Number(run("id", ["-g", "postgres"])));
  run(...asAccount(join(bin, "initdb"), ["-D", data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"]));
  const settings = ["-c", "fsync=off", "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="];
  const child = spawn(...asAccount(join(bin, "postgres"), ["-D", data, "-p", String(port), ...settings]), { stdio: ["ignore", "ignore", "pipe"], cwd: "/" });
  const pool = new pg.Pool({ host: "127.0.0.1", port, user: "postgres", database: "postgres" });
  atEnd(async () => {
    await pool.end();
    child.kill("SIGQUIT");
    if (child.exitCode === null && child.signalCode === null) await once(child, "exit");
  });
  const lines = createInterface({ input: child.stderr });
  for await (const line of lines) if (line.includes("ready to accept connections")) break;
  child.stderr.resume();
  return pool;
}

/** What the README shows. */
async function markPaid(pool: pg.Pool, lease: Pick<Lease, "pass">): Promise<void> {
  const db = await pool.connect();
  try {
    await db.query("BEGIN");
    await db.query("SELECT leasehold_fence.enter($1)", [lease.pass]);
    await db.query("UPDATE orders SET state = 'paid' WHERE id = 7");
    await db.query("COMMIT");
  } catch (error) {
    await db.query("ROLLBACK");
    throw error;
  } finally {
    db.release();
  }
}

test("a stale holder is refused by the database", async () => {
  const [{ url }, pool] = await Promise.all([startServer(), startPostgres()]);
  await pool.query("CREATE TABLE orders (id int PRIMARY KEY, state text)");
  await pool.query("INSERT INTO orders VALUES (7, 'new')");
  const { port } = pool.options;
  run(PROGRAM, ["fence", "install", "--database", `postgres://postgres@127.0.0.1:${port}/postgres`, "--table", "orders", "--resource", "order/{id}"]);

  await using client = new Client(url);
  const stale = await client.acquire("order/7");
  await stale.release();
  await using lease = await client.acquire("order/7");
  await markPaid(pool, lease);
  await markPaid(pool, lease);
  await assert.rejects(markPaid(pool, stale), (error: unknown) => {
    assert.ok(error instanceof pg.DatabaseError);
    assert.equal(error.code, "LH001");
    assert.match(error.message + error.detail, new RegExp(String(lease.token)));
    return true;
  });
  // Without a pass nobody writes.
  await assert.rejects(pool.query("UPDATE orders SET state = 'new' WHERE id = 7"), { code: "LH003" });

  // With a column of one's own. The token is sent as text: a number of JavaScript would lose its last digits one day.
  await pool.query("CREATE TABLE job (id text PRIMARY KEY, state text, last_fencing_token bigint NOT NULL DEFAULT 0)");
  await pool.query("INSERT INTO job VALUES ('r1', 'new')");
  const write = (token: bigint) =>
    pool.query("UPDATE job SET state = 'running', last_fencing_token = $1 WHERE id = 'r1' AND last_fencing_token < $1", [token.toString()]);
  assert.equal((await write(lease.token)).rowCount, 1);
  assert.equal((await write(stale.token)).rowCount, 0);
});

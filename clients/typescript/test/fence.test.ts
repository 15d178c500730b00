/** The recipe of the README: a stale holder is refused by a real PostgreSQL, through node-postgres. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";

import { Client, type Lease } from "leasehold";
import pg from "pg";

import { atEnd, PROGRAM, startServer } from "./helpers.js";

/** A database of these tests alone: `leasehold-stories --postgres COMMAND` starts one. */
const DATABASE = process.env["LEASEHOLD_TEST_POSTGRES"];

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
  assert.ok(DATABASE, "LEASEHOLD_TEST_POSTGRES is not set: run the tests by leasehold-stories --postgres npm test");
  const [{ url }, pool] = [await startServer(), new pg.Pool({ connectionString: DATABASE })];
  atEnd(() => pool.end());
  await pool.query("CREATE TABLE orders (id int PRIMARY KEY, state text)");
  await pool.query("INSERT INTO orders VALUES (7, 'new')");
  const install = ["fence", "install", "--database", DATABASE, "--table", "orders", "--resource", "order/{id}"];
  const installed = spawnSync(PROGRAM, install, { encoding: "utf8" });
  assert.equal(installed.status, 0, installed.stderr);

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

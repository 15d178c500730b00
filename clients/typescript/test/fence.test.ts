/** The recipes of the README: a stale holder is refused by a real PostgreSQL, through node-postgres. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { before, test } from "node:test";

import { Client, type Lease } from "leasehold";
import pg from "pg";

import { atEnd, PROGRAM, startServer } from "./helpers.js";
import { block, compileBlocks, type Given } from "./readme.js";

/** A database of these tests alone: `leasehold-stories --postgres COMMAND` starts one. */
const DATABASE = process.env["LEASEHOLD_TEST_POSTGRES"] ?? "";
const pool = new pg.Pool({ connectionString: DATABASE });
const recipes = await compileBlocks("fence", ["leasehold_fence.admit", "leasehold_fence.enter", "last_fencing_token"]);
const [admit, enter, column] = recipes as [(typeof recipes)[0], (typeof recipes)[0], (typeof recipes)[0]];
const { url } = await startServer();
const client = new Client(url);

/** The command of the README that begins like this, as its words. */
function command(words: string): string[] {
  const line = block("sh", words).trim();
  return line.split(" ").map((word) => word.replaceAll("'", ""));
}

function leasehold(args: readonly string[]): string {
  const ended = spawnSync(PROGRAM, args, { encoding: "utf8" });
  assert.equal(ended.status, 0, ended.stderr);
  return ended.stdout;
}

/** A lease that was released, and one that was granted after it. */
async function twoLeases(resource: string): Promise<[stale: Lease, valid: Lease]> {
  const stale = await client.acquire(resource);
  await stale.release();
  const valid = await client.acquire(resource);
  return [stale, valid];
}

/** A client that gives this lease to the recipe. */
const giving = (lease: Lease) => ({ acquire: async () => lease }) as unknown as Client;

/** Is refused with the code, and with the token that the fence has seen. */
async function isStale(recipe: (given: Partial<Given>) => Promise<void>, given: Partial<Given>, seen: Lease): Promise<void> {
  await assert.rejects(recipe(given), (error: unknown) => {
    assert.ok(error instanceof pg.DatabaseError, String(error));
    assert.equal(error.code, "LH001");
    assert.match(error.message + error.detail, new RegExp(String(seen.token)));
    return true;
  });
}

before(async () => {
  assert.ok(DATABASE, "LEASEHOLD_TEST_POSTGRES is not set: run the tests by leasehold-stories --postgres npm test");
  atEnd(() => client.close());
  atEnd(() => pool.end());
  assert.deepEqual(command("leasehold fence schema").slice(0, 4), ["leasehold", "fence", "schema", "|"]);
  await pool.query(leasehold(["fence", "schema"]));
});

test("admit refuses a stale holder", async () => {
  await pool.query("CREATE TABLE report (id int PRIMARY KEY, body text)");
  await pool.query("INSERT INTO report VALUES (42, 'old')");
  const [stale, valid] = await twoLeases("report/42");
  // The recipe releases its lease, which changes nothing for the fence.
  await admit({ client: giving(valid), pool });
  assert.equal((await pool.query("SELECT body FROM report")).rows[0].body, "new");
  await pool.query("UPDATE report SET body = 'later'");
  await isStale(admit, { client: giving(stale), pool }, valid);
  assert.equal((await pool.query("SELECT body FROM report")).rows[0].body, "later");
});

test("triggers refuse a stale holder, and a program without a pass", async () => {
  await pool.query("CREATE TABLE orders (id int PRIMARY KEY, state text)");
  await pool.query("INSERT INTO orders VALUES (7, 'new')");
  const [, ...install] = command("leasehold fence install");
  leasehold(install.map((word) => (word.startsWith("postgres://") ? DATABASE : word)));
  const [stale, valid] = await twoLeases("order/7");
  await enter({ client: giving(valid), pool });
  await enter({ client: giving(valid), pool });
  await isStale(enter, { client: giving(stale), pool }, valid);
  await assert.rejects(pool.query("UPDATE orders SET state = 'new' WHERE id = 7"), { code: "LH003" });
});

test("a ROLLBACK that fails does not hide the error of the recipe", async () => {
  const [stale, valid] = await twoLeases("order/7");
  await enter({ client: giving(valid), pool });
  const failing = {
    connect: async () => {
      const db = await pool.connect();
      const query = async (text: string, values?: unknown[]) => {
        const answer = await db.query(text, values);
        if (text === "ROLLBACK") throw new Error("the connection broke");
        return answer;
      };
      return { query, release: () => db.release() };
    },
  } as unknown as pg.Pool;
  for (const recipe of [admit, enter]) await isStale(recipe, { client: giving(stale), pool: failing }, valid);
});

test("a column of one's own refuses a stale holder", async () => {
  await pool.query("CREATE TABLE job (id text PRIMARY KEY, state text, last_fencing_token bigint NOT NULL DEFAULT 0)");
  await pool.query("INSERT INTO job VALUES ('r1', 'new')");
  const [stale, valid] = await twoLeases("job/r1");
  await column({ lease: valid, db: pool });
  assert.deepEqual((await pool.query("SELECT state, last_fencing_token FROM job")).rows, [{ state: "running", last_fencing_token: String(valid.token) }]);
  await assert.rejects(column({ lease: stale, db: pool }), /stale/);
});

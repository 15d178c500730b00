/** The README is true: its programs run, as they are written there. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { CancelledError, Client, type FinishRequest, type Lease } from "leasehold";

import { eventually, startServer } from "./helpers.js";
import { block, blocks, compileBlocks, PACKAGE } from "./readme.js";

const { url } = await startServer();
const client = new Client(url);
const guarded = await startServer(true);
const operator = new Client(guarded.url, { token: guarded.tokens.operator });
const holder = new Client(guarded.url, { token: guarded.tokens.client, ttl: 9000 });

const WORDS = ["await using lease = await client.acquire(\"report/42\", {", "client.election(", "onFinishRequest", "client.overview("];
const compiled = await compileBlocks("readme", WORDS);
const [scope, more, finish, operators] = compiled as [typeof compiled[0], typeof compiled[0], typeof compiled[0], typeof compiled[0]];

test("the first screen is a program", async () => {
  const program = block("js", "new Client(");
  assert.equal(program, blocks("js")[0]);
  assert.ok(program.includes('"http://127.0.0.1:7420"'));
  const around = `
    const parts = ["one", "two"];
    const send = async (part, { signal, headers }) => console.log(part, signal.aborted, headers["Fencing-Token"].length > 0);
  `;
  // Within the package, so that it imports the package by its name.
  const file = join(PACKAGE, "build/first_screen.mjs");
  writeFileSync(file, around + program.replace("http://127.0.0.1:7420", url));
  const ended = spawnSync(process.execPath, [file], { encoding: "utf8", timeout: 60_000 });
  assert.deepEqual([ended.stdout, ended.stderr, ended.status], ["one false true\ntwo false true\n", "", 0]);
  assert.equal((await client.resource("report/42")).holderCount, 0);
});

test("a scope", async () => {
  await scope({ client });
  const seen = await client.resource("report/42");
  assert.ok(seen.lastToken !== undefined && seen.lastToken > 0n, "it was acquired");
  assert.equal(seen.holderCount, 0, "and released");
});

test("more than a lock", async () => {
  const controller = new AbortController();
  const led: boolean[] = [];
  const schedule = (signal: AbortSignal) => {
    led.push(signal.aborted);
    setTimeout(() => controller.abort(), 100);
  };
  // The loop over the leaders ends with the signal.
  await assert.rejects(more({ client, signal: controller.signal, schedule }), CancelledError);
  assert.deepEqual(led, [false]);
  for (const name of ["report/42", "db/main", "doc/1", "box/a", "box/b"]) {
    // The first lease of the block is not in a scope.
    if (name !== "report/42") assert.equal((await client.resource(name)).holderCount, 0, name);
  }
});

test("a request to finish", async () => {
  const asked: FinishRequest["why"][] = [];
  const work = async ({ token }: Lease) => {
    await operator.order({ resource: "report/44", action: "ask", within: 5000, token, why: "a release" });
    await eventually("it is asked", () => asked.length > 0);
  };
  await finish({ client: holder, work, finishSoon: (why) => void asked.push(why) });
  assert.deepEqual(asked, ["a release"]);
});

test("operators", async () => {
  const lease = await holder.acquire("report/42");
  const said: unknown[] = [];
  const log = console.log;
  console.log = (...words: unknown[]) => void said.push(words[0]);
  try {
    await operators({ client: operator });
  } finally {
    console.log = log;
  }
  assert.ok(said.includes("report/42"));
  await eventually("the lease is lost", () => lease.lost !== undefined);
  assert.equal(lease.lost?.why, "evicted");
});

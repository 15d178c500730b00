import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, InvalidError, keyOf } from "leasehold";

import { startServer } from "./helpers.js";

const HOSTILE = [
  "report/4 2",
  "report/ü%20/../..",
  "report/{a}[b]*?",
  'acme:report/"; DROP TABLE leases; --',
  "report/日本語 🎉",
  "report/~0123456789abcdef0123456789abcdef",
  "__proto__/constructor",
  "report/__proto__",
  "report/a?b=c&d#e",
  "report/\u00a0\u200b\ufeff",
  `report/${"é".repeat(128)}`,
];

const WRONG = [
  "",
  "report",
  "/1",
  "report/",
  "Report/1",
  "a b/1",
  "a:b:c/1",
  ":report/1",
  "report/\u0007",
  "report/\u0085",
  "report/\ud800",
  `report/${"é".repeat(129)}`,
  `${"a".repeat(65)}/1`,
];

test("keys are those of the server", async () => {
  const { url } = await startServer();
  await using client = new Client(url);
  for (const name of HOSTILE) {
    const lease = await client.tryAcquire(name);
    assert.equal((await client.resource(name)).key, keyOf(name));
    assert.equal(lease.key, keyOf(name));
    assert.equal(lease.resource, name);
    assert.ok(lease.pass.endsWith(` ${name}`));
    assert.equal(await lease.release(), true);
  }
});

test("names that are none are refused before anything is sent", async () => {
  const client = new Client("http://127.0.0.1:1");
  for (const name of WRONG) await assert.rejects(client.tryAcquire(name), InvalidError, JSON.stringify(name));
  for (const name of [undefined, null, 7, {}, { key: "a b" }]) await assert.rejects(client.tryAcquire(name as unknown as string), InvalidError);
});

test("a resource can be named by its key, as one with a hashed id is", async () => {
  const { url } = await startServer();
  await using client = new Client(url);
  const key = `mail/~${"0f".repeat(16)}`;
  await using lease = await client.tryAcquire({ key });
  assert.equal(lease.key, key);
  assert.equal((await client.resource({ key })).holders[0]?.token, lease.token);
  lease.check();
});

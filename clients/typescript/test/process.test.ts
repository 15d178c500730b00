/** What a whole program sees. */

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { Client } from "leasehold";

import { eventually, startServer } from "./helpers.js";

const { url } = await startServer();

/** Runs a program. One that does not end by itself is killed, and fails. */
function runProgram(body: string) {
  const source = `import { Client } from "leasehold"; const client = new Client(${JSON.stringify(url)}); ${body}`;
  const cwd = fileURLToPath(new URL("../..", import.meta.url));
  return spawnSync(process.execPath, ["--input-type=module", "-e", source], { cwd, encoding: "utf8", timeout: 20_000 });
}

test("renewals do not keep a program alive", () => {
  const ended = runProgram(`const lease = await client.acquire("p/1", { ttl: 6000 }); await new Promise((r) => setTimeout(r, 7000)); lease.check(); console.log("done");`);
  assert.deepEqual([ended.stdout, ended.stderr, ended.status], ["done\n", "", 0]);
});

test("a claim that was cancelled is ended before the program ends", async () => {
  const client = new Client(url);
  const lease = await client.acquire("p/2");
  const ended = runProgram(`await client.acquire("p/2", { signal: AbortSignal.timeout(500) }).catch((error) => console.log(error.name));`);
  assert.deepEqual([ended.stdout, ended.stderr, ended.status], ["AbortError\n", "", 0]);
  // Sooner than its place would have ended by itself.
  assert.equal((await client.resource("p/2")).queueLength, 0);
  await lease.release();
});

test("a loss without a listener is no unhandled rejection", async () => {
  const ended = runProgram(`
    const lease = await client.acquire("p/3", { ttl: 1500 });
    const until = performance.now() + 1600;
    while (performance.now() < until);
    try { lease.check(); } catch (error) { console.log(error.name, error.why); }
    await new Promise((r) => setTimeout(r, 50));
    console.log(lease.signal.aborted, lease.remaining, await lease.release());
  `);
  assert.deepEqual([ended.stdout, ended.stderr, ended.status], ["LeaseLostError expired\ntrue 0 false\n", "", 0]);
  const client = new Client(url);
  await eventually("it is free", async () => (await client.resource("p/3")).holderCount === 0);
});

test("many may wait with one signal", () => {
  const ended = runProgram(`
    const { signal } = new AbortController();
    const work = async () => new Promise((r) => setTimeout(r, 1));
    await Promise.all(Array.from({ length: 30 }, () => client.run("p/4", { signal }, work)));
    const lease = await client.acquire("p/5");
    for (let i = 0; i < 30; i += 1) lease.signal.addEventListener("abort", () => {});
    console.log("done");
    await client.close();
  `);
  assert.deepEqual([ended.stdout, ended.stderr, ended.status], ["done\n", "", 0]);
});

test("a server of the tests ends with the process of the tests, and leaves no folder", async () => {
  const helpers = new URL("./helpers.js", import.meta.url).href;
  const source = `
    import { startServer } from ${JSON.stringify(helpers)};
    const { url, folder } = await startServer();
    console.log(JSON.stringify({ url, folder }));
    setInterval(() => {}, 1000);
  `;
  const child = spawn(process.execPath, ["--input-type=module", "-e", source], { stdio: ["ignore", "pipe", "inherit"] });
  let started: { url: string; folder: string } | undefined;
  for await (const line of createInterface({ input: child.stdout })) {
    started = JSON.parse(line);
    break;
  }
  assert.ok(started !== undefined && existsSync(started.folder));
  const { url, folder } = started;
  await new Client(url).info();
  const ended = once(child, "exit");
  child.kill("SIGKILL");
  await ended;
  const isGone = () => new Client(url).info().then(() => false, (error) => error.effect === "none");
  await eventually("the server is gone", isGone);
  await eventually("its folder is gone", () => !existsSync(folder));
});

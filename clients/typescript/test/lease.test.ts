import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { getEventListeners, getMaxListeners } from "node:events";
import { inspect } from "node:util";

import { BusyError, CancelledError, Client, HolderChangedError, InvalidError, LeaseLostError, MismatchError, TimedOutError } from "leasehold";

import { eventually, startServer } from "./helpers.js";

const { url, tokens } = await startServer(true);
const client = new Client(url, { token: tokens.client, label: "tests" });
const operator = new Client(url, { token: tokens.operator });

const queued = (resource: string, length: number) =>
  eventually(`${length} wait for ${resource}`, async () => (await client.resource(resource)).queueLength === length);

describe("a scope", () => {
  test("releases at its end", async () => {
    {
      await using lease = await client.acquire("scope/1", { note: "at work" });
      assert.equal(typeof lease.token, "bigint");
      assert.equal((await client.resource("scope/1")).holders[0]?.token, lease.token);
      assert.ok(lease.remaining > 0 && lease.remaining < 30_000);
    }
    assert.deepEqual((await client.resource("scope/1")).holders, []);
  });

  test("does not hide the error of its body", async () => {
    await assert.rejects(
      async () => {
        await using lease = await client.acquire("scope/2");
        lease.check();
        throw new RangeError("mine");
      },
      { name: "RangeError", message: "mine" },
    );
    assert.equal((await client.resource("scope/2")).holderCount, 0);
  });

  test("a release may be repeated, and a released lease is no lease", async () => {
    const lease = await client.acquire("scope/3");
    assert.deepEqual(await Promise.all([lease.release(), lease.release()]), [true, true]);
    assert.throws(() => lease.check(), { name: "LeaseLostError", why: "released" });
    assert.equal(lease.remaining, 0);
    assert.equal(lease.signal.aborted, false);
    await assert.rejects(lease.setNote("too late"), LeaseLostError);
  });

  test("run gives what the work gives, and throws what it throws", async () => {
    assert.equal(await client.run("run/1", async (lease, signal) => [lease.resource, signal.aborted].join()), "run/1,false");
    assert.equal(await client.run("run/1", { ttl: 5000 }, () => 7), 7);
    await assert.rejects(client.run("run/1", () => Promise.reject(new RangeError("mine"))), { message: "mine" });
    assert.equal((await client.resource("run/1")).holderCount, 0);
  });

  test("options may be undefined, and what is no function is refused before anything is acquired", async () => {
    assert.equal(await client.run("run/4", undefined, () => 7), 7);
    assert.equal(await client.semaphore("run/5", { capacity: 2 }).run(undefined, () => 8), 8);
    assert.equal(await client.election("run/6").lead(undefined, () => 9), 9);
    const none = undefined as unknown as () => void;
    await assert.rejects(client.run("run/4", {}, none), InvalidError);
    await assert.rejects(client.semaphore("run/5", { capacity: 2 }).run({}, none), InvalidError);
    await assert.rejects(client.election("run/6").lead({}, none), InvalidError);
    for (const name of ["run/4", "run/5", "run/6"]) assert.equal((await client.resource(name)).holderCount, 0, name);
  });

  test("work that releases its lease has not lost it", async () => {
    assert.equal(await client.run("run/2", async (lease) => [await lease.release(), 1][1]), 1);
  });

  test("the caller's signal reaches the work, and the lease is released", async () => {
    const controller = new AbortController();
    const work = client.run("run/3", { signal: controller.signal }, async (_, signal) => {
      controller.abort(new Error("enough"));
      signal.throwIfAborted();
    });
    await assert.rejects(work, { message: "enough" });
    assert.equal((await client.resource("run/3")).holderCount, 0);
  });
});

// Each waits for a renewal.
describe("a loss", { concurrency: true }, () => {
  test("aborts the signal with its reason, and comes out of run", async () => {
    const work = client.run("loss/1", { ttl: 9000 }, async (lease, signal) => {
      await operator.order({ resource: "loss/1", action: "evict-now", token: lease.token, why: "the test" });
      await new Promise((_, reject) => signal.addEventListener("abort", () => reject(new DOMException("stopped", "AbortError"))));
    });
    await assert.rejects(work, (error: unknown) => {
      assert.ok(error instanceof LeaseLostError);
      assert.equal(error.why, "evicted");
      assert.equal((error.cause as Error).message, "stopped");
      return true;
    });
  });

  test("does not hide an error of the work", async () => {
    const work = client.run("loss/2", { ttl: 9000 }, async (lease, signal) => {
      await operator.order({ resource: "loss/2", action: "evict-now", token: lease.token, why: "the test" });
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
      assert.ok(signal.reason instanceof LeaseLostError);
      throw new RangeError("mine");
    });
    await assert.rejects(work, { message: "mine" });
  });

  test("is told to work that returned all the same", async () => {
    const work = client.run("loss/3", { ttl: 9000 }, async (lease, signal) => {
      await operator.order({ resource: "loss/3", action: "evict-now", token: lease.token, why: "the test" });
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
    });
    await assert.rejects(work, { kind: "lost", why: "evicted" });
  });

  test("an operator's request to finish arrives, once", async () => {
    const asked: string[] = [];
    await using lease = await client.acquire("loss/4", { ttl: 9000, onFinishRequest: (request) => asked.push(request.why) });
    await operator.order({ resource: "loss/4", action: "ask", within: 5000, token: lease.token, why: "a release", by: "ann" });
    await eventually("it is asked", () => asked.length > 0);
    assert.deepEqual([asked, lease.finishRequest?.why], [["a release"], "a release"]);
    let before = lease.remaining;
    const isRenewed = () => {
      const rose = lease.remaining > before;
      before = lease.remaining;
      return rose;
    };
    await eventually("it is renewed", isRenewed);
    assert.equal(asked.length, 1);
  });
});

describe("waiting", () => {
  test("ends with the signal, says why, and leaves nothing", async () => {
    await using _ = await client.acquire("wait/1");
    const controller = new AbortController();
    const waiting = client.acquire("wait/1", { signal: controller.signal });
    await queued("wait/1", 1);
    controller.abort("changed my mind");
    await assert.rejects(waiting, (error: unknown) => {
      assert.ok(error instanceof CancelledError);
      assert.deepEqual([error.name, error.kind, error.cause], ["AbortError", "cancelled", "changed my mind"]);
      return true;
    });
    await queued("wait/1", 0);
    await assert.rejects(client.acquire("wait/1", { signal: AbortSignal.abort() }), CancelledError);
    await assert.rejects(client.acquire("wait/1", { signal: AbortSignal.timeout(20) }), CancelledError);
    await queued("wait/1", 0);
  });

  test("is refused with the holders", async () => {
    await using held = await client.acquire("wait/2", { note: new Uint8Array([0xff, 0]) });
    await assert.rejects(client.tryAcquire("wait/2"), (error: unknown) => {
      assert.ok(error instanceof BusyError && !(error instanceof TimedOutError));
      assert.deepEqual([error.holders[0]?.token, error.holders[0]?.label, error.effect], [held.token, "tests", "none"]);
      assert.ok(error.retryAfter > 0);
      const logged = JSON.parse(JSON.stringify(error));
      assert.deepEqual([logged.name, logged.kind, logged.message], ["BusyError", "busy", error.message]);
      assert.deepEqual([logged.holders[0].token, logged.holders[0].note], [String(held.token), "/wA="]);
      return true;
    });
    await assert.rejects(client.acquire("wait/2", { wait: 100 }), TimedOutError);
  });

  test("adds one listener to the caller's signal for many who wait, and changes nothing else about it", async () => {
    const { signal } = new AbortController();
    const most = getMaxListeners(signal);
    const held = await client.acquire("wait/4");
    const waiting = Promise.all(Array.from({ length: 20 }, () => client.run("wait/4", { signal, wait: 60_000 }, () => {})));
    await queued("wait/4", 20);
    assert.equal(getEventListeners(signal, "abort").length, 1);
    await held.release();
    await waiting;
    assert.equal(getEventListeners(signal, "abort").length, 0);
    assert.equal(getMaxListeners(signal), most);
  });

  test("ends when the client is closed, which releases what it holds", async () => {
    const mine = new Client(url, { token: tokens.client });
    const held = await mine.acquire("wait/3");
    const closed = { name: "AbortError", kind: "cancelled", message: "the client was closed" };
    const waiting = assert.rejects(mine.acquire("wait/3"), closed);
    const observed = assert.rejects(async () => {
      for await (const leader of mine.election("wait/3").observe()) void leader;
    }, CancelledError);
    await queued("wait/3", 1);
    await mine.close();
    await Promise.all([waiting, observed]);
    const seen = await client.resource("wait/3");
    assert.deepEqual([seen.holderCount, seen.queueLength], [0, 0]);
    assert.throws(() => held.check(), { why: "released" });
    await assert.rejects(mine.acquire("wait/3"), CancelledError);
  });
});

describe("other leases", () => {
  test("several at once are all or none, and in order", async () => {
    await using set = await client.acquireAll(["all/b", "all/a b", "all/B"]);
    assert.deepEqual(set.leases.map((lease) => lease.resource), ["all/B", "all/a b", "all/b"]);
    assert.equal(set.get("all/b")?.key, "all/b");
    await assert.rejects(client.acquireAll(["all/c", "all/b"], { wait: 60 }), TimedOutError);
    assert.equal((await client.resource("all/c")).holderCount, 0);
    await assert.rejects(client.acquireAll(["all/d", { key: "all/d" }]), InvalidError);
    set.check();
    assert.equal(await set.release(), true);
    assert.throws(() => set.check(), LeaseLostError);
  });

  test("permits of a semaphore have numbers, and no tokens", async () => {
    const semaphore = client.semaphore("db/main", { capacity: 2 });
    await using permit = await semaphore.acquire();
    assert.equal(typeof permit.number, "bigint");
    assert.ok(!("token" in permit) && !("pass" in permit));
    assert.equal(await semaphore.run({}, (other) => other.number !== permit.number), true);
    await assert.rejects(semaphore.tryAcquire({ weight: 2 }), BusyError);
    await assert.rejects(semaphore.acquire({ weight: 3 }), InvalidError);
    await assert.rejects(client.semaphore("db/main", { capacity: 3 }).acquire(), (error: unknown) => {
      assert.ok(error instanceof MismatchError && error instanceof InvalidError);
      assert.equal(error.capacity, 2);
      return true;
    });
    assert.throws(() => client.semaphore("db/main", { capacity: 0 }), InvalidError);
  });

  test("a writer has a token", async () => {
    const lock = client.readWriteLock("doc/1");
    {
      await using one = await lock.read();
      await using two = await lock.read({ wait: 0 });
      assert.notEqual(one.number, two.number);
      await assert.rejects(lock.write({ wait: 0 }), BusyError);
    }
    await using writer = await lock.write();
    assert.ok(writer.token > 0n && writer.pass.startsWith(`${writer.token} `));
  });

  test("notes are text or bytes", async () => {
    await using lease = await client.acquire("note/1", { note: new Uint8Array([0xff, 0]) });
    assert.deepEqual((await client.resource("note/1")).holders[0]?.note, new Uint8Array([0xff, 0]));
    await lease.setNote("now text");
    assert.equal((await client.resource("note/1")).holders[0]?.note, "now text");
    await assert.rejects(lease.setNote("x".repeat(5000)), InvalidError);
    lease.check();
  });

  test("a leader is seen, with its value", async () => {
    const election = client.election("scheduler/eu");
    assert.equal(await election.leader(), undefined);
    const leading = await election.lead({ value: "10.0.0.1:80" }, async (lease) => [await election.leader(), lease.token] as const);
    const [leader, token] = leading;
    assert.deepEqual([leader?.value, leader?.token, leader?.pid], ["10.0.0.1:80", token, process.pid]);
    const controller = new AbortController();
    await assert.rejects(async () => {
      for await (const seen of election.observe({ signal: controller.signal })) {
        assert.equal(seen, undefined);
        controller.abort();
      }
    }, CancelledError);
  });
});

describe("the lead", () => {
  const evict = (resource: string, token: bigint) => operator.order({ resource, action: "evict-now", token, why: "the test" });

  test("stands again after a loss, and the work begins anew", async () => {
    const tokens: bigint[] = [];
    const done = await client.election("lead/1").lead({ ttl: 3000, value: "here" }, async (lease, signal) => {
      tokens.push(lease.token);
      assert.equal((await client.election("lead/1").leader())?.value, "here");
      // Lost while it works, lost and noticed by a check, lost and returned all the same.
      if (tokens.length > 3) return tokens.length;
      await evict("lead/1", lease.token);
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
      if (tokens.length === 1) signal.throwIfAborted();
      if (tokens.length === 2) lease.check();
      return 0;
    });
    assert.equal(done, 4);
    assert.ok(tokens.every((token, index) => index === 0 || token > (tokens[index - 1] as bigint)), "each lead has a higher token");
    assert.equal((await client.resource("lead/1")).holderCount, 0);
  });

  test("does not hide an error of the work, nor a lease that the work has released", async () => {
    let times = 0;
    const failing = client.election("lead/2").lead({ ttl: 3000 }, async (lease, signal) => {
      times += 1;
      await evict("lead/2", lease.token);
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
      throw new RangeError("mine");
    });
    await assert.rejects(failing, { message: "mine" });
    const released = client.election("lead/2").lead({}, async (lease) => {
      times += 1;
      await lease.release();
      lease.check();
    });
    await assert.rejects(released, { kind: "lost", why: "released" });
    assert.equal(times, 2);
  });

  test("ends with the caller's signal, while it waits and while it works", async () => {
    const controller = new AbortController();
    const { signal } = controller;
    const leading = client.election("lead/3").lead({ signal }, async (_, stop) => {
      await new Promise((_, reject) => stop.addEventListener("abort", () => reject(stop.reason)));
    });
    await eventually("it leads", async () => (await client.resource("lead/3")).holderCount === 1);
    const waiting = client.election("lead/3").lead({ signal }, () => assert.fail("it never leads"));
    await queued("lead/3", 1);
    const [led, waited] = [assert.rejects(leading, { message: "enough" }), assert.rejects(waiting, CancelledError)];
    controller.abort(new Error("enough"));
    await Promise.all([led, waited]);
    await queued("lead/3", 0);
    assert.equal((await client.resource("lead/3")).holderCount, 0);
  });
});

test("a store that promises less than the level is refused", async () => {
  const levels = { "best-effort": true, quorum: true, database: true, consensus: false } as const;
  assert.equal((await client.info()).store.level, "database");
  for (const [level, isEnough] of Object.entries(levels) as [keyof typeof levels, boolean][]) {
    const mine = new Client(url, { token: tokens.client, level });
    const acquired = [
      () => mine.acquire("level/1"),
      () => mine.readWriteLock("level/2").read(),
      () => mine.semaphore("level/3", { capacity: 1 }).acquire(),
      () => mine.election("level/4").campaign(),
    ];
    for (const acquire of acquired) {
      if (isEnough) await (await acquire()).release();
      else await assert.rejects(acquire(), { kind: "invalid", code: "guarantee_too_weak", effect: "none" });
    }
  }
});

test("operators list, look, and give orders", async () => {
  await using one = await client.acquire("ops/1", { note: "n" });
  await using _ = await client.acquire("ops/2");
  const names = [];
  for await (const resource of operator.resources("ops/")) names.push(resource.name);
  assert.deepEqual(names, ["ops/1", "ops/2"]);
  await eventually("both are sampled", async () => (await operator.overview({ q: "ops/", limit: 1 })).matched === 2);
  const page = await operator.overview({ q: "ops/", sort: "name", limit: 1 });
  const more = await operator.overview({ q: "ops/", sort: "name", limit: 1, after: page.next as string });
  assert.deepEqual([page.items[0]?.name, more.items[0]?.name], ["ops/1", "ops/2"]);
  const why = "the test";
  await assert.rejects(operator.order({ resource: "ops/1", action: "evict", token: one.token - 1n, why }), (error: unknown) => {
    assert.ok(error instanceof HolderChangedError);
    assert.equal(error.token, one.token);
    return true;
  });
  await operator.order({ resource: "ops/3", action: "pause", lasting: 60_000, why });
  assert.ok(((await operator.resource("ops/3")).pausedFor ?? 0) > 0);
  await assert.rejects(client.tryAcquire("ops/3"), { kind: "busy", paused: true });
  await operator.order({ resource: "ops/3", action: "resume", why });
  await (await client.tryAcquire("ops/3")).release();
  await assert.rejects(operator.order({ resource: "ops/3", action: "resume", why: "" }), InvalidError);
  const info = await operator.info();
  assert.deepEqual([info.store.backend, info.survivesServer, info.api.split(".")[0]], ["sqlite", true, "1"]);
});

test("options that are wrong are refused", async () => {
  for (const options of [{ ttl: 0 }, { ttl: NaN }, { wait: -1 }, { wait: NaN }, { ttl: "5" as unknown as number }]) {
    await assert.rejects(client.acquire("option/1", options), InvalidError, inspect(options));
  }
  for (const wrong of ["nonsense", "ftp://host", "http://user:secret@host"]) assert.throws(() => new Client(wrong), InvalidError);
  await assert.rejects(new Client(url, { token: "lh_1_2\n" }).info(), InvalidError);
  assert.throws(() => new Client(url, { timeout: 0 }), InvalidError);
});

test("nothing that is printed has a secret in it", async () => {
  const secret = tokens.client;
  const mine = new Client(url, { token: () => secret });
  await using lease = await mine.acquire("secret/1");
  const shown = [mine, lease].map((value) => inspect(value, { depth: 20, showHidden: true }) + JSON.stringify(value, (_, v) => String(v))).join("\n");
  assert.ok(!shown.includes(secret));
  // The owner token: 32 hex digits. Its hash is in the pass, which may be shown.
  const hash = lease.pass.split(" ")[1] as string;
  assert.ok(!/[0-9a-f]{32}/.test(shown.replaceAll(hash, "")), shown);
});

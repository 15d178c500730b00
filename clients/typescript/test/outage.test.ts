/** Servers that do not answer, shut down, or cannot read their store. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, type Leader, TimedOutError } from "leasehold";

import { FakeServer, grant, honest, kept, names, type Reply, type Request } from "./helpers.js";

const gone: Reply = { cut: "before" };

/** While this runs, the monotonic clock is ahead. */
async function later(ms: number, run: () => Promise<void>): Promise<void> {
  const real = performance.now.bind(performance);
  // Node 18 refuses an assignment: the function belongs to the prototype.
  const define = (now: () => number) => Object.defineProperty(performance, "now", { value: now, configurable: true, writable: true });
  define(() => real() + ms);
  try {
    await run();
  } finally {
    define(real);
  }
}

/** A server whose first claims get these answers. */
function answering(...replies: ((request: Request) => Reply)[]): Promise<FakeServer> {
  return FakeServer.start((request) => ((request.path === "/v1/acquire" && replies.shift()) || honest)(request));
}

test("a wait goes on through an outage, as long as it was told to", async () => {
  for (const wait of [Infinity, 600_000]) {
    let isOut = true;
    const server = await FakeServer.start((request) => (isOut ? gone : honest(request)));
    await using client = new Client(server.url);
    const waiting = client.acquire("a/1", { wait });
    await server.received("/v1/acquire", 1);
    // Two minutes later. A claim that gives up then has failed before it has asked three times more.
    await later(120_000, async () => {
      await Promise.race([server.received("/v1/acquire", 4), waiting]);
      isOut = false;
      (await waiting).check();
    });
  }
});

test("a wait that is over in an outage says so", async () => {
  const server = await FakeServer.start(() => gone);
  const client = new Client(server.url, { releaseTimeout: 1 });
  const waiting = assert.rejects(client.acquire("a/1", { wait: 60_000 }), { kind: "unavailable", effect: "unknown" });
  await server.received("/v1/acquire", 1);
  await later(70_000, async () => {
    await waiting;
    await client.close();
  });
});

test("an acquisition waits ten seconds unless it is told, and a candidate without a limit", async () => {
  const server = await FakeServer.start(honest);
  await using client = new Client(server.url);
  await (await client.acquire("a/1")).release();
  await (await client.acquireAll(["a/1"])).release();
  await (await client.readWriteLock("a/1").write()).release();
  await (await client.election("a/1").campaign()).release();
  await client.election("a/1").lead({}, () => {});
  const asked = server.on("/v1/acquire").map(({ body }) => [Number(body["wait_ms"]), body["when_blocked"]] as const);
  assert.equal(asked.length, 5);
  for (const [wait, whenBlocked] of asked.slice(0, 3)) {
    assert.ok(wait <= 10_000 && wait > 1000, String(wait));
    assert.equal(whenBlocked, undefined);
  }
  assert.deepEqual(asked.slice(3), [[20_000, "queue"], [20_000, "queue"]]);
});

test("a claim asks again no sooner than the server says", async () => {
  const draining = { status: 503, body: { kind: "draining", effect: "none", retry_after_ms: 4000 } };
  const server = await answering(() => draining);
  await using client = new Client(server.url);
  await using lease = await client.acquire("a/1", { wait: 60_000 });
  lease.check();
  const [first, second] = server.on("/v1/acquire") as [Request, Request];
  assert.ok(second.at - first.at >= 4000, `${second.at - first.at} ms`);
});

test("a claim asks a server that shuts down less and less often", async () => {
  const queued = ({ body }: Request): Reply => ({ status: 202, body: { verdict: "queued", ...names(body), place_ms: 1000 } });
  const server = await answering(...Array.from({ length: 7 }, () => queued));
  await using client = new Client(server.url);
  await using lease = await client.acquire("a/1", { wait: 60_000 });
  lease.check();
  const times = server.on("/v1/acquire").map(({ at }) => at);
  assert.equal(times.length, 8);
  assert.ok((times[7] as number) - (times[0] as number) >= 2000, String(times));
});

test("a lead goes on through losses and outages", async () => {
  let claims = 0;
  const server = await FakeServer.start((request) => {
    if (request.path === "/v1/renew") {
      const lost = (lease: Record<string, unknown>) => ({ status: 410, kind: "lost", verdict: "gone", why: "not_there", effect: "none", ...names(lease) });
      return { body: { leases: (request.body["leases"] as Record<string, unknown>[]).map(claims === 1 ? lost : kept) } };
    }
    if (request.path !== "/v1/acquire") return honest(request);
    claims += 1;
    return claims > 1 && claims < 5 ? gone : honest(request);
  });
  await using client = new Client(server.url);
  let times = 0;
  const done = await client.election("a/1").lead({ ttl: 3000 }, async (_, signal) => {
    times += 1;
    if (times === 1) await new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    return "done";
  });
  assert.deepEqual([done, times, claims], ["done", 2, 5]);
});

const lead = (token: string) => ({
  token,
  weight: 1,
  held_for_ms: 1,
  remaining_ms: 1000,
  evicting: false,
  kept: false,
  holder: { host: "h", pid: 1, label: "" },
});

/** The resource of an election, as a server describes it. */
function resource(fields: object): Reply {
  const free = { resource: "a/1", key: "a/1", capacity: 1, holders: [], holder_count: 0, queue: [], queue_length: 0, cursor: "c" };
  return { body: { ...free, ...fields } };
}

test("a resource that cannot be read is no election without a leader", async () => {
  const led = resource({ holders: [lead("7")], holder_count: 1 });
  const unreadable = resource({ unreadable: "the value is no JSON" });
  const answers = [led, unreadable, unreadable, led, resource({ holders: [lead("8")], holder_count: 1 }), resource({})];
  const server = await FakeServer.start(() => answers.shift() ?? unreadable);
  await using client = new Client(server.url);
  const seen: (Leader | undefined)[] = [];
  for await (const leader of client.election("a/1").observe()) {
    seen.push(leader);
    if (leader === undefined) break;
  }
  assert.deepEqual(seen.map((leader) => leader?.token), [7n, 8n, undefined]);
  await assert.rejects(client.election("a/1").leader(), { kind: "unavailable", effect: "none", message: /the value is no JSON/ });
  assert.equal((await client.resource("a/1")).unreadable, "the value is no JSON");
});

test("a wait whose time is over is told who holds it", async () => {
  const contended: Reply = { status: 423, body: { kind: "contended", effect: "none", retry_after_ms: 10, holders: [lead("7")] } };
  const server = await answering(() => contended);
  await using client = new Client(server.url);
  await assert.rejects(client.acquire("a/1", { wait: 20 }), (error: unknown) => {
    assert.ok(error instanceof TimedOutError);
    assert.equal(error.holders[0]?.token, 7n);
    return true;
  });
});

test("a claim whose grants come too late asks less and less often", async () => {
  const late = ({ body }: Request): Reply => ({ body: { ...grant(body), remaining_ms: 0 } });
  const server = await answering(late, late, late, late);
  await using client = new Client(server.url);
  await using lease = await client.acquire("a/1", { wait: 60_000 });
  lease.check();
  const times = server.on("/v1/acquire").map(({ at }) => at);
  assert.equal(times.length, 5);
  assert.ok((times[4] as number) - (times[0] as number) >= 1400, String(times));
});

/** Answers that lie, are cut, or never come. None of them may become a lease. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { BusyError, Client, CorruptError, DeniedError, InvalidError, LeaseLostError, UnavailableError } from "leasehold";

import { eventually, FakeServer, grant, hashOf, honest, kept, names, type Reply, type Request, TOKEN } from "./helpers.js";

/** A server that is honest, except for claims. */
const lying = (lie: (request: Request) => Reply) => FakeServer.start((request) => (request.path === "/v1/acquire" ? lie(request) : honest(request)));

const LIES: Record<string, (request: Request) => Reply> = {
  "names another resource": ({ body }) => ({ body: { ...grant(body), resource: "a/2", key: "a/2" } }),
  "names another owner": ({ body }) => ({ body: { ...grant(body), owner_hash: "0".repeat(32) } }),
  "names no owner": ({ body }) => ({ body: { ...grant(body), owner_hash: undefined } }),
  "has the pass of another": ({ body }) => ({ body: { ...grant(body), pass: `${TOKEN} ${"0".repeat(32)} a/1` } }),
  "has a pass with another token": ({ body }) => ({ body: { ...grant(body), pass: `1 ${hashOf(body)} a/1` } }),
  "has a token that is a number": ({ body }) => ({ body: { ...grant(body), token: Number(TOKEN) } }),
  "has a token that is none": ({ body }) => ({ body: { ...grant(body), token: "-1" } }),
  "has no time": ({ body }) => ({ body: { ...grant(body), remaining_ms: undefined } }),
  "has a negative time": ({ body }) => ({ body: { ...grant(body), waited_ms: -5 } }),
  "has an endless time": ({ body }) => ({ body: JSON.stringify(grant(body)).replace('"remaining_ms":30000', '"remaining_ms":1e999') }),
  "has an unknown verdict": ({ body }) => ({ body: { ...grant(body), verdict: "perhaps" } }),
  "has the wrong status": ({ body }) => ({ status: 202, body: grant(body) }),
  "belongs to another request": ({ body }) => ({ body: grant(body), headers: { "leasehold-request": "0123" } }),
  "has no request id": ({ body }) => ({ body: grant(body), headers: { "leasehold-request": undefined } }),
  "is of no leasehold server": ({ body }) => ({ body: grant(body), headers: { "leasehold-api": undefined } }),
  "is of a later API": ({ body }) => ({ body: grant(body), headers: { "leasehold-api": "2.0" } }),
  "names no store": ({ body }) => ({ body: grant(body), headers: { "leasehold-store": undefined } }),
  "is no JSON": () => ({ body: "<html>welcome to the Wi-Fi</html>" }),
  "is a list": () => ({ body: [] }),
  "is cut": ({ body }) => ({ body: grant(body), cut: "within" }),
  "does not come": () => ({ cut: "before" }),
  "is a redirect": () => ({ status: 307, headers: { location: "http://127.0.0.1:1/" } }),
  "is a proxy's": () => ({ status: 502, body: "bad gateway", headers: { "leasehold-api": undefined, "leasehold-store": undefined } }),
  "is a refusal of another claim": () => ({ status: 423, body: { kind: "contended", effect: "none", key: "a/2" } }),
  "is an unknown refusal": () => ({ status: 418, body: { kind: "teapot", title: "?" } }),
};

for (const [what, lie] of Object.entries(LIES)) {
  test(`an answer to a claim that ${what} is no grant`, async () => {
    const server = await lying(lie);
    await using client = new Client(server.url);
    await assert.rejects(client.tryAcquire("a/1"), (error: unknown) => {
      assert.ok(error instanceof UnavailableError, String(error));
      assert.equal(error.effect, "unknown");
      const [claim] = server.on("/v1/acquire");
      assert.ok(!`${error.stack} ${JSON.stringify(error)}`.includes(String(claim?.body["owner"])), "the owner token is secret");
      return true;
    });
    // What may still arrive of the claim is refused by a tombstone, on another connection.
    await eventually("it is released", () => server.on("/v1/release").length > 0);
    const [claim, release] = [server.on("/v1/acquire")[0], server.on("/v1/release")[0]];
    assert.equal(release?.body["owner"], claim?.body["owner"]);
    assert.ok(Number(release?.body["bury_ms"]) >= 180_000);
  });
}

test("the connection of an answer that lies is not used again, and that of an honest one is", async () => {
  let lies = true;
  const server = await FakeServer.start((request) => {
    if (request.path !== "/v1/acquire" || !lies) return honest(request);
    lies = false;
    return { body: { ...grant(request.body), owner_hash: "0".repeat(32) } };
  });
  await using client = new Client(server.url);
  for (const name of ["a/1", "a/2", "a/3"]) await client.tryAcquire(name).catch(() => {});
  const [one, two, three] = server.on("/v1/acquire").map((request) => request.connection);
  assert.notEqual(one, two);
  assert.equal(two, three);
});

test("a claim that waits asks again, with the same owner token, until it is told the truth", async () => {
  const lies = ["is cut", "names another owner", "is a proxy's"].map((name) => LIES[name] as (request: Request) => Reply);
  const server = await lying((request) => (lies.shift() ?? honest)(request));
  await using client = new Client(server.url);
  const lease = await client.acquire("a/1", { wait: 30_000 });
  assert.equal(lease.token, BigInt(TOKEN));
  const claims = server.on("/v1/acquire");
  assert.equal(claims.length, 4);
  assert.equal(new Set(claims.map((claim) => claim.body["owner"])).size, 1);
  await lease.release();
  assert.ok(Number(server.on("/v1/release")[0]?.body["bury_ms"]) > 0, "a request of it was not answered");
});

test("a grant that comes too late is given back, and asked for again with another owner token", async () => {
  let late = true;
  const server = await lying(({ body }) => {
    const reply = { body: { ...grant(body), remaining_ms: late ? 0 : 30_000 } };
    late = false;
    return reply;
  });
  await using client = new Client(server.url);
  await using lease = await client.acquire("a/1", { wait: 20_000 });
  lease.check();
  const [first, second] = server.on("/v1/acquire");
  assert.notEqual(first?.body["owner"], second?.body["owner"]);
  await eventually("it is released", () => server.on("/v1/release").some((release) => release.body["owner"] === first?.body["owner"]));
});

test("a claim all of whose grants come too late leaves nothing behind, and says so", async () => {
  const server = await lying(({ body }) => ({ body: { ...grant(body), remaining_ms: 0 } }));
  await using client = new Client(server.url);
  await assert.rejects(client.acquire("a/1", { wait: 300 }), (error: unknown) => {
    assert.ok(error instanceof UnavailableError && /granted too late/.test(error.message), String(error));
    assert.equal(error.effect, "none");
    return true;
  });
});

test("an owner token with a tombstone is replaced", async () => {
  let buried = true;
  const server = await lying(({ body }) => {
    if (!buried) return { body: grant(body) };
    buried = false;
    return { status: 410, body: { kind: "lost", why: "buried", effect: "none", verdict: "cancelled", ...names(body) } };
  });
  await using client = new Client(server.url);
  await using lease = await client.tryAcquire("a/1");
  lease.check();
});

test("no grant is believed after another store has answered", async () => {
  let store = "1111222233334444";
  const server = await FakeServer.start((request) => ({ ...honest(request), headers: { "leasehold-store": store } }));
  await using client = new Client(server.url);
  await using lease = await client.tryAcquire("a/1");
  store = "ffff000011112222";
  await assert.rejects(client.tryAcquire("a/2"), { effect: "unknown", message: /another store/ });
  store = "1111222233334444";
  await assert.rejects(client.tryAcquire("a/3"), { effect: "none", message: /another store/ });
  lease.check();
});

test("renewals that lie do not keep a lease, and do not end it before its time", async () => {
  const lies: ((leases: Record<string, unknown>[]) => Reply)[] = [
    (leases) => ({ body: { leases: leases.map(kept).slice(1) } }),
    (leases) => ({ body: { leases: leases.map(kept).reverse() } }),
    (leases) => ({ body: { leases: leases.map((lease) => ({ ...kept(lease), grant: "1" })) } }),
    () => ({ status: 503, body: { kind: "unavailable", effect: "unknown" } }),
    () => ({ body: { leases: [{ status: 410, kind: "lost", verdict: "gone", why: "evicted", key: "b/9" }, {}] } }),
  ];
  let next = 0;
  const server = await FakeServer.start((request) => {
    if (request.path !== "/v1/renew") return honest(request);
    return (lies[next++ % lies.length] as (typeof lies)[number])(request.body["leases"] as Record<string, unknown>[]);
  });
  await using client = new Client(server.url);
  const startedAt = performance.now();
  const leases = [await client.acquire("a/1", { ttl: 9000 }), await client.acquire("a/2", { ttl: 9000 })];
  const whys = await Promise.all(leases.map((lease) => new Promise((resolve) => lease.signal.addEventListener("abort", () => resolve((lease.signal.reason as LeaseLostError).why)))));
  assert.deepEqual(whys, ["expired", "expired"]);
  assert.ok(performance.now() - startedAt > 6000 && next >= lies.length, `${next} renewals`);
});

test("one lease of a list is lost, and the others are kept", async () => {
  const server = await FakeServer.start((request) => {
    if (request.path !== "/v1/renew") return honest(request);
    const gone = (lease: Record<string, unknown>) => ({ status: 410, kind: "lost", verdict: "gone", why: "not_there", effect: "none", ...names(lease) });
    return { body: { leases: (request.body["leases"] as Record<string, unknown>[]).map((lease) => (lease["resource"] === "a/1" ? gone(lease) : kept(lease))) } };
  });
  await using client = new Client(server.url);
  const [one, two] = [await client.acquire("a/1", { ttl: 9000 }), await client.acquire("a/2", { ttl: 9000 })];
  await new Promise((resolve) => one.signal.addEventListener("abort", resolve));
  assert.equal((one.signal.reason as LeaseLostError).why, "not_there");
  two.check();
  assert.equal(await one.release(), true);
  assert.ok(!server.on("/v1/release").some((request) => request.body["resource"] === "a/1"), "there is nothing to release");
});

test("a release that is not answered is bounded, and says so", async () => {
  const server = await FakeServer.start((request) => (request.path === "/v1/release" ? { silent: true } : honest(request)));
  const client = new Client(server.url, { releaseTimeout: 300 });
  const lease = await client.acquire("a/1");
  assert.equal(await lease.release(), false);
  await assert.rejects(client.run("a/2", () => Promise.reject(new RangeError("mine"))), { message: "mine" });
});

test("a server that does not answer is unavailable after the timeout", async () => {
  const server = await FakeServer.start((request) => (request.path === "/v1/acquire" ? { silent: true } : honest(request)));
  await using client = new Client(server.url, { timeout: 200 });
  await assert.rejects(client.tryAcquire("a/1"), { kind: "unavailable", effect: "unknown" });
  await assert.rejects(new Client("http://127.0.0.1:1").tryAcquire("a/1"), { kind: "unavailable", effect: "none" });
});

test("refusals become errors of their kind", async () => {
  const refusals: [number, string, new (...args: never[]) => Error][] = [
    [401, "unauthenticated", DeniedError],
    [403, "denied", DeniedError],
    [422, "unsupported", InvalidError],
    [422, "limit", InvalidError],
    [500, "corrupt", CorruptError],
    [503, "draining", UnavailableError],
    [429, "throttled", UnavailableError],
  ];
  for (const [status, kind, Kind] of refusals) {
    const server = await lying(() => ({ status, body: { kind, effect: "none", detail: "because", hint: "do that" } }));
    await using client = new Client(server.url);
    await assert.rejects(client.tryAcquire("a/1"), (error: unknown) => {
      assert.ok(error instanceof Kind, kind);
      assert.deepEqual([error.message, (error as InvalidError).code, (error as InvalidError).effect], ["because (do that)", kind, "none"]);
      return true;
    });
    assert.equal(server.on("/v1/release").length, 0, "nothing is left to end");
  }
});

test("the lock of another program is shown, and evicted by the hash of its value", async () => {
  const lock = { key: "lock:42", form: "a string", value_hash: "00112233445566ff", remaining_ms: 1500 };
  const { remaining_ms: _, ...forever } = lock;
  const waiter = { holder: { host: "a", pid: 1 }, weight: 1, waited_ms: 0, foreign: true };
  const seen = { capacity: 1, holders: [], holder_count: 0, foreign: [lock, forever], queue: [waiter], queue_length: 1, cursor: "c" };
  const server = await FakeServer.start((request) => {
    const { path, body } = request;
    if (path === "/v1/acquire") return { status: 423, body: { kind: "contended", effect: "none", holders: [], foreign: lock, ...names(body) } };
    if (path.startsWith("/v1/resource")) return { body: { resource: "a/1", key: "a/1", ...seen } };
    return { body: { verdict: "done", resource: "a/1", key: "a/1" } };
  });
  await using client = new Client(server.url);
  const expected = { key: "lock:42", form: "a string", valueHash: "00112233445566ff", remaining: 1500 };
  await assert.rejects(client.tryAcquire("a/1"), (error: unknown) => {
    assert.ok(error instanceof BusyError, String(error));
    assert.deepEqual(error.foreign, expected);
    return true;
  });
  const resource = await client.resource("a/1");
  assert.deepEqual(resource.foreign, [expected, { key: "lock:42", form: "a string", valueHash: "00112233445566ff" }]);
  assert.equal(resource.queue[0]?.foreign, true);
  await client.order({ resource: "a/1", action: "evict-foreign", valueHash: expected.valueHash, why: "its program is gone" });
  assert.equal(server.on("/v1/orders")[0]?.body["value_hash"], expected.valueHash);
});

test("an order is sent once", async () => {
  const server = await FakeServer.start(() => ({ cut: "before" }));
  await using client = new Client(server.url);
  await assert.rejects(client.order({ resource: "a/1", action: "resume", why: "the test" }), { effect: "unknown" });
  assert.equal(server.on("/v1/orders").length, 1);
});

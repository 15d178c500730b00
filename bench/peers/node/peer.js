// node-redlock, and the leasehold client. bench/peers/README.md has the protocol.

import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import { default as RedlockModule } from "redlock";

const Redlock = RedlockModule.default ?? RedlockModule;
const TTL_MS = 30_000;
// Leases that are acquired side by side at the start of "keep".
const ACQUIRED_AT_ONCE = 200;
// Numbers of holders: the process times this, plus the task.
const TASKS_MAX = 100_000;

const words = Object.fromEntries(process.argv.slice(2).map((word) => word.split(/=(.*)/s).slice(0, 2)));
const tasks = Number(words.tasks);
const holdMs = Number(words.hold_us) / 1000;
const now = () => Number(process.hrtime.bigint());

// node-redlock, straight to Redis.
function nodeRedlock() {
  const clients = words.address.split(",").map((address) => {
    const [host, port] = address.split(":");
    const client = new Redis({ host, port: Number(port) });
    client.on("error", () => {}); // a server that is down is Redlock's business
    return client;
  });
  // The settings of its README.
  const redlock = new Redlock(clients, {
    driftFactor: 0.01,
    retryCount: 10,
    retryDelay: 200,
    retryJitter: 200,
    automaticExtensionThreshold: 500,
  });
  redlock.on("error", () => {});
  return {
    acquire: (name) => redlock.acquire([name], TTL_MS),
    using: (name, routine) => redlock.using([name], TTL_MS, routine),
  };
}

// The client of this repository, through the server. The runner builds it into this folder.
async function leasehold() {
  const { Client } = await import("./leasehold/dist/index.js");
  const client = new Client(words.url);
  return { acquire: (name) => client.acquire(`node/${name}`, { ttl: TTL_MS }) };
}

async function connect() {
  switch (words.lock) {
    case "node-redlock":
      return nodeRedlock();
    case "leasehold":
      return leasehold();
    default:
      throw new Error(`there is no lock called ${words.lock}`);
  }
}

const library = await connect();

// Releases a lock. The leasehold client does not throw: it returns false if the server has not confirmed it.
async function release(lock) {
  if ((await lock.release()) === false) throw new Error("the server has not confirmed a release");
}

const empty = () => ({ done: 0, took_ns: 0, errors: 0, latencies_ns: [], grants: [] });

async function failed(measured, error) {
  measured.errors += 1;
  console.error(String(error));
  await sleep(1);
}

async function all(task) {
  const each = await Promise.all(
    Array.from({ length: tasks }, async (_, number) => {
      const measured = empty();
      await task(number, measured);
      return measured;
    }),
  );
  const sum = empty();
  for (const one of each) {
    sum.done += one.done;
    sum.errors += one.errors;
    for (const latency of one.latencies_ns) sum.latencies_ns.push(latency);
    for (const grant of one.grants) sum.grants.push(grant);
  }
  return sum;
}

function pairs(millis) {
  const until = now() + millis * 1e6;
  return all(async (task, measured) => {
    const name = `${words.prefix}-${words.process}-${task}`;
    for (let started = now(); started < until; started = now()) {
      try {
        const lock = await library.acquire(name);
        await release(lock);
        measured.done += 1;
        measured.latencies_ns.push(now() - started);
      } catch (error) {
        await failed(measured, error);
      }
    }
  });
}

function handovers(millis) {
  const until = now() + millis * 1e6;
  return all(async (task, measured) => {
    while (now() < until) {
      try {
        const lock = await library.acquire(words.prefix);
        const grantedAt = now();
        if (holdMs > 0) await sleep(holdMs);
        await release(lock);
        if (grantedAt < until) {
          measured.done += 1;
          measured.grants.push(grantedAt, Number(words.process) * TASKS_MAX + task);
        }
      } catch (error) {
        await failed(measured, error);
      }
    }
  });
}

// `using` keeps a lock alive while its routine runs: here until the process ends.
async function keep() {
  if (library.using === undefined) throw new Error(`${words.lock} has no work called keep`);
  const signals = [];
  for (let start = 0; start < tasks; start += ACQUIRED_AT_ONCE) {
    const some = [];
    for (let task = start; task < Math.min(start + ACQUIRED_AT_ONCE, tasks); task += 1) {
      some.push(
        new Promise((resolve, reject) => {
          const routine = async (signal) => {
            signals.push(signal);
            resolve();
            await new Promise(() => {});
          };
          library.using(`${words.prefix}-${task}`, routine).catch(reject);
        }),
      );
    }
    await Promise.all(some);
  }
  return async (millis) => {
    await sleep(millis);
    return { ...empty(), done: signals.filter((signal) => !signal.aborted).length };
  };
}

async function prepare() {
  switch (words.work) {
    case "pair": {
      // One pair before "ready": a lock that does not work at all says why.
      const lock = await library.acquire(`${words.prefix}-check-${words.process}`);
      await release(lock);
      return pairs;
    }
    case "handover":
      return handovers;
    case "keep":
      return keep();
    default:
      throw new Error(`this program has no work called ${words.work}`);
  }
}

const run = await prepare();
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  const started = now();
  const measured = await run(Number(line.slice("go ".length)));
  measured.took_ns = now() - started;
  console.log(JSON.stringify(measured));
}
process.exit(0);

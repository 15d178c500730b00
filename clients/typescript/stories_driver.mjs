/**
 * The driver of the stories: reads commands and writes answers and events, one JSON object on each line. See crates/stories/README.md.
 */

import { createInterface } from "node:readline";

import { BusyError, Client, LeaseholdError, LeaseLostError, MismatchError, UnavailableError } from "./dist/index.js";

/** @typedef {Record<string, any>} Command */

/** @type {Map<string, Client>} */
const clients = new Map();
/** @type {Map<string, import("./dist/index.js").AnyLease | import("./dist/index.js").LeaseSet>} */
const leases = new Map();
/** Ends the body of a scope. @type {Map<string, () => void>} */
const finishes = new Map();
/** Cancels a command. @type {Map<number, AbortController>} */
const cancels = new Map();

/** The error of the program's own body. */
class BodyError extends Error {}

/** @param {unknown} line */
function say(line) {
  process.stdout.write(`${JSON.stringify(line, (_, value) => (typeof value === "bigint" ? value.toString() : value))}\n`);
}

/** @param {Map<any, T>} map @param {any} name @returns {T} @template T */
function found(map, name) {
  const value = map.get(name);
  if (value === undefined) throw new Error(`the runner has not named ${name}`);
  return value;
}

/** Tells of the loss of a lease that was not released. @param {string} name @param {{ signal: AbortSignal }} lease */
function watch(name, lease) {
  lease.signal.addEventListener("abort", () => say({ event: "lost", lease: name, why: lease.signal.reason.why }), { once: true });
}

/** @param {Command} command @param {AbortSignal} signal */
function options(command, signal) {
  const { ttl_ms: ttl, wait_ms: wait, note, label } = command;
  return { ttl, wait, signal, ...(note === undefined ? {} : { note }), ...(label === undefined ? {} : { label }) };
}

/** @param {Command} command @param {AbortSignal} signal */
async function acquire(command, signal) {
  const { resource, share } = command;
  const client = found(clients, command.client);
  const given = options(command, signal);
  if (share === undefined) return client.acquire(resource, given);
  if (share === "read") return client.readWriteLock(resource).read(given);
  if (share === "write") return client.readWriteLock(resource).write(given);
  return client.semaphore(resource, { capacity: share.capacity }).acquire({ ...given, weight: share.weight });
}

/** The work of a scope. @param {Command} command @param {import("./dist/index.js").Lease} lease @param {AbortSignal} signal */
async function body(command, lease, signal) {
  leases.set(command.lease, lease);
  watch(command.lease, lease);
  say({ event: "entered", lease: command.lease, token: lease.token });
  if (command.body === "raise") throw new BodyError("the body fails");
  if (command.body === "return") return;
  await new Promise((resolve, reject) => {
    finishes.set(command.lease, () => resolve(undefined));
    signal.addEventListener("abort", () => {
      say({ event: "stopped", lease: command.lease });
      reject(signal.reason);
    });
  });
  throw new BodyError("the body fails at its end");
}

/** @type {Record<string, (command: Command, signal: AbortSignal) => Promise<object> | object>} */
const commands = {
  connect({ client, url, token }) {
    clients.set(client, new Client(url, token === undefined ? {} : { token }));
    return {};
  },
  async acquire(command, signal) {
    const lease = await acquire(command, signal);
    leases.set(command.lease, lease);
    watch(command.lease, lease);
    return "token" in lease ? { token: lease.token, pass: lease.pass } : { number: lease.number };
  },
  async acquire_all(command, signal) {
    const set = await found(clients, command.client).acquireAll(command.resources, options(command, signal));
    leases.set(command.lease, set);
    watch(command.lease, set);
    return { leases: set.leases.map(({ resource, token, pass }) => ({ resource, token, pass })) };
  },
  cancel({ of }) {
    cancels.get(of)?.abort();
    return {};
  },
  check({ lease }) {
    found(leases, lease).check();
    return {};
  },
  async note({ lease, note }) {
    await /** @type {import("./dist/index.js").AnyLease} */ (found(leases, lease)).setNote(note);
    return {};
  },
  async release({ lease }) {
    await found(leases, lease).release();
    return {};
  },
  async scope(command, signal) {
    await found(clients, command.client).run(command.resource, options(command, signal), (lease, stop) => body(command, lease, stop));
    return {};
  },
  finish({ lease }) {
    found(finishes, lease)();
    return {};
  },
  observe({ client, observer, resource }) {
    void (async () => {
      for await (const leader of found(clients, client).election(resource).observe()) {
        say({ event: "leader", observer, token: leader?.token ?? null, value: leader?.value ?? null });
      }
    })();
    return {};
  },
  async names({ client, prefix }) {
    const names = [];
    for await (const resource of found(clients, client).resources(prefix)) names.push(resource.name);
    return { names };
  },
  async overview({ client }) {
    const { held, waiting } = await found(clients, client).overview();
    return { held, waiting };
  },
  async order({ client, resource, action, why, token, any, lasting_ms: lasting, within_ms: within }) {
    const target = token === undefined ? { any } : { token: BigInt(token) };
    await found(clients, client).order(/** @type {any} */ ({ resource, action, why, lasting, within, ...target }));
    return {};
  },
  block({ lease, for_ms }) {
    const endsAt = performance.now() + for_ms;
    while (performance.now() < endsAt);
    found(leases, lease).check();
    return {};
  },
};

/** @param {unknown} error */
function describe(error) {
  if (error instanceof BodyError) return { kind: "body", message: error.message };
  if (!(error instanceof LeaseholdError)) return { kind: "bug", message: String(error instanceof Error ? error.stack : error) };
  const fields = { kind: error.kind, message: error.message };
  if (error instanceof BusyError) {
    const holders = error.holders.map(({ host, pid, label, token }) => ({ host, pid, label, token }));
    return { ...fields, holders, retry_after_ms: error.retryAfter };
  }
  if (error instanceof LeaseLostError) return { ...fields, why: error.why };
  if (error instanceof UnavailableError) return { ...fields, effect: error.effect };
  if (error instanceof MismatchError) return { ...fields, capacity: error.capacity };
  return fields;
}

/** @param {string} line */
async function carryOut(line) {
  const command = JSON.parse(line);
  const controller = new AbortController();
  cancels.set(command.id, controller);
  try {
    const carry = commands[command.do];
    if (carry === undefined) throw new Error(`there is no command ${command.do}`);
    say({ id: command.id, ok: await carry(command, controller.signal) });
  } catch (error) {
    say({ id: command.id, error: describe(error) });
  } finally {
    cancels.delete(command.id);
  }
}

say({ hello: "typescript", cannot: { fork: "JavaScript runtimes cannot fork: a child process begins anew" } });
const lines = createInterface({ input: process.stdin });
lines.on("line", (line) => void carryOut(line));
lines.on("close", () => process.exit(0));

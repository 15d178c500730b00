/** The types, as a program without the types of Node sees them. This file is compiled and never run. */

import { BusyError, type AnyLease, Client, type Lease, LeaseholdError, LeaseLostError, type SharedLease } from "leasehold";

export async function program(client: Client, signal: AbortSignal): Promise<void> {
  await using lease = await client.acquire("report/42", { ttl: 30_000, wait: 1000, signal });
  const token: bigint = lease.token;
  const pass: string = lease.pass;
  const stop: AbortSignal = lease.signal;
  const answer: number = await client.run("report/42", async (held, stopped) => (stopped.aborted ? 0 : Number(held.remaining)));

  await using permit = await client.semaphore("db/main", { capacity: 2 }).acquire();
  const number: bigint = permit.number;
  // @ts-expect-error A permit has no fencing token.
  permit.token;
  // @ts-expect-error And no pass.
  permit.pass;
  // @ts-expect-error A lease that is shared fences nothing.
  const fenced: Lease = permit;
  const any: AnyLease[] = [lease, permit];

  const reader: SharedLease = await client.readWriteLock("doc/1").read();
  const writer: Lease = await client.readWriteLock("doc/1").write();

  for await (const leader of client.election("scheduler/eu").observe({ signal })) {
    const value: string | Uint8Array | undefined = leader?.value;
    console.log(value);
  }

  await client.order({ resource: "job/a", action: "evict", token, why: "stuck" });
  await client.order({ resource: "job/a", action: "evict-now", any: true, why: "stuck" });
  // @ts-expect-error An eviction says which grant it means.
  await client.order({ resource: "job/a", action: "evict", why: "stuck" });
  // @ts-expect-error A token is no number.
  await client.order({ resource: "job/a", action: "evict", token: 5, why: "stuck" });
  // @ts-expect-error A reason is needed.
  await client.order({ resource: "job/a", action: "resume" });
  // @ts-expect-error Leases come from a client.
  new AnyLease();

  console.log(pass, stop, answer, number, fenced, any, reader, writer);
}

export function explain(error: unknown): string {
  if (error instanceof BusyError) return `${error.holders[0]?.host}: ${error.retryAfter}`;
  if (error instanceof LeaseLostError) return error.why;
  return error instanceof LeaseholdError ? `${error.kind} ${error.effect}` : "";
}

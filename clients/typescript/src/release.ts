/** Ends claims. No signal of the caller ends this, and nothing of it is thrown. */

import { now } from "./clock.js";
import { UnavailableError } from "./errors.js";
import { type Claim, readReleased } from "./protocol.js";
import { sleep } from "./timers.js";
import { tombstone } from "./times.js";
import type { Transport } from "./transport.js";

/** How long one of several attempts may take. */
const ATTEMPT_MAX = 2000;
const PAUSE = 100;

/** Ends the claim, and asks again while there is no answer. Returns whether the server has confirmed it within the limit. */
export async function endClaim(transport: Transport, claim: Claim, limit: number): Promise<boolean> {
  const endsAt = now().at + limit;
  for (let attempt = 1; ; attempt += 1) {
    const left = endsAt - now().at;
    if (left <= 0) return false;
    try {
      await sendRelease(transport, claim, Math.min(left, ATTEMPT_MAX));
      return true;
    } catch (error) {
      // A refusal will not change.
      if (!(error instanceof UnavailableError)) return false;
    }
    await sleep(Math.max(0, Math.min(PAUSE * 2 ** attempt, ATTEMPT_MAX, endsAt - now().at)));
  }
}

/** Asks once to end a claim whose lease is lost, and does not wait for the answer: the lease ends by itself soon. */
export function endLost(transport: Transport, claim: Claim): void {
  sendRelease(transport, claim, ATTEMPT_MAX, true).catch(() => {});
}

function sendRelease(transport: Transport, claim: Claim, timeout: number, background = false): Promise<void> {
  // A request of the claim that was not answered may still be under way: a tombstone refuses it.
  const bury = claim.unanswered ? { bury_ms: Math.ceil(tombstone(claim.ttl)) } : {};
  return transport.call({
    method: "POST",
    path: "/v1/release",
    body: { ...claim.fields(), ...bury },
    timeout,
    pool: "leases",
    background,
    read: (answer) => readReleased(answer, claim),
  });
}

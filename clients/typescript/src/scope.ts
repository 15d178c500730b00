/** Runs work under a lease. */

import { InvalidError, LeaseLostError } from "./errors.js";
import { anySignal } from "./signals.js";

/** What work is done under: a lease, or several. */
interface Scope {
  readonly signal: AbortSignal;
  readonly lost: LeaseLostError | undefined;
  release(): Promise<boolean>;
}

/**
 * Runs the work, and releases the lease whatever happens.
 *
 * 1. The work gets a signal that is aborted when the lease is lost, or the caller aborts.
 * 2. An error of the work is what the caller gets. It is never hidden by a release that fails, and the release has its own time limit.
 * 3. If the lease was lost before the work has ended, the caller gets `LeaseLostError`, unless the work failed with an error of its own.
 */
export async function runUnder<S extends Scope, T>(
  scope: S,
  caller: AbortSignal | undefined,
  work: (lease: S, signal: AbortSignal) => T | PromiseLike<T>,
): Promise<T> {
  const both = anySignal(scope.signal, caller);
  try {
    const result = await work(scope, both.signal);
    if (scope.lost !== undefined) throw scope.lost;
    return result;
  } catch (error) {
    throw lossBehind(error, scope.signal) ?? error;
  } finally {
    both.detach();
    await scope.release();
  }
}

/** Throws if there is nothing to run. Called before a lease is acquired. */
export function checkWork(work: unknown): asserts work {
  if (typeof work !== "function") throw new InvalidError("run needs a function to run");
}

/** The loss of the lease, if it is why the work failed. */
function lossBehind(error: unknown, signal: AbortSignal): LeaseLostError | undefined {
  if (!signal.aborted || !(error instanceof Error) || error.name !== "AbortError") return undefined;
  const lost = signal.reason as LeaseLostError;
  return new LeaseLostError(lost.message, lost.why, { cause: error });
}

/** Runs work under a lease. */

import { LeaseLostError } from "./errors.js";

/** What work is done under: a lease, or several. */
interface Scope {
  readonly signal: AbortSignal;
  check(): void;
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
  const both = new AbortController();
  const stops: (() => void)[] = [];
  for (const signal of [scope.signal, caller]) {
    if (signal === undefined) continue;
    const stop = () => both.abort(signal.reason);
    if (signal.aborted) stop();
    signal.addEventListener("abort", stop, { once: true });
    stops.push(() => signal.removeEventListener("abort", stop));
  }
  try {
    const result = await work(scope, both.signal);
    scope.check();
    return result;
  } catch (error) {
    throw lossBehind(error, scope.signal) ?? error;
  } finally {
    for (const stop of stops) stop();
    await scope.release();
  }
}

/** The loss of the lease, if it is why the work failed. */
function lossBehind(error: unknown, signal: AbortSignal): LeaseLostError | undefined {
  if (!signal.aborted || !(error instanceof Error) || error.name !== "AbortError") return undefined;
  const lost = signal.reason as LeaseLostError;
  return new LeaseLostError(lost.message, lost.why, { cause: error });
}

/** Several signals as one. `AbortSignal.any` needs Node 20.3. */

import { setMaxListeners } from "node:events";

/** A signal that is aborted with the first of several. */
export interface Combined {
  readonly signal: AbortSignal;
  /** Forgets the others, which may live long. */
  readonly detach: () => void;
}

/** Lets many wait for one signal: Node takes more than ten listeners for a leak, and says so. All of ours are removed again. */
export function forMany(signal: AbortSignal): AbortSignal {
  try {
    setMaxListeners(0, signal);
  } catch {
    // A signal of another library, or a runtime that does not count.
  }
  return signal;
}

export function firstOf(...signals: readonly (AbortSignal | undefined)[]): Combined {
  const controller = new AbortController();
  const detachers: (() => void)[] = [];
  for (const signal of signals) {
    if (signal === undefined) continue;
    const onAbort = () => controller.abort(signal.reason);
    if (signal.aborted) onAbort();
    forMany(signal).addEventListener("abort", onAbort, { once: true });
    detachers.push(() => signal.removeEventListener("abort", onAbort));
  }
  return { signal: forMany(controller.signal), detach: () => detachers.forEach((detach) => detach()) };
}

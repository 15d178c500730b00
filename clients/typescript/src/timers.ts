/** Timers that a signal ends, and timers that do not keep the process alive. */

import { clearTimeout as clear, setTimeout as set } from "node:timers";

import { CancelledError } from "./errors.js";
import { onAbort } from "./signals.js";

/** Waits. Throws `CancelledError` as soon as the signal is aborted. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(new CancelledError(signal));
    const timer = set(() => {
      forget?.();
      resolve();
    }, ms);
    const forget =
      signal &&
      onAbort(signal, () => {
        clear(timer);
        reject(new CancelledError(signal));
      });
  });
}

/** Runs this later, if the process still lives. Returns how to stop it. */
export function inBackground(ms: number, run: () => void): () => void {
  const timer = set(run, ms);
  timer.unref();
  return () => clear(timer);
}

/** Up to half more, at random: so that many do not ask at the same time. */
export function jitter(ms: number): number {
  return ms * (1 + Math.random() / 2);
}

/** Several signals as one (`AbortSignal.any` needs Node 20.3), and one listener for many who wait for one signal. */

import { setMaxListeners } from "node:events";

/** A signal that is aborted with the first of several. */
export interface Combined {
  readonly signal: AbortSignal;
  /** Forgets the others, which may live long. */
  readonly detach: () => void;
}

/** What is to be called when a signal is aborted. */
interface Callbacks {
  readonly waiting: Set<() => void>;
  readonly listener: () => void;
}

const callbacksOf = new WeakMap<AbortSignal, Callbacks>();

/**
 * Calls this once, when the signal is aborted. Returns how to forget it.
 *
 * Node warns of a leak after more than ten listeners. The limit belongs to the owner of the signal, so it stays as it is: all that wait
 * for one signal share one listener.
 */
export function onAbort(signal: AbortSignal, callback: () => void): () => void {
  let callbacks = callbacksOf.get(signal);
  if (callbacks === undefined) {
    const waiting = new Set<() => void>();
    const listener = () => {
      callbacksOf.delete(signal);
      for (const each of waiting) each();
    };
    callbacks = { waiting, listener };
    callbacksOf.set(signal, callbacks);
    signal.addEventListener("abort", listener, { once: true });
  }
  const { waiting, listener } = callbacks;
  // The same function may wait twice.
  const each = () => callback();
  waiting.add(each);
  return () => {
    waiting.delete(each);
    if (waiting.size > 0 || callbacksOf.get(signal)?.waiting !== waiting) return;
    callbacksOf.delete(signal);
    signal.removeEventListener("abort", listener);
  };
}

/** Lets the program add any number of listeners to a signal that this package has made. */
export function allowManyListeners(signal: AbortSignal): void {
  try {
    setMaxListeners(0, signal);
  } catch {
    // A runtime that does not count listeners.
  }
}

/** A signal that is aborted with the first of several. */
export function anySignal(...signals: readonly (AbortSignal | undefined)[]): Combined {
  const controller = new AbortController();
  allowManyListeners(controller.signal);
  const detachers: (() => void)[] = [];
  for (const signal of signals) {
    if (signal === undefined) continue;
    if (signal.aborted) controller.abort(signal.reason);
    else detachers.push(onAbort(signal, () => controller.abort(signal.reason)));
  }
  return { signal: controller.signal, detach: () => detachers.forEach((detach) => detach()) };
}

/** Several signals as one. `AbortSignal.any` needs Node 20.3. */

/** A signal that is aborted with the first of several. */
export interface Combined {
  readonly signal: AbortSignal;
  /** Forgets the others, which may live long. */
  readonly detach: () => void;
}

export function firstOf(...signals: readonly (AbortSignal | undefined)[]): Combined {
  const controller = new AbortController();
  const detachers: (() => void)[] = [];
  for (const signal of signals) {
    if (signal === undefined) continue;
    const onAbort = () => controller.abort(signal.reason);
    if (signal.aborted) onAbort();
    signal.addEventListener("abort", onAbort, { once: true });
    detachers.push(() => signal.removeEventListener("abort", onAbort));
  }
  return { signal: controller.signal, detach: () => detachers.forEach((detach) => detach()) };
}

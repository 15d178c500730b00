// Requests to the server. All addresses are relative, because a proxy may serve the page below a prefix.

/** @typedef {import('./types/api').ProblemBody} ProblemBody */

const TIMEOUT_MS = 15_000;

/** A refusal of the server, or a failure to reach it (status 0). */
export class Problem extends Error {
  /** @param {ProblemBody} body */
  constructor(body) {
    super(body.detail ?? body.title);
    this.status = body.status;
    this.kind = body.kind;
    this.title = body.title;
    this.detail = body.detail ?? '';
    this.hint = body.hint ?? '';
    this.effect = body.effect ?? 'unknown';
  }

  /** The server, or the way to it, has failed; this says nothing about the request. */
  get isOutage() {
    return (
      this.status === 0 || this.status === 502 || this.status === 504 || (this.status === 503 && this.kind !== 'unavailable')
    );
  }
}

/** @param {unknown} error @returns {Problem} */
export function asProblem(error) {
  if (error instanceof Problem) return error;
  const slow = error instanceof DOMException && error.name === 'TimeoutError';
  const detail = slow ? `no answer within ${TIMEOUT_MS / 1000} s` : 'no connection, or the answer was cut';
  return new Problem({ title: 'The server does not answer', status: 0, kind: 'unreachable', detail });
}

/** @param {string} path @param {Record<string, string | number | null | undefined>} [query] */
export function address(path, query = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    if (value !== '' && value !== null && value !== undefined) search.set(name, String(value));
  const text = search.toString();
  return text ? `${path}?${text}` : path;
}

/**
 * Reads. The durations of the answer count from `base`: the time of sending, so that no deadline is shown later than it is.
 * @template T @param {string} path @param {Record<string, string | number | null | undefined>} [query] @param {AbortSignal} [signal]
 * @returns {Promise<{body: T, base: number}>}
 */
export async function get(path, query, signal) {
  const base = performance.now();
  const body = await send(address(path, query), { method: 'GET' }, signal);
  return { body, base };
}

/** @template T @param {string} path @param {object} [body] @returns {Promise<T>} */
export async function post(path, body) {
  const headers = { 'content-type': 'application/json' };
  return send(path, { method: 'POST', headers, body: JSON.stringify(body ?? {}) });
}

/** @param {string} url @param {RequestInit} init @param {AbortSignal} [signal] @returns {Promise<any>} */
async function send(url, init, signal) {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  try {
    const response = await fetch(url, {
      ...init,
      cache: 'no-store',
      credentials: 'same-origin',
      redirect: 'error',
      signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
    });
    if (!response.ok) throw await refusal(response);
    return response.status === 204 ? null : await response.json();
  } catch (error) {
    if (signal?.aborted) throw signal.reason;
    throw asProblem(error);
  }
}

/** @param {Response} response @returns {Promise<Problem>} */
export async function refusal(response) {
  try {
    const body = await response.json();
    if (typeof body?.title === 'string') return new Problem({ ...body, status: response.status });
  } catch {
    // Not a problem document: a proxy has answered.
  }
  const detail = `status ${response.status}, and no reason was given. A proxy between this page and the server may have answered.`;
  return new Problem({ title: 'The request failed', status: response.status, kind: 'http', detail });
}

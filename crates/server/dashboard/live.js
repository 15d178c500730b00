// One stream of events for all tabs of this browser: a browser opens only six connections to an HTTP/1.1 server.
//
// 1. The visible tabs compete for a lock of the browser. The tab that has it reads the stream; the next one takes over when it is closed or
//    hidden. While no tab is visible there is no stream, and the server takes no samples for it.
// 2. It passes on to the others what it reads, a few times a second at most.
// 3. Each tab notices by itself when nothing arrives any more, and then asks the server by itself (`refresh.js`).

import { readStream } from './stream.js';

/** @typedef {import('./types/api').Change} Change */
/**
 * News of the stream. `changes` has their number, the keys that changed (`null`: too many to say), and the last of them. `resync`: changes
 * may be missing. `id`: from where the next reader goes on.
 * @typedef {{id?: string} & ({type: 'open'} | {type: 'closed', status: number} | {type: 'draining'}
 *   | {type: 'sampled', every_ms: number, age_ms: number}
 *   | {type: 'changes', count: number, keys: string[] | null, last: Change[]}
 *   | {type: 'resync', changes: number | null, first: boolean} | {type: 'caller'})} News
 */

const PASS_ON_MS = 250;
const KEYS_MAX = 500;
const LAST_MAX = 30;
const RETRY_MS = [1000, 2000, 4000, 8000];
// The reason of a `resync` at the beginning of a stream that nobody has read before.
const FIRST = 'start';
// A person who looks at another tab for a moment comes back.
const HIDDEN_MS = 10_000;
// Another prefix on this host may be another server.
const NAME = `leasehold-events ${location.pathname}`;

/** Changes that are worth a line of their own; grants and releases are not. */
const NOTABLE = new Set([
  'expired',
  'taken_over',
  'ended',
  'evicted',
  'evicting',
  'asked',
  'renewed_late',
  'paused',
  'resumed',
  'unreadable',
  'readable',
]);

const channel = 'BroadcastChannel' in globalThis ? new BroadcastChannel(NAME) : null;
/** @type {AbortController | null} */
let running = null;
let lastId = '';
/** @type {((news: News) => void) | null} */
let listener = null;
let hiddenTimer = 0;

/** Follows the server, until `stopLive`. @param {(news: News) => void} onNews */
export function startLive(onNews) {
  stopLive();
  listener = onNews;
  // Without a secure context (plain HTTP from elsewhere) there are no locks: then each tab has a stream of its own, and tells nobody.
  const isShared = Boolean(navigator.locks);
  if (channel) {
    channel.onmessage = ({ data: news }) => {
      if (news.id) lastId = news.id;
      if (isShared || news.type === 'caller') onNews(news);
    };
  }
  /** @param {News} news */
  const tell = (news) => {
    if (lastId) news.id = lastId;
    if (isShared) channel?.postMessage(news);
    onNews(news);
  };
  if (document.hidden) return;
  const { signal } = (running = new AbortController());
  const lead = () => readForEver(signal, tell);
  const led = isShared ? navigator.locks.request(NAME, { signal }, lead) : lead();
  led.catch(() => {}); // Aborted while it waited for the lock.
}

/** Stops following. Another tab may go on. */
export function stopLive() {
  running?.abort();
  running = null;
}

addEventListener('visibilitychange', () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(stopLive, HIDDEN_MS);
  else if (!running && listener) startLive(listener);
});

/** Tells the other tabs that this browser has logged in or out. */
export function tellCallerChanged() {
  lastId = '';
  channel?.postMessage({ type: 'caller' });
}

/** @param {AbortSignal} signal @param {(news: News) => void} tell */
async function readForEver(signal, tell) {
  for (let failures = 0; !signal.aborted;) {
    const batch = new Batch(tell);
    let status = 0;
    try {
      const onOpen = () => {
        failures = 0;
        tell({ type: 'open' });
      };
      await readStream('v1/events', lastId, signal, (event) => batch.take(event), onOpen);
    } catch (error) {
      status = /** @type {import('./api').Problem} */ (error).status;
    }
    batch.pass();
    if (signal.aborted) return;
    tell({ type: 'closed', status });
    // Nobody may read without a token: wait until someone has logged in.
    if (status === 401) return;
    await pause(RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)] * (0.75 + Math.random() / 2), signal);
  }
}

/** @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} */
function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => (clearTimeout(timer), resolve()), { once: true });
  });
}

/** Gathers changes, so that thousands of them in a second are a few messages. */
class Batch {
  /** @param {(news: News) => void} tell */
  constructor(tell) {
    this.tell = tell;
    this.timer = 0;
    this.count = 0;
    /** @type {Set<string>} */
    this.keys = new Set();
    /** @type {Change[]} */
    this.last = [];
  }

  /** @param {import('./stream').ServerEvent} event */
  take({ event, data, id }) {
    if (id) lastId = id;
    if (event === 'change') return this.add(data);
    this.pass();
    if (event === 'draining') this.tell({ type: 'draining' });
    if (event === 'resync') {
      const { changes = null, reason } = parsed(data);
      this.tell({ type: 'resync', changes, first: reason === FIRST });
    }
    if (event === 'sampled') {
      const { every_ms = 2000, age_ms = 0 } = parsed(data);
      this.tell({ type: 'sampled', every_ms, age_ms });
    }
  }

  /** @param {string} data */
  add(data) {
    this.count += 1;
    this.timer ||= setTimeout(() => this.pass(), PASS_ON_MS);
    // Beyond this the pages read everything again anyway: do not even parse.
    if (this.keys.size >= KEYS_MAX) return;
    const change = parsed(data);
    if (typeof change.key !== 'string') return;
    this.keys.add(change.key);
    if (NOTABLE.has(change.kind)) this.last.push(change);
    if (this.last.length > LAST_MAX) this.last.shift();
  }

  pass() {
    clearTimeout(this.timer);
    this.timer = 0;
    if (this.count === 0) return;
    const keys = this.keys.size < KEYS_MAX ? [...this.keys] : null;
    this.tell({ type: 'changes', count: this.count, keys, last: this.last });
    [this.count, this.keys, this.last] = [0, new Set(), []];
  }
}

/** @param {string} data @returns {any} */
function parsed(data) {
  try {
    return JSON.parse(data) ?? {};
  } catch {
    return {};
  }
}

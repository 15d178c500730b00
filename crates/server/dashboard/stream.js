// Reads server-sent events by fetch. Unlike EventSource this says with which status a stream was refused, and can be ended.

import { asProblem, refusal } from './api.js';

// The server says something at least every 15 s. A connection that is silent for longer is broken, although nobody was told.
const SILENCE_MS = 40_000;

/** @typedef {{event: string, data: string, id: string}} ServerEvent */

/**
 * Reads one stream to its end.
 * @param {string} url @param {string} lastId @param {AbortSignal} signal @param {(event: ServerEvent) => void} onEvent
 * @param {() => void} onOpen
 * @returns {Promise<void>} resolves at the end of the stream; rejects with a `Problem` if it cannot be opened, or breaks
 */
export async function readStream(url, lastId, signal, onEvent, onOpen) {
  /** @type {Record<string, string>} */
  const headers = { accept: 'text/event-stream' };
  if (lastId) headers['last-event-id'] = lastId;
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE_MS);
  try {
    const response = await fetch(url, {
      headers,
      cache: 'no-store',
      credentials: 'same-origin',
      redirect: 'error',
      signal: AbortSignal.any([signal, silence.signal]),
    });
    if (!response.ok || !response.body) throw await refusal(response);
    onOpen();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const parse = parser(onEvent);
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS);
      parse(value);
    }
  } catch (error) {
    if (signal.aborted) return;
    throw asProblem(error);
  } finally {
    clearTimeout(timer);
  }
}

/** @param {(event: ServerEvent) => void} onEvent @returns {(chunk: string) => void} */
export function parser(onEvent) {
  let rest = '';
  let [event, data, id] = ['', '', ''];
  return (chunk) => {
    const lines = (rest + chunk).split('\n');
    rest = lines.pop() ?? '';
    for (const raw of lines) {
      const line = raw.endsWith('\r') ? raw.slice(0, -1) : raw;
      if (line === '') {
        if (data || event) onEvent({ event: event || 'message', data, id });
        [event, data] = ['', ''];
        continue;
      }
      const colon = line.indexOf(':');
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
      if (field === 'event') event = value;
      else if (field === 'data') data += data ? `\n${value}` : value;
      else if (field === 'id') id = value;
    }
  };
}

/** One request and its answer: whichever comes first of an answer, a failure, the end of the time, and the caller's signal. */

import { Buffer } from "node:buffer";
import type { ClientRequest, IncomingMessage } from "node:http";
import { clearTimeout, setTimeout } from "node:timers";

import { CancelledError } from "./errors.js";
import type { Answer } from "./protocol.js";
import { onAbort } from "./signals.js";

const ANSWER_MAX = 64 << 20;

/** How long to wait for the answer, and what to make of it. */
export interface ExchangeOptions<T> {
  /** How long the answer may take, in milliseconds. */
  readonly timeout: number;
  /** It does not keep the process alive. */
  readonly background?: boolean;
  readonly signal?: AbortSignal | undefined;
  /** Reads the answer. Throws its refusal. */
  readonly read: (answer: Answer) => T;
}

/**
 * The errors of the transport.
 *
 * @internal
 */
export interface ExchangeErrors {
  /** Throws if the headers show that this is not the answer to this request, of a leasehold server. */
  readonly checkHead: (response: IncomingMessage) => void;
  /** The request failed. */
  readonly broken: (error: NodeJS.ErrnoException, request: ClientRequest) => Error;
  /** The time is over. */
  readonly noAnswer: (timeout: number, wasSent: boolean) => Error;
  /** The answer began, and did not end well. */
  readonly answerIncomplete: (why: string) => Error;
}

/**
 * Sends the request, and returns what is read from its answer.
 *
 * @internal
 */
export function exchange<T>(request: ClientRequest, body: string | undefined, options: ExchangeOptions<T>, errors: ExchangeErrors): Promise<T> {
  return new Promise((resolve, reject) => new Exchange(request, options, errors, resolve, reject).begin(body));
}

class Exchange<T> {
  #isOver = false;
  #timer: NodeJS.Timeout | undefined;
  #connection: { destroy: () => unknown } | undefined;
  #forgetSignal: (() => void) | undefined;

  constructor(
    readonly request: ClientRequest,
    readonly options: ExchangeOptions<T>,
    readonly errors: ExchangeErrors,
    readonly resolve: (value: T) => void,
    readonly reject: (error: unknown) => void,
  ) {}

  begin(body: string | undefined): void {
    const { request, options, errors } = this;
    this.#timer = setTimeout(() => this.#fail(errors.noAnswer(options.timeout, this.#wasSent)), options.timeout);
    if (options.background) this.#timer.unref();
    const { signal } = options;
    this.#forgetSignal = signal && onAbort(signal, () => this.#fail(new CancelledError(signal, this.#wasSent ? "unknown" : "none")));
    request.on("socket", (socket) => {
      this.#connection = socket;
      if (options.background) socket.unref?.();
    });
    // It stays: a request that is destroyed may still fail.
    request.on("error", (error) => this.#fail(errors.broken(error, request)));
    request.on("response", (response) => this.#receive(response));
    request.end(body);
  }

  /** Whether the request may have reached the server: there was a connection. */
  get #wasSent(): boolean {
    return this.request.socket?.connecting !== true;
  }

  #receive(response: IncomingMessage): void {
    try {
      this.errors.checkHead(response);
    } catch (error) {
      return this.#fail(error);
    }
    const fail = (why: string) => this.#fail(this.errors.answerIncomplete(why));
    const chunks: Buffer[] = [];
    let size = 0;
    response.on("data", (chunk: Buffer) => {
      size += chunk.length;
      chunks.push(chunk);
      if (size > ANSWER_MAX) fail("the answer is too large");
    });
    response.on("end", () => {
      if (response.complete) this.#read(response, Buffer.concat(chunks).toString("utf8"));
      else fail("the answer was cut");
    });
    response.on("error", () => fail("the answer was cut"));
    response.on("close", () => fail("the answer was cut"));
  }

  /** At once, before the connection goes back to those that are idle. */
  #read(response: IncomingMessage, body: string): void {
    if (!this.#end()) return;
    const dropConnection = () => void this.#connection?.destroy();
    try {
      this.resolve(this.options.read({ status: response.statusCode ?? 0, body, dropConnection }));
    } catch (error) {
      this.reject(error);
    }
  }

  /** The connection is not used again: the answer may still come, and would be taken for that of the next request. */
  #fail(error: unknown): void {
    if (!this.#end()) return;
    this.request.destroy();
    this.reject(error);
  }

  /** Whether it was not over before. */
  #end(): boolean {
    if (this.#isOver) return false;
    this.#isOver = true;
    clearTimeout(this.#timer);
    this.#forgetSignal?.();
    return true;
  }
}

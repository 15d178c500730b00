/**
 * Sends a request over HTTP, and checks that the answer belongs to it.
 *
 * 1. Every request carries an id. Renewals and releases have connections of their own, so that waiting claims do not delay them.
 * 2. An answer must have the headers of a leasehold server, the id of its request, and the store of the first answer. Its body is bounded.
 * 3. If anything is wrong, or the caller has stopped waiting, the connection is not used again: the answer may still come, and would
 *    be taken for that of the next request.
 * 4. After an answer of another store, no grant is believed for a while: another client of the same address may hold the same lease there.
 *
 * `node:http` and not `fetch`: it says whether a request was sent at all, lets go of one connection, and takes a certificate authority.
 */

import { Buffer } from "node:buffer";
import * as http from "node:http";
import * as https from "node:https";
import { setImmediate } from "node:timers";

import { CancelledError, DeniedError, InvalidError, LeaseholdError, UnavailableError } from "./errors.js";
import { exchange, type ExchangeOptions } from "./exchange.js";
import { randomHex } from "./names.js";

/** PEM texts for TLS. */
export interface TlsOptions {
  /** Certificates of the authorities to trust instead of the usual ones. */
  readonly ca?: string | string[];
  /** The client's own certificate. */
  readonly cert?: string;
  readonly key?: string;
}

/** A request. */
export interface Call<T> extends ExchangeOptions<T> {
  readonly method: "GET" | "POST";
  readonly path: string;
  readonly body?: unknown;
  /** Which connections it uses. `once` is a connection of its own: for what must not be sent twice. */
  readonly pool: "claims" | "leases" | "once";
  /** Called if the request may have been carried out, and no answer of it was read. */
  readonly onUnanswered?: () => void;
}

/** Less than the minute after which the server closes an idle connection. */
const IDLE_MAX = 30_000;
/** How often a request is sent again at once because the server had closed its idle connection. */
const STALE_MAX = 3;
/** How long no grant is believed after an answer of another store, in milliseconds. */
const TWO_STORES_FOR = 60_000;
const CONNECT_CODES = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "EADDRNOTAVAIL", "EHOSTDOWN"]);
const UNTRUSTED = /^(CERT_|ERR_TLS_CERT|UNABLE_TO_|SELF_SIGNED|DEPTH_ZERO|HOSTNAME_MISMATCH|INVALID_CA)/;

/** The idle connection of this request was closed by the server before anything came back. */
class StaleConnectionError extends UnavailableError {}

/** The connections to one server, or to several behind one address. */
export class Transport {
  readonly #url: URL;
  readonly #token: string | (() => string) | undefined;
  readonly #tls: TlsOptions;
  readonly #agents: Record<Call<unknown>["pool"], http.Agent>;
  #store: string | undefined;
  #twoStoresUntil = 0;

  constructor(url: string | URL, token: string | (() => string) | undefined, tls: TlsOptions = {}) {
    this.#url = parseUrl(url);
    this.#token = token;
    const { ca, cert, key } = tls;
    this.#tls = { ...(ca === undefined ? {} : { ca }), ...(cert === undefined ? {} : { cert }), ...(key === undefined ? {} : { key }) };
    const Agent = this.#isSecure ? https.Agent : http.Agent;
    const kept = () => new Agent({ keepAlive: true, timeout: IDLE_MAX, scheduling: "lifo", ...this.#tls });
    this.#agents = { claims: kept(), leases: kept(), once: new Agent({ keepAlive: false, ...this.#tls }) };
  }

  get #isSecure(): boolean {
    return this.#url.protocol === "https:";
  }

  /** Throws if two stores have answered at this address lately. */
  checkOneStore(effect: "none" | "unknown"): void {
    if (performance.now() >= this.#twoStoresUntil) return;
    throw new UnavailableError(
      `${this.#url.host} has answered for another store within the last ${TWO_STORES_FOR / 1000} s, so no lease is taken there: all ` +
        "servers at one address must have the same store",
      effect,
    );
  }

  /** Sends the request, and returns what is read from the answer. */
  async call<T>(call: Call<T>): Promise<T> {
    // Let the event loop see which idle connections the server has closed: a request on one of them would have an unknown effect.
    for (let turn = 0; turn < 2; turn += 1) await new Promise((resolve) => setImmediate(resolve));
    for (let sent = 1; ; sent += 1) {
      try {
        return await this.#send(call);
      } catch (error) {
        if (error instanceof LeaseholdError && error.effect === "unknown") call.onUnanswered?.();
        if (!(error instanceof StaleConnectionError) || call.pool === "once" || sent > STALE_MAX) throw error;
      }
    }
  }

  /** Closes all connections. */
  close(): void {
    for (const agent of Object.values(this.#agents)) agent.destroy();
  }

  #send<T>(call: Call<T>): Promise<T> {
    if (call.signal?.aborted) return Promise.reject(new CancelledError(call.signal));
    const id = randomHex(8);
    const body = call.body === undefined ? undefined : JSON.stringify(call.body);
    const request = this.#request(call, body, id);
    return exchange(request, body, call, {
      checkHead: (response) => this.#checkHeaders(response, id),
      broken: (error, failed) => this.#broken(error, failed),
      noAnswer: (timeout, wasSent) => this.#noAnswer(timeout, wasSent),
      answerIncomplete: (why) => new UnavailableError(`${this.#url.host}: ${why}`),
    });
  }

  #request(call: Call<unknown>, body: string | undefined, id: string): http.ClientRequest {
    const headers: http.OutgoingHttpHeaders = { accept: "application/json", "leasehold-request": id, "user-agent": "leasehold-typescript" };
    if (body !== undefined) {
      headers["content-type"] = "application/json";
      headers["content-length"] = Buffer.byteLength(body);
    }
    const token = typeof this.#token === "function" ? this.#token() : this.#token;
    if (token !== undefined) headers.authorization = `Bearer ${checkToken(token)}`;
    const { hostname, port, pathname, protocol } = this.#url;
    const options = {
      protocol,
      // An IPv6 address has brackets in a URL only.
      hostname: hostname.replace(/^\[(.*)\]$/, "$1"),
      port,
      path: pathname.replace(/\/$/, "") + call.path,
      method: call.method,
      headers,
      agent: this.#agents[call.pool],
    };
    return this.#isSecure ? https.request(options) : http.request(options);
  }

  #checkHeaders(response: http.IncomingMessage, id: string): void {
    const text = (name: string) => {
      const value = response.headers[name];
      return typeof value === "string" ? value : undefined;
    };
    const store = text("leasehold-store");
    if (store === undefined || !text("leasehold-api")?.startsWith("1.")) {
      throw new UnavailableError(
        `${this.#url.host} answered with status ${response.statusCode}, and not as a leasehold server does: check the address, and what ` +
          "stands between this host and the server",
      );
    }
    if (text("leasehold-request") !== id) {
      throw new UnavailableError(`the answer of ${this.#url.host} belongs to another request: something on the way mixes them up`);
    }
    this.#store ??= store;
    if (this.#store === store) return;
    this.#twoStoresUntil = performance.now() + TWO_STORES_FOR;
    throw new UnavailableError(
      `${this.#url.host} now serves another store (${store.slice(0, 40)}, before ${this.#store.slice(0, 40)}), so its answer says nothing ` +
        "about our leases: all servers at one address must have the same store",
    );
  }

  #noAnswer(timeout: number, sent: boolean): UnavailableError {
    const what = sent ? "did not answer" : "did not accept a connection";
    return new UnavailableError(`${this.#url.host} ${what} within ${Math.round(timeout)} ms`, sent ? "unknown" : "none");
  }

  #broken(error: NodeJS.ErrnoException, request: http.ClientRequest): Error {
    const { host } = this.#url;
    const code = error.code ?? "";
    if (UNTRUSTED.test(code)) return new DeniedError(`${host} cannot be trusted: ${error.message}`, { cause: error, code });
    const isConnect = CONNECT_CODES.has(code) && error.syscall !== "read" && error.syscall !== "write";
    if (isConnect) return new UnavailableError(`cannot connect to ${host}: ${code}`, "none", { cause: error });
    const Kind = request.reusedSocket ? StaleConnectionError : UnavailableError;
    return new Kind(`the connection to ${host} broke before the answer came: ${code || error.message}`, "unknown", { cause: error });
  }
}

function parseUrl(text: string | URL): URL {
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    // Not the cause: it quotes the text, which may have a password in it.
    throw new InvalidError("the address of a server is a URL, as in http://127.0.0.1:7420");
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") {
    throw new InvalidError(`the address of a server must begin with http:// or https://, not with ${url.protocol}//`);
  }
  if (url.username !== "" || url.password !== "") {
    throw new InvalidError("the address of a server cannot contain a user or a password: give the API token as an option, { token }");
  }
  return url;
}

function checkToken(token: string): string {
  if (/^[\x21-\x7e]+$/.test(token)) return token;
  throw new InvalidError("the API token contains a character that is not allowed there, such as a line break at its end");
}

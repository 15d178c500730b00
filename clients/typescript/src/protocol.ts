/**
 * Requests and answers of the HTTP API, as pure functions: no connection, no clock, no timer.
 *
 * 1. A request may be sent again as it is, except orders.
 * 2. An answer that does not name its claim (key and owner hash) is never a grant: its effect is unknown.
 * 3. A refusal is a problem document, which becomes one of the errors of this package.
 */

import {
  BusyError,
  CorruptError,
  DeniedError,
  type Effect,
  HolderChangedError,
  InvalidError,
  type LeaseholdError,
  LeaseLostError,
  type LostReason,
  MismatchError,
  UnavailableError,
} from "./errors.js";
import { Doc } from "./json.js";
import { type FinishRequest, readFinishRequest, readForeignLock, readHolder } from "./model.js";
import { type Named, ownerHash, randomHex } from "./names.js";

/** An answer of a leasehold server, on our store, to our request. */
export interface Answer {
  readonly status: number;
  readonly body: string;
  /** Its connection is not used again. */
  readonly dropConnection: () => void;
}

/** What one claim asks for. Its owner token is secret, and the same in all its requests. */
export class Claim {
  readonly #owner = randomHex(16);
  readonly name: Named;
  readonly ttl: number;
  readonly ownerHash: string;
  /** A request to acquire was not answered: it may still arrive. */
  unanswered = false;
  /** It may have a place in the queue. */
  hasPlace = false;

  constructor(name: Named, ttl: number) {
    this.name = name;
    this.ttl = ttl;
    this.ownerHash = ownerHash(this.#owner);
  }

  /** The fields that name it in a request. */
  fields(): Record<string, unknown> {
    return { ...this.name.field, owner: this.#owner };
  }

  /** Whether a document is about this claim. */
  namesThisClaim(doc: Doc): boolean {
    return doc.optText("key") === this.name.key && doc.optText("owner_hash") === this.ownerHash;
  }

  /** Whether a document is about something else. */
  namesAnotherClaim(doc: Doc): boolean {
    const [key, hash] = [doc.optText("key"), doc.optText("owner_hash")];
    return (key !== undefined && key !== this.name.key) || (hash !== undefined && hash !== this.ownerHash);
  }
}

/** The claim holds the resource. */
export interface Granted {
  readonly ttl: number;
  readonly remaining: number;
  readonly waited: number;
  /** The token, or the number of a shared grant. */
  readonly grant: bigint;
  /** Of exclusive grants only. */
  readonly pass: string | undefined;
}

/** The lease was renewed. */
export interface Kept {
  readonly ttl: number;
  readonly remaining: number;
  readonly asked: FinishRequest | undefined;
  readonly evicting: boolean;
}

/** The verdict on a claim: a grant, or a place in the queue. A refusal is thrown. */
export function readAcquired(answer: Answer, claim: Claim): Granted | "queued" {
  const doc = readDocument(answer, claim);
  const verdict = doc.optText("verdict");
  if (verdict === "queued" && answer.status === 202) return "queued";
  if (verdict !== "granted" || answer.status !== 200) {
    throw unbelievable(answer, `the answer to a claim on ${claim.name.text} has an unknown verdict`);
  }
  return readable(answer, () => readGrant(answer, claim, doc));
}

function readGrant(answer: Answer, claim: Claim, doc: Doc): Granted {
  const token = doc.optToken("token");
  const pass = doc.optText("pass");
  if ((token === undefined) !== (pass === undefined)) throw new TypeError("a token and a pass belong together");
  // The resource in a pass is its text. Of a resource that was named by its key we have only the key.
  const start = `${token} ${claim.ownerHash} `;
  const fits = "resource" in claim.name.field ? pass === start + claim.name.text : pass?.startsWith(start);
  if (pass !== undefined && fits !== true) throw unbelievable(answer, `the pass of ${claim.name.text} does not fit its claim`);
  const [ttl, remaining, waited] = [doc.number("ttl_ms"), doc.number("remaining_ms"), doc.number("waited_ms")];
  return { ttl, remaining, waited, grant: token ?? doc.token("number"), pass };
}

/** The outcome of each renewal of a list. */
export function readRenewals(answer: Answer, claims: readonly RenewedClaim[]): (Kept | LeaseholdError)[] {
  const doc = readDocument(answer);
  return readable(answer, () => {
    const entries = doc.docs("leases");
    if (entries.length !== claims.length) throw new TypeError(`it does not have ${claims.length} leases`);
    return claims.map((claim, index) => readRenewal(answer, entries[index] as Doc, claim));
  });
}

/** A claim that holds a grant. */
export interface RenewedClaim {
  readonly claim: Claim;
  readonly grant: bigint;
}

function readRenewal(answer: Answer, entry: Doc, { claim, grant }: RenewedClaim): Kept | LeaseholdError {
  const isRefusal = entry.optText("kind") !== undefined;
  // A failure of the store need not name the claim. A verdict, good or bad, must.
  const needsName = !isRefusal || entry.optText("verdict") !== undefined;
  if (claim.namesAnotherClaim(entry) || (needsName && !claim.namesThisClaim(entry))) {
    return unbelievable(answer, "the answer to a renewal names another claim");
  }
  if (isRefusal) return problemError(entry);
  const { name } = claim;
  const verdict = entry.optText("verdict");
  if (verdict === "queued") return new LeaseLostError(`${name.text}: the claim only waits in the queue`, "not_there");
  try {
    if (verdict !== "kept" || entry.token("grant") !== grant) {
      return unbelievable(answer, `the answer to a renewal of ${name.text} has an unknown verdict or grant`);
    }
    return readKept(entry);
  } catch (error) {
    return unbelievable(answer, `the answer cannot be read: ${(error as Error).message}`);
  }
}

/** The outcome of a single renewal. */
export function readSingleRenewal(answer: Answer, claim: RenewedClaim): Kept {
  const outcome = readRenewal(answer, readDocument(answer, claim.claim), claim);
  if (outcome instanceof Error) throw outcome;
  return outcome;
}

function readKept(doc: Doc): Kept {
  const asked = doc.optDoc("asked");
  return {
    ttl: doc.number("ttl_ms"),
    remaining: doc.number("remaining_ms"),
    asked: asked && readFinishRequest(asked),
    evicting: doc.flag("evicting"),
  };
}

/** Throws, unless the claim has ended. */
export function readReleased(answer: Answer, claim: Claim): void {
  const verdict = readDocument(answer, claim).optText("verdict");
  if (verdict !== "released" && verdict !== "already_gone") {
    throw unbelievable(answer, `the answer to a release of ${claim.name.text} has an unknown verdict`);
  }
}

/** What `read` makes of the answer to a query or an order. */
export function readReply<T>(answer: Answer, read: (doc: Doc) => T): T {
  const doc = readDocument(answer);
  return readable(answer, () => read(doc));
}

/** The document of an answer. A refusal is thrown. */
function readDocument(answer: Answer, claim?: Claim): Doc {
  const { status, body } = answer;
  if (status < 200 || (status >= 300 && status < 400)) {
    throw unbelievable(answer, `the server answered with status ${status}`);
  }
  const doc = readable(answer, () => Doc.parse(body));
  const isRefusal = status >= 400;
  if (claim !== undefined && (isRefusal ? claim.namesAnotherClaim(doc) : !claim.namesThisClaim(doc))) {
    throw unbelievable(answer, "the answer names another claim");
  }
  if (isRefusal) throw readable(answer, () => problemError(doc));
  return doc;
}

/** An answer that says nothing about the request. The connection is not used again. */
function unbelievable(answer: Answer, message: string): UnavailableError {
  answer.dropConnection();
  return new UnavailableError(message);
}

function readable<T>(answer: Answer, read: () => T): T {
  try {
    return read();
  } catch (error) {
    // The text of a SyntaxError quotes the body.
    const why = error instanceof SyntaxError ? "it is not JSON" : error instanceof TypeError ? error.message : undefined;
    if (why === undefined) throw error;
    throw unbelievable(answer, `the answer of the server cannot be read: ${why}`);
  }
}

const INVALID = new Set(
  ("mismatch token_required malformed not_found method_not_allowed too_large not_json wrong_host invalid unsupported " +
    "guarantee_too_weak limit stale_token").split(" "),
);
const LOST = new Set<string | undefined>(["not_there", "evicted", "buried"]);

/** The error of a problem document. */
export function problemError(doc: Doc): LeaseholdError {
  const code = doc.text("kind");
  const effect: Effect = doc.optText("effect") === "none" ? "none" : "unknown";
  const message = describe(doc, code);
  const retryAfter = doc.optNumber("retry_after_ms");
  if (code === "contended") {
    const holders = doc.docs("holders").map(readHolder);
    const foreign = doc.optDoc("foreign");
    return new BusyError(message, {
      holders,
      paused: doc.flag("paused"),
      retryAfter: retryAfter ?? 0,
      foreign: foreign && readForeignLock(foreign),
    });
  }
  if (code === "lost") {
    const why = doc.optText("why");
    return new LeaseLostError(message, LOST.has(why) ? (why as LostReason) : "not_there");
  }
  if (code === "mismatch") return new MismatchError(message, doc.optNumber("capacity"));
  if (code === "not_that_one") return new HolderChangedError(message, doc.optToken("token"));
  if (code === "unauthenticated" || code === "denied") return new DeniedError(message, { code, effect });
  if (code === "corrupt") return new CorruptError(message, { code, effect });
  if (INVALID.has(code)) return new InvalidError(message, { code, effect });
  return new UnavailableError(message, effect, { code, retryAfter });
}

function describe(doc: Doc, code: string): string {
  const text = doc.optText("detail") ?? doc.optText("title") ?? code;
  const resource = doc.optText("resource");
  const named = resource === undefined || text.includes(resource) ? text : `${resource}: ${text}`;
  const hint = doc.optText("hint");
  return hint === undefined ? named : `${named} (${hint})`;
}

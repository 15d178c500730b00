/** What others hold, as the server describes it. Times are in milliseconds, tokens are bigints. */

import { UnavailableError } from "./errors.js";
import type { Doc } from "./json.js";

/** A process, as it describes itself. */
export interface Process {
  readonly host: string;
  readonly pid: number;
  readonly label: string;
  /** Who the server took it for, by its token or certificate. */
  readonly subject?: string;
}

/** A claim that holds a resource. */
export interface Holder extends Process {
  /** The token of its grant; of a shared grant, its number. */
  readonly token: bigint;
  readonly weight: number;
  readonly heldFor: number;
  /** How long until it expires, unless it is renewed. */
  readonly remaining: number;
  readonly note?: string | Uint8Array;
  /** An operator evicted it at its expiry. */
  readonly evicting: boolean;
  /** It was released, and the resource stays closed for a while. */
  readonly kept: boolean;
}

/** The lock of another program, which knows nothing of leasehold, on the same resource. */
export interface ForeignLock {
  /** Its key in the store. */
  readonly key: string;
  /** What it is, in the words of the store. */
  readonly form: string;
  /** Names it in the order `evict-foreign`. */
  readonly valueHash: string;
  /** How long until it expires; undefined if it never does. */
  readonly remaining?: number;
}

/** A claim in the queue. */
export interface Waiter extends Process {
  readonly weight: number;
  readonly waited: number;
  /** It could have been granted, and did not answer. */
  readonly silent: boolean;
  /** It is a claim of another program. */
  readonly foreign: boolean;
}

/** A resource as it is now. */
export interface Resource {
  readonly name: string;
  readonly key: string;
  readonly capacity: number;
  readonly holders: readonly Holder[];
  readonly holderCount: number;
  /** Locks of other programs. */
  readonly foreign: readonly ForeignLock[];
  readonly queue: readonly Waiter[];
  readonly queueLength: number;
  /** The newest token, where the store remembers it. */
  readonly lastToken?: bigint;
  /** How long until an operator's pause ends. */
  readonly pausedFor?: number;
  /** Why it cannot be read. Then nothing else is known about it. */
  readonly unreadable?: string;
  /** Where to wait from. */
  readonly cursor: string;
}

/** A resource in the overview. */
export interface OverviewItem {
  readonly name: string;
  readonly key: string;
  readonly kind: string;
  readonly holders: readonly Holder[];
  readonly holderCount: number;
  readonly queueLength: number;
  readonly oldestWait?: number;
  readonly oldestHold?: number;
  readonly stuck: boolean;
}

/** All resources in numbers, and a page of them, as the server sampled them some time ago. */
export interface Overview {
  readonly sampledAgo: number;
  readonly held: number;
  readonly waiting: number;
  readonly stuck: number;
  readonly paused: number;
  readonly matched: number;
  readonly items: readonly OverviewItem[];
  /** Where the next page begins, if there is one. */
  readonly next?: string;
}

/** An operator asks a holder to finish. */
export interface FinishRequest {
  /** How long the holder has. */
  readonly within: number;
  readonly by: string;
  readonly why: string;
}

/** Who leads. */
export interface Leader extends Process {
  /** The fencing token of its grant. */
  readonly token: bigint;
  /** What it says of itself: usually its address. */
  readonly value?: string | Uint8Array;
}

/** The server, its store, and what the caller may do. */
export interface Info {
  readonly api: string;
  readonly server: string;
  readonly store: { readonly id: string; readonly backend: string; readonly level: string; readonly because: string };
  readonly caller: { readonly subject?: string; readonly roles: readonly string[] };
  readonly limits: { readonly ttl: number; readonly wait: number; readonly note: number; readonly entries: number };
  /** Leases stay when this server ends. */
  readonly survivesServer: boolean;
  readonly draining: boolean;
}

/** The object without its undefined fields. */
type Defined<T> = { [K in keyof T]: Exclude<T[K], undefined> };

function defined<T extends object>(fields: T): Defined<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Defined<T>;
}

function readProcess(doc: Doc): Process {
  const optional = defined({ subject: doc.optText("subject") });
  return { host: doc.text("host"), pid: doc.number("pid"), label: doc.optText("label") ?? "", ...optional };
}

export function readHolder(doc: Doc): Holder {
  return {
    ...readProcess(doc.doc("holder")),
    token: doc.token("token"),
    weight: doc.number("weight"),
    heldFor: doc.number("held_for_ms"),
    remaining: doc.number("remaining_ms"),
    evicting: doc.flag("evicting"),
    kept: doc.flag("kept"),
    ...defined({ note: doc.note() }),
  };
}

export function readForeignLock(doc: Doc): ForeignLock {
  const [key, form, valueHash] = [doc.text("key"), doc.text("form"), doc.text("value_hash")];
  return { key, form, valueHash, ...defined({ remaining: doc.optNumber("remaining_ms") }) };
}

function readWaiter(doc: Doc): Waiter {
  const [weight, waited] = [doc.number("weight"), doc.number("waited_ms")];
  return { ...readProcess(doc.doc("holder")), weight, waited, silent: doc.flag("silent"), foreign: doc.flag("foreign") };
}

export function readResource(doc: Doc): Resource {
  return {
    name: doc.text("resource"),
    key: doc.text("key"),
    capacity: doc.number("capacity"),
    holders: doc.docs("holders").map(readHolder),
    holderCount: doc.number("holder_count"),
    foreign: doc.docs("foreign").map(readForeignLock),
    queue: doc.docs("queue").map(readWaiter),
    queueLength: doc.number("queue_length"),
    cursor: doc.text("cursor"),
    ...defined({
      lastToken: doc.optToken("last_token"),
      pausedFor: doc.optNumber("paused_for_ms"),
      unreadable: doc.optText("unreadable"),
    }),
  };
}

function readOverviewItem(doc: Doc): OverviewItem {
  return {
    name: doc.text("resource"),
    key: doc.text("key"),
    kind: doc.text("kind"),
    holders: doc.docs("holders").map(readHolder),
    holderCount: doc.number("holder_count"),
    queueLength: doc.number("queue_length"),
    stuck: doc.flag("stuck"),
    ...defined({ oldestWait: doc.optNumber("oldest_wait_ms"), oldestHold: doc.optNumber("oldest_hold_ms") }),
  };
}

export function readOverview(doc: Doc): Overview {
  return {
    sampledAgo: doc.number("sampled_ms_ago"),
    held: doc.number("held"),
    waiting: doc.number("waiting"),
    stuck: doc.number("stuck"),
    paused: doc.number("paused"),
    matched: doc.number("matched"),
    items: doc.docs("items").map(readOverviewItem),
    ...defined({ next: doc.optText("next") }),
  };
}

export function readFinishRequest(doc: Doc): FinishRequest {
  return { within: doc.number("within_ms"), by: doc.text("by"), why: doc.text("why") };
}

/** The leader of an election, which is the holder of its resource. Throws if the server cannot read the resource: then the leader is unknown. */
export function leaderOf(resource: Resource): Leader | undefined {
  if (resource.unreadable !== undefined) throw new UnavailableError(`${resource.name} cannot be read: ${resource.unreadable}`, "none");
  const holder = resource.holders.filter((each) => !each.kept).at(-1);
  if (holder === undefined) return undefined;
  const { host, pid, label, token, subject, note } = holder;
  return { host, pid, label, token, ...defined({ subject, value: note }) };
}

export function readInfo(doc: Doc): Info {
  const [store, caller, limits] = [doc.doc("store"), doc.doc("caller"), doc.doc("limits")];
  const [id, backend, level, because] = ["id", "backend", "level", "because"].map((name) => store.text(name)) as [
    string, string, string, string,
  ];
  return {
    api: doc.text("api"),
    server: doc.text("server"),
    store: { id, backend, level, because },
    caller: { roles: caller.optTexts("roles") ?? [], ...defined({ subject: caller.optText("subject") }) },
    limits: {
      ttl: limits.number("ttl_ms"),
      wait: limits.number("wait_ms"),
      note: limits.number("note"),
      entries: limits.number("entries"),
    },
    survivesServer: doc.flag("survives_server"),
    draining: doc.flag("draining"),
  };
}

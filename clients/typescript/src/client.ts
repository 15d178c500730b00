/** The client of a leasehold server. */

import { Acquirer } from "./acquire.js";
import { now } from "./clock.js";
import { Election } from "./election.js";
import { CancelledError, ClientClosedReason, InvalidError } from "./errors.js";
import type { Doc } from "./json.js";
import { exclusive, type Lease, LeaseSet, type LeaseTools, retire, shared, type SharedLease } from "./lease.js";
import { type Info, type Overview, readInfo, readOverview, readResource, type Resource } from "./model.js";
import { parseName, type ResourceName } from "./names.js";
import {
  type AcquireOptions, acquisitionOf, type ClientOptions, type Settings, settingsOf, type Share, type TryOptions, WAIT_DEFAULT,
} from "./options.js";
import { readReply } from "./protocol.js";
import { type Order, orderBody, type OverviewQuery, pathOf, resourcePath } from "./queries.js";
import { endClaim } from "./release.js";
import { Renewals } from "./renewals.js";
import { checkWork, runUnder } from "./scope.js";
import { anySignal } from "./signals.js";
import { ReadWriteLock, Semaphore } from "./shared.js";
import type { LeaseState } from "./state.js";
import { Transport } from "./transport.js";

/** Acquires leases at one server, or at several behind one address. Make one for the whole program. */
export class Client implements AsyncDisposable {
  readonly #settings: Settings;
  readonly #transport: Transport;
  readonly #renewals: Renewals;
  readonly #tools: LeaseTools;
  readonly #underWay = new Set<Promise<unknown>>();
  readonly #closing = new AbortController();

  /** Asks the server nothing yet. */
  constructor(url: string | URL, options: ClientOptions = {}) {
    this.#settings = settingsOf(options);
    this.#transport = new Transport(url, options.token, options.tls);
    this.#renewals = new Renewals(this.#transport);
    this.#tools = {
      transport: this.#transport,
      renewals: this.#renewals,
      releaseTimeout: this.#settings.releaseTimeout,
      track: (work) => this.#track(work),
    };
  }

  /**
   * Acquires the lease of a resource, such as `report/42`, and waits while others hold it.
   *
   * Throws `TimedOutError` when `wait` is over (10 s unless given), `BusyError` if `wait` is 0, `CancelledError` when `signal` is aborted:
   * then nothing of the claim is left. While no server answers, it asks again until `wait` is over; then it throws `UnavailableError`.
   */
  async acquire(resource: ResourceName, options: AcquireOptions = {}): Promise<Lease> {
    return exclusive(await this.#hold(resource, options), this.#tools);
  }

  /** Acquires the lease if nobody else holds it. Throws `BusyError`, which says who does. */
  async tryAcquire(resource: ResourceName, options: TryOptions = {}): Promise<Lease> {
    return this.acquire(resource, { ...options, wait: 0 });
  }

  /**
   * Runs work under the lease, and releases it. The work gets a signal that is aborted when the lease is lost, or the caller aborts.
   *
   * The error of the work comes out as it is. If the lease was lost before the work ended, `LeaseLostError` does.
   */
  run<T>(resource: ResourceName, work: (lease: Lease, signal: AbortSignal) => T | PromiseLike<T>): Promise<T>;
  run<T>(
    resource: ResourceName,
    options: AcquireOptions | undefined,
    work: (lease: Lease, signal: AbortSignal) => T | PromiseLike<T>,
  ): Promise<T>;
  async run<T>(
    resource: ResourceName,
    options: AcquireOptions | undefined | ((lease: Lease, signal: AbortSignal) => T | PromiseLike<T>),
    work?: (lease: Lease, signal: AbortSignal) => T | PromiseLike<T>,
  ): Promise<T> {
    const [given, body] = typeof options === "function" ? [undefined, options] : [options, work];
    checkWork(body);
    return runUnder(await this.acquire(resource, given), given?.signal, body);
  }

  /**
   * Acquires several leases, all or none, in the byte order of their keys: so two programs cannot block each other. `wait` is for all of
   * them together.
   */
  async acquireAll(resources: readonly ResourceName[], options: AcquireOptions = {}): Promise<LeaseSet> {
    const names = resources.map((resource) => ({ resource, key: parseName(resource).key }));
    names.sort((one, other) => (one.key < other.key ? -1 : one.key > other.key ? 1 : 0));
    const twice = names.find(({ key }, index) => key === names[index + 1]?.key);
    if (twice !== undefined) throw new InvalidError(`${twice.key} is in the list twice`);
    const endsAt = now().at + (options.wait ?? WAIT_DEFAULT);
    const leases: Lease[] = [];
    try {
      for (const { resource } of names) leases.push(await this.#acquireNext(resource, leases, endsAt, options));
      for (const lease of leases) lease.check();
    } catch (error) {
      await new LeaseSet(leases).release();
      throw error;
    }
    return new LeaseSet(leases);
  }

  /** One more of several. Stops waiting if one of those that it has is lost. */
  async #acquireNext(resource: ResourceName, held: readonly Lease[], endsAt: number, options: AcquireOptions): Promise<Lease> {
    const { signal, detach } = anySignal(options.signal, ...held.map((lease) => lease.signal));
    // Not 0, which would be a try, and fail as one.
    const wait = options.wait === 0 ? 0 : Math.max(1, endsAt - now().at);
    try {
      return await this.acquire(resource, { ...options, wait, signal });
    } catch (error) {
      throw held.find((lease) => lease.lost !== undefined)?.lost ?? error;
    } finally {
      detach();
    }
  }

  /** A semaphore: holders share a capacity. All must name the same one. */
  semaphore(resource: ResourceName, options: { readonly capacity: number }): Semaphore {
    return new Semaphore(resource, options.capacity, (share, given) => this.#share(resource, share, given));
  }

  /** A lock with many readers or one writer. */
  readWriteLock(resource: ResourceName): ReadWriteLock {
    const write = async (given: AcquireOptions) => exclusive(await this.#hold(resource, given, "write"), this.#tools);
    return new ReadWriteLock((given) => this.#share(resource, "read", given), write);
  }

  /** An election: the holder of the resource leads. */
  election(resource: ResourceName): Election {
    const look = (path: string, timeout: number, signal?: AbortSignal) => this.#get(path, readResource, timeout, signal);
    return new Election(resource, (given) => this.acquire(resource, given), look, this.#settings.timeout);
  }

  /** A resource as it is now. */
  resource(name: ResourceName): Promise<Resource> {
    return this.#get(resourcePath(name), readResource);
  }

  /** All resources whose names begin like this, in the order of their keys. */
  async *resources(prefix = ""): AsyncGenerator<Resource, void, undefined> {
    let after: string | undefined;
    do {
      const read = (doc: Doc) => ({ resources: doc.docs("resources").map(readResource), next: doc.optText("next") });
      const page: { resources: Resource[]; next: string | undefined } = await this.#get(pathOf("/v1/resources", { prefix, after }), read);
      yield* page.resources;
      after = page.next;
    } while (after !== undefined);
  }

  /** All resources in numbers, and a page of them. */
  overview(query: OverviewQuery = {}): Promise<Overview> {
    return this.#get(pathOf("/v1/overview", { ...query }), readOverview);
  }

  /** Gives an operator's order. It is sent once: if it fails with the effect `unknown`, look before you repeat it. */
  async order(order: Order): Promise<void> {
    const call = { method: "POST", path: "/v1/orders", body: orderBody(order), timeout: this.#settings.timeout, pool: "once" } as const;
    await this.#transport.call({ ...call, read: (answer) => readReply(answer, (doc) => doc.text("verdict")) });
  }

  /** The server, its store, and what the caller may do. */
  info(): Promise<Info> {
    return this.#get("/v1/info", readInfo);
  }

  /** Releases what is still held, waits for releases that are under way, and closes the connections. Never throws. */
  async close(): Promise<void> {
    this.#closing.abort(new ClientClosedReason());
    for (const held of this.#renewals.held) {
      held.isReleased = true;
      this.#renewals.drop(held);
      void this.#track(endClaim(this.#transport, held.claim, this.#settings.releaseTimeout));
    }
    while (this.#underWay.size > 0) await Promise.allSettled(this.#underWay);
    this.#transport.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #hold(resource: ResourceName, options: AcquireOptions, share?: Share): Promise<LeaseState> {
    const { signal, detach } = anySignal(options.signal, this.#closing.signal);
    const tools = { transport: this.#transport, timeout: this.#settings.timeout, retire: (claim: LeaseState["claim"]) => retire(claim, this.#tools) };
    try {
      const wanted = acquisitionOf(resource, { ...options, signal }, this.#settings, share);
      if (signal.aborted) throw new CancelledError(signal);
      return await new Acquirer(tools, wanted).run();
    } finally {
      detach();
    }
  }

  async #share(resource: ResourceName, share: Share, options: AcquireOptions): Promise<SharedLease> {
    return shared(await this.#hold(resource, options, share), this.#tools);
  }

  async #get<T>(path: string, read: (doc: Doc) => T, timeout = this.#settings.timeout, caller?: AbortSignal): Promise<T> {
    const { signal, detach } = anySignal(caller, this.#closing.signal);
    const call = { method: "GET", path, timeout, pool: "claims", signal } as const;
    return this.#transport.call({ ...call, read: (answer) => readReply(answer, read) }).finally(detach);
  }

  #track<T>(work: Promise<T>): Promise<T> {
    this.#underWay.add(work);
    const forget = () => this.#underWay.delete(work);
    work.then(forget, forget);
    return work;
  }
}

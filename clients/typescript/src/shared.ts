/** Semaphores, and locks with readers and writers. */

import { InvalidError } from "./errors.js";
import type { Lease, SharedLease } from "./lease.js";
import type { ResourceName } from "./names.js";
import type { AcquireOptions, Share, TryOptions } from "./options.js";
import { checkWork, runUnder } from "./scope.js";

const CAPACITY_MAX = 2 ** 32 - 1;

/** How many permits. */
export interface PermitOptions extends AcquireOptions {
  /** Default: 1. */
  readonly weight?: number;
}

/** Holders share a capacity. */
export class Semaphore {
  readonly resource: ResourceName;
  readonly capacity: number;
  readonly #acquire: (share: Share, options: AcquireOptions) => Promise<SharedLease>;

  /** @internal */
  constructor(resource: ResourceName, capacity: number, acquire: (share: Share, options: AcquireOptions) => Promise<SharedLease>) {
    if (!Number.isInteger(capacity) || capacity < 1 || capacity > CAPACITY_MAX) {
      throw new InvalidError(`capacity must be a whole number between 1 and ${CAPACITY_MAX}, got ${String(capacity)}`);
    }
    this.resource = resource;
    this.capacity = capacity;
    this.#acquire = acquire;
  }

  /** Acquires permits, and waits until they are free. Throws as `Client.acquire`, and `MismatchError` if others use another capacity. */
  async acquire(options: PermitOptions = {}): Promise<SharedLease> {
    const weight = options.weight ?? 1;
    if (!Number.isInteger(weight) || weight < 1 || weight > this.capacity) {
      throw new InvalidError(`weight must be a whole number between 1 and the capacity (${this.capacity}), got ${String(weight)}`);
    }
    return this.#acquire({ weight, capacity: this.capacity }, options);
  }

  /** Acquires permits if they are free. */
  async tryAcquire(options: TryOptions & { readonly weight?: number } = {}): Promise<SharedLease> {
    return this.acquire({ ...options, wait: 0 });
  }

  /** Runs work while it holds permits, as `Client.run` does. */
  async run<T>(
    options: PermitOptions | undefined,
    work: (lease: SharedLease, signal: AbortSignal) => T | PromiseLike<T>,
  ): Promise<T> {
    checkWork(work);
    return runUnder(await this.acquire(options), options?.signal, work);
  }
}

/** Many read, or one writes. */
export class ReadWriteLock {
  readonly #read: (options: AcquireOptions) => Promise<SharedLease>;
  readonly #write: (options: AcquireOptions) => Promise<Lease>;

  /** @internal */
  constructor(read: (options: AcquireOptions) => Promise<SharedLease>, write: (options: AcquireOptions) => Promise<Lease>) {
    this.#read = read;
    this.#write = write;
  }

  /** Acquires a lease to read. Others may read, too. */
  read(options: AcquireOptions = {}): Promise<SharedLease> {
    return this.#read(options);
  }

  /** Acquires the lease to write. Nobody else reads or writes. */
  write(options: AcquireOptions = {}): Promise<Lease> {
    return this.#write(options);
  }
}

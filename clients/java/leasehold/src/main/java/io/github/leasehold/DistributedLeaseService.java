package io.github.leasehold;

import java.time.Duration;
import java.util.Optional;

/**
 * Leases as plain values, for code that renews by itself or keeps the handle somewhere. Nothing is renewed in the background, and nobody is
 * told when a lease ends: stop the work well before its ttl is over.
 *
 * <p>{@link LeaseholdClient#leaseService()} is one. Where you can, use {@link LeaseholdClient#acquire(String)}.
 */
public interface DistributedLeaseService {
    /**
     * Tries to acquire a lease, once.
     *
     * @param request what to acquire
     * @return its handle; empty if others hold it
     * @throws LeaseholdException if that cannot be told
     */
    Optional<LeaseHandle> tryAcquire(LeaseRequest request);

    /**
     * Ends a lease.
     *
     * @param handle the lease
     * @return false if it had ended before: its work may have run beside that of another one. Also false if a first attempt of this release
     *     was not answered, and has ended it
     * @throws LeaseholdException if that cannot be told
     */
    boolean release(LeaseHandle handle);

    /**
     * Renews a lease.
     *
     * @param handle the lease
     * @param ttl how long it lasts from now on
     * @return false if it has ended: stop the work
     * @throws LeaseholdException if that cannot be told; then it ends as if this had not been called, or later
     */
    boolean extend(LeaseHandle handle, Duration ttl);
}

package io.github.leasehold;

/**
 * What is done while a lease is held.
 *
 * @param <T> what it gives
 * @param <E> what it may throw
 */
@FunctionalInterface
public interface LeaseBody<T, E extends Exception> {
    /**
     * Does it.
     *
     * @param lease the lease: call {@link Lease#check()} before each effect
     * @return the result
     * @throws E if it fails
     */
    T run(Lease lease) throws E;
}

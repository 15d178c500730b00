package io.github.leasehold;

/**
 * The two clocks of a lease.
 *
 * <p>{@link #now} is {@link System#nanoTime}. On Linux it stands still while the machine sleeps, and Java has no other monotonic clock.
 * Therefore the calendar clock is a tripwire: a machine that slept past the end of a lease learns it from there.
 */
interface Clock {
    /** Nanoseconds on a clock that never goes back. Only differences mean something. */
    long now();

    /** Nanoseconds on the calendar clock, which somebody may set. */
    long wall();

    Clock SYSTEM = new Clock() {
        @Override
        public long now() {
            return System.nanoTime();
        }

        @Override
        public long wall() {
            return System.currentTimeMillis() * 1_000_000;
        }
    };

    /** Reads both clocks: before a request is sent. */
    default Sent sent() {
        // The monotonic clock first: too early is safe.
        return new Sent(now(), wall());
    }

    /** When a request was sent: read before it was given to the connection. */
    record Sent(long at, long wall) {}
}

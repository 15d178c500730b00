package io.github.leasehold;

import java.time.Duration;

/**
 * When a lease is renewed, when its work must stop, and when another claim may be granted. Pure functions, in nanoseconds.
 *
 * <p>With a ttl of 30 s and a request sent at 0 s:
 *
 * <pre>
 *  sent          renew                         stop          deadline   end at the server
 *   0 s           10 s                        24.7 s          29.7 s        30 s
 *   |----- ttl/3 ----|                            |---- ttl/6 ----|-- margin --|
 * </pre>
 */
record Times(long renewAt, long stopAt, long deadline, long wallStopAt) {
    /** A long lease is renewed this often, too, so that its holder learns of an eviction soon. */
    private static final long RENEW_EVERY_MAX = Duration.ofSeconds(60).toNanos();
    /** The fixed part of the safety margin, for a short ttl. */
    private static final long MARGIN_MIN = Duration.ofMillis(2).toNanos();
    private static final long MILLI = 1_000_000;

    /** What an answer says of the times of a lease. */
    record Left(Duration ttl, Duration remaining, Duration waited) {
        /** A lease is never longer than the one that was asked for, and the server cannot have waited for longer than its client has. */
        Left cappedBy(Duration asked, Duration elapsed) {
            return new Left(shorter(ttl, asked), shorter(remaining, asked), shorter(waited, elapsed));
        }

        private static Duration shorter(Duration a, Duration b) {
            return a.compareTo(b) < 0 ? a : b;
        }
    }

    /**
     * The times of a lease.
     *
     * <p>{@code remaining} was left when the store carried out the request, which the server sent to it {@code waited} after it had read
     * ours. Nothing counts from when the answer arrived: it may have been in a buffer while this process was stopped.
     */
    static Times of(Clock.Sent sent, Left left, boolean isRenewed) {
        long ttl = left.ttl.toNanos();
        long remaining = left.remaining.toNanos();
        // Our clock may run slower than the server's while it waits for us.
        long waited = left.waited.toNanos() / 100 * 99;
        long margin = Math.max(ttl, remaining) / 100 + MARGIN_MIN;
        long valid = waited + Math.max(0, remaining - margin);
        // A lease that nobody renews ends at its deadline. One that is renewed leaves a sixth of its ttl to stop the work.
        long stop = isRenewed ? valid - ttl / 6 : valid;
        // Asking again may find a grant that is some time old. Its renewal is due that much sooner.
        long age = Math.max(0, ttl - remaining);
        long renew = Math.max(0, waited + renewEvery(left.ttl) - age);
        return new Times(sent.at() + renew, sent.at() + stop, sent.at() + valid, sent.wall() + stop + wallSlack(ttl));
    }

    /** The clocks differ a little: without this, the reason of a loss would be the one that was read first. */
    private static long wallSlack(long ttl) {
        return Math.min(ttl / 60, 100 * MILLI);
    }

    /**
     * The times after a renewal. The work never has to stop sooner because of one.
     *
     * <p>Both stops are from the same answer. If each were the later of its own, a calendar clock that was set back would leave a stop that is
     * too late, and a machine that sleeps then would not notice that its lease has ended.
     */
    Times laterOf(Times other) {
        Times last = other.stopAt - stopAt >= 0 ? other : this;
        return new Times(other.renewAt, last.stopAt, later(deadline, other.deadline), last.wallStopAt);
    }

    /** The clock that says that the work must stop; null if none does. */
    LossReason stoppedBy(Clock.Sent now) {
        if (now.at() - stopAt >= 0) {
            return LossReason.EXPIRED;
        }
        return now.wall() - wallStopAt >= 0 ? LossReason.WALL_CLOCK : null;
    }

    /** How long the work may go on, by both clocks. */
    Duration left(Clock.Sent now) {
        return Duration.ofNanos(Math.max(0, Math.min(stopAt - now.at(), wallStopAt - now.wall())));
    }

    /** Of two points in time. They may have any sign, so only their difference counts. */
    private static long later(long a, long b) {
        return a - b > 0 ? a : b;
    }

    /** How often a lease is renewed, in nanoseconds. */
    static long renewEvery(Duration ttl) {
        return Math.min(ttl.toNanos() / 3, RENEW_EVERY_MAX);
    }

    /** How long a renewal may take: less than a third of the ttl, so that it can be repeated in time. */
    static Duration renewalTimeout(Duration ttl) {
        return clamp(ttl.multipliedBy(3).dividedBy(10), Duration.ofMillis(50), Duration.ofSeconds(10));
    }

    /** How long after a failed renewal the next one is sent; also the shortest time between two renewals. */
    static Duration renewalRetry(Duration ttl) {
        return clamp(ttl.dividedBy(15), Duration.ofMillis(50), Duration.ofSeconds(2));
    }

    /** How long a tombstone must last: longer than any request of the claim can be delayed. */
    static Duration tombstone(Duration ttl) {
        return clamp(ttl.multipliedBy(2), Duration.ofMinutes(3), Duration.ofHours(48));
    }

    static Duration clamp(Duration value, Duration least, Duration most) {
        Duration capped = value.compareTo(most) < 0 ? value : most;
        return capped.compareTo(least) > 0 ? capped : least;
    }
}

package io.github.leasehold;

import java.time.Duration;
import java.util.List;

/** Others hold the resource. Nothing of the claim is left. */
public class BusyException extends LeaseholdException {
    private static final long serialVersionUID = 1L;

    private final transient List<Holder> holders;
    /** How long to wait at least. */
    private final Duration retryAfter;
    /** An operator has paused the resource. */
    private final boolean paused;

    BusyException(String message, List<Holder> holders, Duration retryAfter, boolean paused) {
        super(message, Effect.NONE, null);
        this.holders = List.copyOf(holders);
        this.retryAfter = retryAfter;
        this.paused = paused;
    }

    /**
     * Some of those who hold it.
     *
     * @return the holders, empty if an operator has paused a free resource
     */
    public List<Holder> holders() {
        return holders == null ? List.of() : holders;
    }

    /**
     * How long to wait at least before asking again. Add some time at random.
     *
     * @return a duration, zero if the server said nothing
     */
    public Duration retryAfter() {
        return retryAfter;
    }

    /**
     * Whether an operator has paused the resource.
     *
     * @return true if nothing is granted for a while
     */
    public boolean isPaused() {
        return paused;
    }
}

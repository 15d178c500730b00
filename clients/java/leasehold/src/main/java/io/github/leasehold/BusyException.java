package io.github.leasehold;

import java.time.Duration;
import java.util.List;
import java.util.Optional;

/** Others hold the resource. Nothing of the claim is left. */
public class BusyException extends LeaseholdException {
    private static final long serialVersionUID = 1L;

    private final transient List<Holder> holders;
    private final transient ForeignLock foreign;
    /** How long to wait at least. */
    private final Duration retryAfter;
    /** An operator has paused the resource. */
    private final boolean paused;

    BusyException(String message, List<Holder> holders, Optional<ForeignLock> foreign, Duration retryAfter, boolean paused) {
        super(message, Effect.NONE, null);
        this.holders = List.copyOf(holders);
        this.foreign = foreign.orElse(null);
        this.retryAfter = retryAfter;
        this.paused = paused;
    }

    /** The same with another text. */
    BusyException(String message, BusyException other) {
        this(message, other.holders(), other.foreign(), other.retryAfter, other.paused);
    }

    /**
     * Some of those who hold it.
     *
     * @return the holders, empty if an operator has paused a free resource, or another program holds it
     */
    public List<Holder> holders() {
        return holders == null ? List.of() : holders;
    }

    /**
     * The lock of another program that holds it, in the same store but without leasehold.
     *
     * @return the lock, if there is one
     */
    public Optional<ForeignLock> foreign() {
        return Optional.ofNullable(foreign);
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

package io.github.leasehold;

import java.util.OptionalInt;

/** Those who use the semaphore use another capacity. */
public final class MismatchException extends InvalidException {
    private static final long serialVersionUID = 1L;

    /** The capacity in use, or 0. */
    private final int capacity;

    MismatchException(String message, OptionalInt capacity) {
        super(message);
        this.capacity = capacity.orElse(0);
    }

    /**
     * The capacity that is in use.
     *
     * @return the capacity, if the server said it
     */
    public OptionalInt capacity() {
        return capacity == 0 ? OptionalInt.empty() : OptionalInt.of(capacity);
    }
}

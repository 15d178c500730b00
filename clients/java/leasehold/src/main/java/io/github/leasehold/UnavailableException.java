package io.github.leasehold;

import java.time.Duration;

/** No answer of the server, or none that can be believed. {@link #effect()} says whether the request may have been carried out. */
public final class UnavailableException extends LeaseholdException {
    private static final long serialVersionUID = 1L;

    /** How long to wait at least. */
    private final Duration retryAfter;

    UnavailableException(String message, Effect effect, Duration retryAfter, Throwable cause) {
        super(message, effect, cause);
        this.retryAfter = retryAfter;
    }

    UnavailableException(String message, Effect effect, Throwable cause) {
        this(message, effect, Duration.ZERO, cause);
    }

    /** An answer that is not believed. */
    static UnavailableException unknown(String message) {
        return new UnavailableException(message, Effect.UNKNOWN, null);
    }

    /** The same, of a request that may have been carried out. */
    UnavailableException withUnknownEffect() {
        return effect() == Effect.UNKNOWN ? this : new UnavailableException(getMessage(), Effect.UNKNOWN, retryAfter, this);
    }

    /**
     * How long to wait before asking again.
     *
     * @return a duration, zero if the server said nothing
     */
    public Duration retryAfter() {
        return retryAfter;
    }
}

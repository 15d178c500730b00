package io.github.leasehold;

/** The base of all exceptions of this package. None of them has an owner token or an access token in its text. */
public abstract class LeaseholdException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** Whether something may have changed. */
    private final Effect effect;

    LeaseholdException(String message, Effect effect, Throwable cause) {
        super(message, cause);
        this.effect = effect;
    }

    /**
     * Whether the request may have changed something at the server.
     *
     * @return {@link Effect#NONE} if nothing was written
     */
    public final Effect effect() {
        return effect;
    }
}

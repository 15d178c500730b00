package io.github.leasehold;

/** The request is wrong. Asking again does not help. */
public class InvalidException extends LeaseholdException {
    private static final long serialVersionUID = 1L;

    InvalidException(String message) {
        this(message, Effect.NONE);
    }

    InvalidException(String message, Effect effect) {
        super(message, effect, null);
    }
}

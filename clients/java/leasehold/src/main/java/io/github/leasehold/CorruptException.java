package io.github.leasehold;

/** The store has a value that cannot be read: somebody else wrote to its keys. */
public final class CorruptException extends LeaseholdException {
    private static final long serialVersionUID = 1L;

    CorruptException(String message, Effect effect) {
        super(message, effect, null);
    }
}

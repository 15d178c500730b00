package io.github.leasehold;

/**
 * The thread was interrupted while it waited for a lease, or the client was closed. Nothing of the claim is left, or a release that is
 * under way ends it. The thread's interrupt flag is set, as it was.
 */
public final class CancelledException extends LeaseholdException {
    private static final long serialVersionUID = 1L;

    CancelledException(String message, Throwable cause) {
        super(message, Effect.NONE, cause);
    }
}

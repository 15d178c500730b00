package io.github.leasehold;

/** There is no valid access token, it does not allow this, or the server's certificate cannot be trusted. */
public final class DeniedException extends LeaseholdException {
    private static final long serialVersionUID = 1L;

    DeniedException(String message, Effect effect, Throwable cause) {
        super(message, effect, cause);
    }
}

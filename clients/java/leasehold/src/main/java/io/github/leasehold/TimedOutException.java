package io.github.leasehold;

/** Others hold the resource, and the time to wait is over. Nothing of the claim is left. */
public final class TimedOutException extends BusyException {
    private static final long serialVersionUID = 1L;

    TimedOutException(String message, BusyException last) {
        super(message, last);
    }
}

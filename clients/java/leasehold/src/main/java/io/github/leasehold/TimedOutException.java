package io.github.leasehold;

import java.time.Duration;
import java.util.List;

/** Others hold the resource, and the time to wait is over. Nothing of the claim is left. */
public final class TimedOutException extends BusyException {
    private static final long serialVersionUID = 1L;

    TimedOutException(String message, List<Holder> holders, Duration retryAfter, boolean paused) {
        super(message, holders, retryAfter, paused);
    }
}

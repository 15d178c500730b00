package io.github.leasehold;

import java.util.Locale;

/** Why a lease has ended. */
public enum LossReason {
    /** No renewal has succeeded in time: the stop-work threshold has passed, by the monotonic clock. */
    EXPIRED,
    /** The calendar clock alone says that the time is over: this machine may have slept. */
    WALL_CLOCK,
    /** The server says that this claim holds nothing. */
    NOT_THERE,
    /** An operator evicted it. */
    EVICTED,
    /** The claim was cancelled: its owner token is used up. */
    BURIED,
    /** The program itself has released it. */
    RELEASED;

    /**
     * The stable name, as in logs and in the HTTP API.
     *
     * @return for example {@code not_there}
     */
    public String code() {
        return name().toLowerCase(Locale.ROOT);
    }

    static LossReason of(String code) {
        for (LossReason reason : values()) {
            if (reason.code().equals(code)) {
                return reason;
            }
        }
        // A reason of a later server: lost all the same.
        return NOT_THERE;
    }
}

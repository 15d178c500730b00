package io.github.leasehold;

/** The lease has ended: stop the work. Another one may be granted soon. */
public final class LostException extends LeaseholdException {
    private static final long serialVersionUID = 1L;

    /** The reason. */
    private final LossReason why;

    LostException(String message, LossReason why, Throwable cause) {
        super(message, Effect.NONE, cause);
        this.why = why;
    }

    /**
     * Why it has ended.
     *
     * @return the reason
     */
    public LossReason why() {
        return why;
    }
}

package io.github.leasehold;

/** Whether a request that failed may have changed something at the server. */
public enum Effect {
    /** Nothing was written. */
    NONE,
    /** It may have been carried out, or may still be. */
    UNKNOWN
}

package io.github.leasehold;

import java.time.Duration;
import java.util.Optional;

/**
 * A lock of another program, which uses the same store without leasehold.
 *
 * @param key its key in the store
 * @param form what it is, in the words of the store
 * @param valueHash names it in {@link Order#evictForeign}
 * @param remaining the time until it expires; empty if it has no expiry
 */
public record ForeignLock(String key, String form, String valueHash, Optional<Duration> remaining) {
    static ForeignLock read(Doc doc) {
        return new ForeignLock(doc.text("key"), doc.text("form"), doc.text("value_hash"), doc.optMillis("remaining_ms"));
    }
}

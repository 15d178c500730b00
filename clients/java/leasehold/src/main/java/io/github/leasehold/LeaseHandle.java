package io.github.leasehold;

import java.time.Duration;
import java.time.Instant;

/**
 * A lease as a plain value. Who has the owner token can renew and release the lease: keep it as you keep a password. It is not in
 * {@link #toString()}.
 *
 * @param lockKey the key of the resource
 * @param ownerToken the secret of this claim
 * @param fencingToken the fencing token, if it was asked for
 * @param acquiredAt when the request was sent, by the calendar clock
 * @param ttl the ttl that the server has given, counted from then
 */
public record LeaseHandle(String lockKey, String ownerToken, long fencingToken, Instant acquiredAt, Duration ttl) {
    @Override
    public String toString() {
        return "LeaseHandle[lockKey=" + lockKey + ", fencingToken=" + fencingToken + ", acquiredAt=" + acquiredAt + ", ttl=" + ttl + "]";
    }
}

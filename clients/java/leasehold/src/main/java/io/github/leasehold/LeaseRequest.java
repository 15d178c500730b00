package io.github.leasehold;

import java.time.Duration;
import java.util.Objects;

/**
 * What to acquire.
 *
 * @param resourceType the kind, as {@code report-export}; perhaps with a namespace, {@code acme:report-export}
 * @param resourceId the id
 * @param ttl how long the lease lasts
 * @param fencingRequired whether the handle must have a fencing token; without, it is 0
 */
public record LeaseRequest(String resourceType, String resourceId, Duration ttl, boolean fencingRequired) {
    /**
     * A request.
     *
     * @param resourceType the kind
     * @param resourceId the id
     * @param ttl how long the lease lasts
     * @param fencingRequired whether the handle must have a fencing token
     */
    public LeaseRequest {
        Objects.requireNonNull(resourceType, "resourceType");
        Objects.requireNonNull(resourceId, "resourceId");
        Objects.requireNonNull(ttl, "ttl");
    }
}

package io.github.leasehold.shedlock;

import io.github.leasehold.InvalidException;
import io.github.leasehold.Lease;
import io.github.leasehold.LeaseOptions;
import io.github.leasehold.LeaseholdClient;
import io.github.leasehold.LeaseholdException;
import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ClockProvider;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;

/**
 * A {@code LockProvider} of ShedLock that takes its locks from a leasehold server.
 *
 * <p>The lock {@code nightly} is the lease {@code shedlock/nightly}. It is not renewed: it ends after {@code lockAtMostFor}, as ShedLock
 * wants it, or is extended by {@code LockExtender} and {@code KeepAliveLockProvider}. With {@code lockAtLeastFor} it stays closed for the
 * rest of that time after the task. Only durations are sent, so the clocks of the hosts need not agree.
 *
 * <pre>{@code
 * @Bean
 * LockProvider lockProvider() {
 *     return new LeaseholdLockProvider(LeaseholdClient.connect("http://127.0.0.1:7420"));
 * }
 * }</pre>
 */
public final class LeaseholdLockProvider implements ExtensibleLockProvider {
    private final LeaseholdClient client;
    private final String kind;

    /**
     * Locks of the kind {@code shedlock}.
     *
     * @param client the client, which the caller closes
     */
    public LeaseholdLockProvider(LeaseholdClient client) {
        this(client, "shedlock");
    }

    /**
     * Locks of another kind, or in a namespace.
     *
     * @param client the client, which the caller closes
     * @param kind what stands before the slash in the names of the leases: {@code jobs}, or {@code acme:jobs}
     */
    public LeaseholdLockProvider(LeaseholdClient client, String kind) {
        this.client = Objects.requireNonNull(client, "client");
        this.kind = Objects.requireNonNull(kind, "kind");
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration configuration) {
        LeaseOptions options = LeaseOptions.defaults().ttl(atLeastOneMilli(configuration.getLockAtMostFor())).withoutRenewal();
        try {
            return client.tryAcquire(kind + "/" + configuration.getName(), options).map(lease -> new LeaseLock(configuration, lease));
        } catch (LeaseholdException error) {
            throw new LockException("The lock " + configuration.getName() + " cannot be taken: " + error.getMessage(), error);
        }
    }

    private static Duration atLeastOneMilli(Duration time) {
        return time.toMillis() < 1 ? Duration.ofMillis(1) : time;
    }

    private static final class LeaseLock extends AbstractSimpleLock {
        private static final System.Logger LOG = System.getLogger("io.github.leasehold.shedlock");

        private final Lease lease;

        private LeaseLock(LockConfiguration configuration, Lease lease) {
            super(configuration);
            this.lease = lease;
        }

        @Override
        protected void doUnlock() {
            Duration rest = Duration.between(ClockProvider.now(), lockConfiguration.getLockAtLeastUntil());
            String name = lockConfiguration.getName();
            // Thrown from here, an error would hide that of the task.
            try {
                lease.release(rest.isNegative() ? Duration.ZERO : rest);
            } catch (InvalidException refused) {
                LOG.log(System.Logger.Level.WARNING, "the lock {0} is not kept for lockAtLeastFor: {1}", name, refused.getMessage());
                lease.close();
            } catch (LeaseholdException error) {
                // The release goes on in the background.
                LOG.log(System.Logger.Level.WARNING, "the lock {0} is not released yet: {1}", name, error.getMessage());
            }
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration extended) {
            try {
                return lease.extend(atLeastOneMilli(extended.getLockAtMostFor()))
                        ? Optional.of(new LeaseLock(extended, lease))
                        : Optional.empty();
            } catch (LeaseholdException error) {
                throw new LockException("The lock " + extended.getName() + " cannot be extended: " + error.getMessage(), error);
            }
        }
    }
}

package peers;

import io.github.leasehold.Lease;
import io.github.leasehold.LeaseOptions;
import io.github.leasehold.LeaseholdClient;
import java.time.Duration;

/** The client of this repository, through the server. */
final class LeaseholdLocks implements Lock {
    private static final LeaseOptions OPTIONS = LeaseOptions.defaults().ttl(Duration.ofSeconds(30)).waitForever();

    private final LeaseholdClient client;

    private LeaseholdLocks(LeaseholdClient client) {
        this.client = client;
    }

    static LeaseholdLocks connect(String url) {
        return new LeaseholdLocks(LeaseholdClient.connect(url));
    }

    @Override
    public Release acquire(int task, String resource) {
        Lease lease = client.acquire("java/" + resource, OPTIONS);
        return () -> {
            if (!lease.release()) {
                throw new IllegalStateException(resource + " was not held any more");
            }
        };
    }
}

package peers;

import java.util.concurrent.CompletionStage;
import java.util.function.Function;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson: RLock, RFencedLock or RFairLock, without a lease time, so that its watchdog renews them. */
final class RedissonLocks implements Lock {
    private final RedissonClient client;
    private final Function<String, RLock> lockOf;

    private RedissonLocks(RedissonClient client, Function<String, RLock> lockOf) {
        this.client = client;
        this.lockOf = lockOf;
    }

    static RedissonLocks connect(String kind, String address, int tasks) {
        Config config = new Config();
        var server = config.useSingleServer().setAddress("redis://" + address);
        if (kind.equals("rfair")) {
            // A fair lock has one channel for each waiter. The defaults allow 250 of them.
            server.setSubscriptionConnectionPoolSize(50).setSubscriptionsPerConnection(Math.max(5, tasks / 25));
        }
        RedissonClient client = Redisson.create(config);
        return new RedissonLocks(client, switch (kind) {
            case "rlock" -> client::getLock;
            case "rfenced" -> client::getFencedLock;
            case "rfair" -> client::getFairLock;
            default -> throw new IllegalArgumentException("there is no lock called " + kind);
        });
    }

    @Override
    public Release acquire(int task, String resource) {
        RLock lock = lockOf.apply(resource);
        if (lock instanceof org.redisson.api.RFencedLock fenced) {
            fenced.lockAndGetToken();
        } else {
            lock.lock();
        }
        return lock::unlock;
    }

    @Override
    public CompletionStage<Void> acquireAsync(int task, String resource) {
        return lockOf.apply(resource).lockAsync(task + 1);
    }

    @Override
    public CompletionStage<Void> releaseAsync(int task, String resource) {
        return lockOf.apply(resource).unlockAsync(task + 1);
    }

    @Override
    public int waiting(String resource) {
        return client.getList("redisson_lock_queue:{" + resource + "}").size();
    }
}

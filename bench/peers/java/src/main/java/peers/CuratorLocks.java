package peers;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Curator's InterProcessMutex: one client, one object for each resource, shared by its threads. */
final class CuratorLocks implements Lock {
    private final CuratorFramework client;
    private final Map<String, InterProcessMutex> mutexes = new ConcurrentHashMap<>();

    private CuratorLocks(CuratorFramework client) {
        this.client = client;
    }

    static CuratorLocks connect(String address) throws InterruptedException {
        var client = CuratorFrameworkFactory.newClient(address, new ExponentialBackoffRetry(1000, 3));
        client.start();
        client.blockUntilConnected();
        return new CuratorLocks(client);
    }

    @Override
    public Release acquire(int task, String resource) throws Exception {
        var mutex = mutexes.computeIfAbsent(resource, name -> new InterProcessMutex(client, "/" + name));
        mutex.acquire();
        return mutex::release;
    }
}

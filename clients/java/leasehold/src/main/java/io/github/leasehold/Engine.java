package io.github.leasehold;

import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * What the parts of one client share: its clock, its connections and its threads, which are daemons.
 *
 * <p>One thread, the timer, renews all leases and tells when they end; it never waits. The threads of the pool carry requests and run
 * listeners, which may take their time.
 */
final class Engine {
    final Clock clock;
    final ScheduledThreadPoolExecutor timer;
    final ExecutorService pool;
    final Transport transport;
    final Releases releases;
    final Renewals renewals;

    Engine(Transport.Config config) {
        clock = config.clock();
        timer = new ScheduledThreadPoolExecutor(1, daemons("leasehold-renewals"));
        timer.setRemoveOnCancelPolicy(true);
        timer.setExecuteExistingDelayedTasksAfterShutdownPolicy(false);
        pool = Executors.newCachedThreadPool(daemons("leasehold-worker"));
        transport = new Transport(config, timer, pool);
        releases = new Releases(this);
        renewals = new Renewals(this);
    }

    private static ThreadFactory daemons(String name) {
        AtomicInteger count = new AtomicInteger();
        return task -> {
            Thread thread = new Thread(task, name + "-" + count.incrementAndGet());
            thread.setDaemon(true);
            return thread;
        };
    }

    /** Runs this on the timer's thread after a while. */
    void after(long nanos, Runnable task) {
        timer.schedule(task, Math.max(0, nanos), TimeUnit.NANOSECONDS);
    }

    void shutdown() {
        timer.shutdownNow();
        pool.shutdown();
    }
}

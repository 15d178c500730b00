package io.github.leasehold;

import java.time.Duration;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Phaser;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
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

    private static final Duration RETRY_IN_POOL = Duration.ofMillis(100);

    /** Acquisitions that are under way, and the client itself. */
    private final Phaser acquisitions = new Phaser(1);
    private final Set<Acquisition> underWay = ConcurrentHashMap.newKeySet();
    private volatile boolean isClosing;

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

    /** Runs this on a thread of the pool. If there is none now, because the process has too many, later. */
    void inPool(Runnable task) {
        try {
            pool.execute(task);
        } catch (RejectedExecutionException closed) {
            task.run();
        } catch (Throwable error) {
            after(RETRY_IN_POOL.toNanos(), () -> inPool(task));
        }
    }

    /** An acquisition begins, unless the client is closed. */
    void enter(Acquisition acquisition) {
        acquisitions.register();
        underWay.add(acquisition);
        if (isClosing) {
            leave(acquisition);
            throw closed(null);
        }
    }

    void leave(Acquisition acquisition) {
        underWay.remove(acquisition);
        acquisitions.arriveAndDeregister();
    }

    static CancelledException closed(Throwable cause) {
        return new CancelledException("the client is closed", cause);
    }

    /** Ends all acquisitions, and waits until they have begun to release what they may have left. */
    void cancelAcquisitions(Duration atMost) throws InterruptedException {
        isClosing = true;
        underWay.forEach(acquisition -> acquisition.stop(closed(null)));
        transport.endClaims();
        int phase = acquisitions.arrive();
        try {
            acquisitions.awaitAdvanceInterruptibly(phase, atMost.toNanos(), TimeUnit.NANOSECONDS);
        } catch (TimeoutException error) {
            return; // what they leave ends with its ttl
        }
    }

    void shutdown() {
        // First: the limits of requests end with the timer.
        transport.close();
        timer.shutdownNow();
        pool.shutdown();
    }
}

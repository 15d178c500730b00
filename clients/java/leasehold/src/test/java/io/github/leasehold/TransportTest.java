package io.github.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.URI;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Requests that cannot begin. */
@Timeout(60)
class TransportTest {
    private static final Protocol.Call QUERY = Protocol.get("/v1/overview", Map.of(), Duration.ofSeconds(30));

    private static Transport transport(ScheduledThreadPoolExecutor timer, Executor pool) {
        // Nothing is sent, so nobody need listen there.
        return new Transport(new Transport.Config(URI.create("http://127.0.0.1:9"), null, null, Clock.SYSTEM), timer, pool);
    }

    @Test
    void withoutAThreadARequestFailsAtOnce() {
        ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1);
        Transport transport = transport(timer, task -> {
            throw new OutOfMemoryError("unable to create native thread");
        });
        UnavailableException error = assertThrows(UnavailableException.class, () -> transport.call(QUERY));
        assertEquals(Effect.NONE, error.effect());
        assertTrue(timer.getQueue().stream().allMatch(task -> ((java.util.concurrent.Future<?>) task).isCancelled()), "no limit is left");
        timer.shutdownNow();
    }

    @Test
    void afterTheEndOfThePoolARequestIsCancelled() {
        ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1);
        Transport transport = transport(timer, task -> {
            throw new RejectedExecutionException();
        });
        assertThrows(CancelledException.class, () -> transport.call(QUERY));
        timer.shutdownNow();
    }

    @Test
    void aTaskRunsInThePoolOrHere() throws InterruptedException {
        Engine engine = new Engine(new Transport.Config(URI.create("http://127.0.0.1:9"), null, null, Clock.SYSTEM));
        CountDownLatch tried = new CountDownLatch(1);
        engine.inPool(tried::countDown);
        assertTrue(tried.await(30, TimeUnit.SECONDS));
        engine.shutdown();
        CountDownLatch atOnce = new CountDownLatch(1);
        engine.inPool(atOnce::countDown);
        assertEquals(0, atOnce.getCount(), "after the end it runs here: a loss is told in any case");
    }
}

package io.github.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;

import io.github.leasehold.FakeServer.Reply;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** No thread hangs when the client is closed, although the server is silent. */
@Timeout(60)
class ClosingTest extends FakeServerTest {
    private final CountDownLatch end = new CountDownLatch(1);
    private final CountDownLatch asked = new CountDownLatch(1);

    /** A client that is closed waits for its requests, so they are answered before. */
    @AfterEach
    void endTheSilence() {
        end.countDown();
    }

    private Reply silence() throws InterruptedException {
        asked.countDown();
        end.await();
        return null;
    }

    /** Closes the client while this runs, and gives its error. */
    private Throwable errorOf(Runnable work) throws Exception {
        server.tell(request -> silence());
        server.tellReleases(request -> silence());
        CompletableFuture<Throwable> ended = new CompletableFuture<>();
        Thread thread = new Thread(() -> {
            try {
                work.run();
                ended.complete(null);
            } catch (Throwable error) {
                ended.complete(error);
            }
        });
        thread.setDaemon(true);
        thread.start();
        asked.await();
        client.close();
        // Less than the time after which a request gives up by itself would take twice.
        return ended.get(30, TimeUnit.SECONDS);
    }

    @Test
    void aNoteIsCancelled() throws Exception {
        Lease lease = client.acquire("report/42");
        assertInstanceOf(CancelledException.class, errorOf(() -> lease.setNote("here")));
    }

    @Test
    void theReleaseOfAHandleIsCancelled() throws Exception {
        DistributedLeaseService service = client.leaseService();
        LeaseHandle handle = service.tryAcquire(new LeaseRequest("report", "42", Duration.ofSeconds(30), true)).orElseThrow();
        assertInstanceOf(CancelledException.class, errorOf(() -> service.release(handle)));
    }

    @Test
    void aTryIsCancelled() throws Exception {
        assertInstanceOf(CancelledException.class, errorOf(() -> client.tryAcquire("report/42")));
    }

    @Test
    void aRequestAfterTheEndIsCancelled() throws Exception {
        Engine engine = new Engine(new Transport.Config(
                java.net.URI.create(server.url()), null, null, Clock.SYSTEM));
        engine.transport.endClaims();
        Protocol.Call query = Protocol.get("/v1/overview", java.util.Map.of(), Duration.ofSeconds(5));
        assertInstanceOf(
                CancelledException.class, assertThrowsAny(() -> engine.transport.call(query)));
        engine.shutdown();
        assertEquals(0, server.requests().size());
    }

    private interface Work {
        void run() throws Exception;
    }

    private static Throwable assertThrowsAny(Work work) {
        try {
            work.run();
            return null;
        } catch (Throwable error) {
            return error;
        }
    }
}

package io.github.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.leasehold.FakeServer.Reply;
import io.github.leasehold.FakeServer.Request;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A request that was not answered may have been carried out, or may still be: also if it was sent again, and that was answered. */
@Timeout(60)
class UnansweredTest extends FakeServerTest {
    /** Closes the connection of the first request without an answer. */
    private void breakFirst(FakeServer.Script then) {
        AtomicInteger count = new AtomicInteger();
        server.tell(request -> count.getAndIncrement() == 0 ? null : then.answer(request));
    }

    private void assertTombstone() throws InterruptedException {
        Request release = server.release();
        assertTrue(release.body().containsKey("bury_ms"), "the first request may still arrive");
        assertEquals(server.requests().get(0).text("owner"), release.text("owner"));
    }

    @Test
    void theReleaseOfALeaseThatWasGrantedToARepetitionLeavesATombstone() throws InterruptedException {
        breakFirst(request -> Reply.of(200, request.grant()));
        client.tryAcquire("report/42").orElseThrow().close();
        assertTombstone();
    }

    @Test
    void aClaimWhoseRepetitionFoundAHolderIsReleased() throws InterruptedException {
        breakFirst(request -> Reply.of(423, request.refusal("contended")));
        assertTrue(client.tryAcquire("report/42").isEmpty());
        assertTombstone();
    }

    @Test
    void aClaimWhoseRepetitionWasRefusedIsReleased() throws InterruptedException {
        breakFirst(request -> Reply.of(401, request.refusal("denied")));
        assertThrows(DeniedException.class, () -> client.tryAcquire("report/42"));
        assertTombstone();
    }

    @Test
    void theEffectIsUnknownIfOnlyTheRepetitionWasNotSent() throws Exception {
        try (ServerSocket listener = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            CompletableFuture<Void> taken = CompletableFuture.runAsync(() -> takeOne(listener));
            String url = "http://" + InetAddress.getLoopbackAddress().getHostAddress() + ":" + listener.getLocalPort();
            try (LeaseholdClient other = LeaseholdClient.connect(url)) {
                UnavailableException error = assertThrows(UnavailableException.class, () -> other.tryAcquire("report/42"));
                assertEquals(Effect.UNKNOWN, error.effect());
            }
            taken.get(20, TimeUnit.SECONDS);
        }
    }

    /** Reads a request; then nobody listens, and the connection breaks. */
    private static void takeOne(ServerSocket listener) {
        try (Socket socket = listener.accept(); InputStream in = socket.getInputStream()) {
            assertNotEquals(-1, in.read());
            listener.close();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    @Test
    void theEffectIsUnknownIfAnEarlierRequestOfTheWaitWasNotAnswered() throws InterruptedException {
        AtomicInteger count = new AtomicInteger();
        server.tell(request -> count.getAndIncrement() == 0
                ? null
                : Reply.of(503, java.util.Map.of("kind", "unavailable", "effect", "none", "detail", "no store")));
        LeaseOptions options = LeaseOptions.defaults().waitAtMost(Duration.ofMillis(500));
        UnavailableException error = assertThrows(UnavailableException.class, () -> client.acquire("report/42", options));
        assertEquals(Effect.UNKNOWN, error.effect());
        assertTombstone();
    }

    @Test
    void aHandleIsReleasedWithATombstone() throws InterruptedException {
        DistributedLeaseService service = client.leaseService();
        breakFirst(request -> Reply.of(200, request.grant()));
        LeaseHandle handle = service.tryAcquire(new LeaseRequest("report", "42", Duration.ofSeconds(30), true)).orElseThrow();
        assertTrue(service.release(handle));
        assertTrue(server.release().body().containsKey("bury_ms"), "a handle does not tell what went unanswered");
    }

    @Test
    void aReleaseThatWasAnsweredLeavesNoTombstone() throws InterruptedException {
        client.tryAcquire("report/42").orElseThrow().close();
        assertFalse(server.release().body().containsKey("bury_ms"));
    }

    @Test
    void aUsedUpOwnerTokenIsReplaced() {
        server.tell(request -> server.requests().size() <= 2
                ? Reply.of(410, request.refusal("lost"))
                : Reply.of(200, request.grant()));
        Lease lease = client.acquire("report/42", LeaseOptions.defaults().waitForever());
        List<String> owners = server.requests().stream().map(request -> request.text("owner")).toList();
        assertEquals(3, owners.stream().distinct().count(), "each request has an owner token of its own");
        assertEquals(owners.get(2), lease.claim().owner());
        lease.close();
    }

    @Test
    void aTryGivesUpAfterSomeUsedUpOwnerTokens() {
        server.tell(request -> Reply.of(410, request.refusal("lost")));
        UnavailableException error = assertThrows(UnavailableException.class, () -> client.tryAcquire("report/42"));
        assertEquals(Effect.NONE, error.effect());
        assertEquals(4, server.requests().stream().map(request -> request.text("owner")).distinct().count());
    }
}

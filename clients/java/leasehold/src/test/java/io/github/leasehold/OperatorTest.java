package io.github.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** A server with access tokens, and an operator. */
@Timeout(90)
class OperatorTest {
    private static final LeaseOptions SHORT = LeaseOptions.defaults().ttl(Duration.ofSeconds(6)).waitAtMost(Duration.ZERO);

    @TempDir
    Path folder;

    private TestServer server;
    private LeaseholdClient app;
    private LeaseholdClient ops;

    @BeforeEach
    void start() throws Exception {
        Path tokens = folder.resolve("tokens.toml");
        String appToken = TestServer.newToken(tokens, "app", "client");
        String opsToken = TestServer.newToken(tokens, "ops", "operator");
        server = TestServer.start("--tokens", tokens.toString());
        app = LeaseholdClient.builder(server.url()).token(appToken).build();
        ops = LeaseholdClient.builder(server.url()).token(opsToken).build();
    }

    @AfterEach
    void stop() {
        // Also after a start that failed in the middle.
        for (LeaseholdClient client : new LeaseholdClient[] {app, ops}) {
            if (client != null) {
                client.close();
            }
        }
        if (server != null) {
            server.close();
        }
    }

    @Test
    void withoutAValidTokenNothingIsDone() {
        for (String token : new String[] {null, "lh_0123456789abcdef_" + "ab".repeat(32), "nonsense"}) {
            try (LeaseholdClient client = LeaseholdClient.builder(server.url()).token(token).build()) {
                DeniedException denied = assertThrows(DeniedException.class, () -> client.acquire("report/42"));
                assertTrue(token == null || !denied.toString().contains(token));
            }
        }
        // The subject is what the server took the holder for.
        try (Lease lease = app.acquire("report/42", SHORT)) {
            assertTrue(lease.isHeld());
            assertEquals(Optional.of("app"), ops.resource("report/42").holders().get(0).subject());
        }
    }

    @Test
    void aHolderIsAskedToFinish() throws Exception {
        try (Lease lease = app.acquire("report/42", SHORT)) {
            CompletableFuture<FinishRequest> asked = new CompletableFuture<>();
            lease.onFinishRequest(asked::complete);
            ops.order(Order.ask("report/42", Duration.ofMinutes(2), "maintenance").token(lease.token()));
            FinishRequest request = asked.get(30, TimeUnit.SECONDS);
            assertEquals("maintenance", request.why());
            assertEquals("ops", request.by());
            assertEquals(Optional.of(request.why()), lease.finishRequest().map(FinishRequest::why));
            lease.check();
        }
    }

    @Test
    void anEvictedHolderIsTold() throws Exception {
        Lease lease = app.acquire("report/42", SHORT);
        HolderChangedException changed = assertThrows(
                HolderChangedException.class, () -> ops.order(Order.evict("report/42", "it hangs").token(lease.token() - 1)));
        assertEquals(lease.token(), changed.token().getAsLong());
        assertThrows(InvalidException.class, () -> ops.order(Order.evict("report/42", "it hangs")));
        assertFalse(lease.isEvicting());
        ops.order(Order.evict("report/42", "it hangs").token(lease.token()));
        LostException loss = lease.lost().get(30, TimeUnit.SECONDS);
        assertTrue(lease.isEvicting());
        // By the clock, or by the server, which says so first on a slow machine.
        assertTrue(loss.why() == LossReason.EXPIRED || loss.why() == LossReason.EVICTED, loss.why().code());
    }

    @Test
    void aPauseHoldsOthersBack() {
        ops.order(Order.pause("report/42", Duration.ofMinutes(5), "maintenance"));
        BusyException busy = assertThrows(BusyException.class, () -> app.acquire("report/42", SHORT));
        assertTrue(busy.isPaused());
        ops.order(Order.resume("report/42", "done"));
        app.acquire("report/42", SHORT).close();
        ops.order(Order.pause("report/42", Duration.ofMinutes(5), "again"));
        assertTrue(ops.resource("report/42").pausedFor().isPresent());
    }
}

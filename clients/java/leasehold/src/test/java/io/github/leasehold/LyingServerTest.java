package io.github.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.leasehold.FakeServer.Reply;
import io.github.leasehold.FakeServer.Request;
import java.io.IOException;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Answers that are not what they seem. None of them is a grant, and each claim is released with a tombstone. */
@Timeout(60)
class LyingServerTest extends FakeServerTest {
    private record Lie(String name, FakeServer.Script script) {
        @Override
        public String toString() {
            return name;
        }
    }

    private static Lie changed(String name, String field, Object value) {
        return new Lie(name, request -> Reply.of(200, with(request.grant(), field, value)));
    }

    private static Lie headers(String name, UnaryOperator<Reply> change) {
        return new Lie(name, request -> change.apply(Reply.of(200, request.grant())));
    }

    private static Map<String, Object> with(Map<String, Object> fields, String field, Object value) {
        Map<String, Object> changed = new LinkedHashMap<>(fields);
        changed.put(field, value);
        return changed;
    }

    static List<Lie> lies() {
        return List.of(
                changed("another key", "key", "report/43"),
                changed("no key", "key", null),
                changed("another owner", "owner_hash", "0".repeat(32)),
                changed("no owner", "owner_hash", null),
                changed("an unknown verdict", "verdict", "maybe"),
                changed("queued with status 200", "verdict", "queued"),
                changed("no token", "token", null),
                changed("a token that is none", "token", "seven"),
                changed("a token that is a number", "token", 7),
                changed("another pass", "pass", "8 0 report/42"),
                changed("no ttl", "ttl_ms", null),
                changed("a negative remainder", "remaining_ms", -5),
                changed("no waited_ms", "waited_ms", null),
                headers("no leasehold server", reply -> reply.with("Leasehold-Api", "")),
                headers("another version", reply -> reply.with("Leasehold-Api", "2.0")),
                headers("no store", reply -> reply.with("Leasehold-Store", "")),
                headers("another request", reply -> reply.with("Leasehold-Request", "deadbeefdeadbeef")),
                headers("no request", reply -> reply.with("Leasehold-Request", "")),
                headers("cut", reply -> reply.with("X-Cut", "yes")),
                new Lie("granted with status 201", request -> Reply.of(201, request.grant())),
                new Lie("a redirect", request -> Reply.of(307, request.grant()).with("Location", "/v1/acquire")),
                new Lie("not JSON", request -> new Reply(200, "<html>", Map.of())),
                new Lie("an empty body", request -> new Reply(200, "", Map.of())),
                new Lie("a list", request -> new Reply(200, "[]", Map.of())),
                new Lie("deep", request -> new Reply(200, "[".repeat(100_000), Map.of())),
                new Lie("a proxy's 502", request -> new Reply(502, "Bad Gateway", Map.of("Leasehold-Api", ""))),
                new Lie("a problem without a kind", request -> Reply.of(503, Map.of("effect", "unknown"))),
                new Lie("a refusal of another claim", request -> Reply.of(
                        423, with(with(request.grant(), "kind", "contended"), "key", "report/43"))),
                new Lie("a holder of no resource", request -> Reply.of(423, Map.of("kind", "contended", "verdict", "blocked"))),
                new Lie("a loss of no claim", request -> Reply.of(410, Map.of("kind", "lost", "why", "evicted"))),
                new Lie("a verdict on another owner", request -> Reply.of(
                        423, with(with(request.grant(), "kind", "contended"), "owner_hash", "0".repeat(32)))),
                new Lie("silence", request -> null));
    }

    @ParameterizedTest
    @MethodSource("lies")
    void isNeverAGrant(Lie lie) throws InterruptedException {
        server.tell(lie.script);
        UnavailableException error = assertThrows(UnavailableException.class, () -> client.tryAcquire("report/42"));
        assertEquals(Effect.UNKNOWN, error.effect());
        Request release = server.release();
        assertEquals("report/42", release.text("resource"));
        assertTrue((Long) release.body().get("bury_ms") >= 180_000);
        String owner = server.requests().get(0).text("owner");
        assertEquals(owner, release.text("owner"));
        assertFalse(error.toString().contains(owner));
    }

    @Test
    void anotherStoreIsNotBelievedAndNothingIsTakenForAWhile() {
        assertTrue(client.tryAcquire("report/1").isPresent());
        server.tell(request -> Reply.of(200, request.grant()).with("Leasehold-Store", "store-b"));
        assertThrows(UnavailableException.class, () -> client.tryAcquire("report/2"));
        server.tell(request -> Reply.of(200, request.grant()));
        UnavailableException error = assertThrows(UnavailableException.class, () -> client.tryAcquire("report/3"));
        assertEquals(Effect.NONE, error.effect());
    }

    @Test
    void aRenewalThatNamesAnotherLeaseRenewsNothing() throws Exception {
        TestClock clock = new TestClock();
        try (LeaseholdClient other = LeaseholdClient.builder(server.url()).clock(clock).build()) {
            Lease lease = other.acquire("report/42");
            CountDownLatch renewals = new CountDownLatch(2);
            server.tell(request -> {
                renewals.countDown();
                return request.renewals(kept -> with(kept, "key", "report/43"));
            });
            clock.stopProcess(Duration.ofSeconds(11));
            // The second one is sent after the first one was judged.
            assertTrue(renewals.await(30, TimeUnit.SECONDS));
            clock.stopProcess(Duration.ofMinutes(1));
            LostException loss = lease.lost().get(30, TimeUnit.SECONDS);
            assertEquals(LossReason.EXPIRED, loss.why());
            assertTrue(loss.getCause().getMessage().contains("another claim"), String.valueOf(loss.getCause()));
        }
    }

    @Test
    void aGrantThatComesTooLateIsGivenBack() throws InterruptedException {
        Duration ttl = Duration.ofMillis(800);
        server.tell(request -> {
            if (server.requests().size() == 1) {
                Thread.sleep(ttl.toMillis());
            }
            return Reply.of(200, request.grant());
        });
        Lease lease = client.acquire("report/42", LeaseOptions.defaults().ttl(ttl));
        String late = server.requests().get(0).text("owner");
        assertEquals(late, server.release().text("owner"));
        assertNotEquals(late, lease.claim().owner(), "the next claim has an owner token of its own");
    }

    @Test
    void aGrantThatIsOverByTheCalendarClockIsGivenBack() throws InterruptedException {
        TestClock clock = new TestClock();
        server.tell(request -> {
            if (server.requests().size() == 1) {
                clock.moveWall(Duration.ofHours(1));
            }
            return Reply.of(200, request.grant());
        });
        try (LeaseholdClient other = LeaseholdClient.builder(server.url()).clock(clock).build()) {
            Lease lease = other.acquire("report/42");
            lease.check();
            String late = server.requests().get(0).text("owner");
            assertEquals(late, server.release().text("owner"));
            assertNotEquals(late, lease.claim().owner());
        }
    }

    @Test
    void aGrantIsNoLongerThanItsRequest() {
        server.tell(request -> Reply.of(
                200, with(with(with(request.grant(), "ttl_ms", 3_600_000), "remaining_ms", 3_600_000), "waited_ms", 3_600_000)));
        Lease lease = client.acquire("report/42");
        assertEquals(Duration.ofSeconds(30), lease.ttl());
        // What the server may have waited is part of the time that has passed.
        assertTrue(lease.remaining().compareTo(Duration.ofSeconds(30)) < 0, lease.remaining().toString());
        lease.close();
    }

    @Test
    void aGrantIsNotBelievedWhileAnotherRequestMeetsAnotherStore() throws Exception {
        client.tryAcquire("report/1").orElseThrow();
        CountDownLatch isAsked = new CountDownLatch(1);
        CountDownLatch metAnother = new CountDownLatch(1);
        server.tell(request -> {
            if (!request.isAcquire()) {
                return Reply.of(200, Map.of()).with("Leasehold-Store", "store-b");
            }
            isAsked.countDown();
            metAnother.await();
            return Reply.of(200, request.grant());
        });
        CompletableFuture<UnavailableException> tried = CompletableFuture.supplyAsync(
                () -> assertThrows(UnavailableException.class, () -> client.tryAcquire("report/42")));
        isAsked.await();
        assertThrows(UnavailableException.class, () -> client.resource("report/42"));
        metAnother.countDown();
        assertEquals(Effect.UNKNOWN, tried.get(30, TimeUnit.SECONDS).effect());
        assertTrue(server.release().body().containsKey("bury_ms"));
    }

    @Test
    void anOrderForAnotherResourceIsNotBelieved() {
        server.tell(request -> Reply.of(200, Map.of("verdict", "done", "resource", "report/43", "key", "report/43")));
        Order order = Order.evictForeign("report/42", "0123456789abcdef", "it hangs");
        assertThrows(UnavailableException.class, () -> client.order(order));
        assertEquals("0123456789abcdef", server.requests().get(0).text("value_hash"));
        server.tell(request -> Reply.of(200, Map.of("verdict", "done", "resource", "report/42", "key", "report/42")));
        client.order(order);
    }

    @Test
    void theLockOfAnotherProgramIsShown() {
        Map<String, Object> lock = Map.of("key", "lock:report", "form", "a string", "value_hash", "0123456789abcdef", "remaining_ms", 5000);
        server.tell(request -> Reply.of(423, with(request.refusal("contended"), "foreign", lock)));
        BusyException busy = assertThrows(
                BusyException.class, () -> client.acquire("report/42", LeaseOptions.defaults().waitAtMost(Duration.ZERO)));
        ForeignLock foreign = busy.foreign().orElseThrow();
        assertEquals("0123456789abcdef", foreign.valueHash());
        assertEquals(Duration.ofSeconds(5), foreign.remaining().orElseThrow());
        assertTrue(busy.holders().isEmpty());
    }

    @Test
    void aTextOfTheServerIsOneLineWithoutEscapeSequences() {
        String evil = "first\nsecond \u001b[31m\u009b31m\u202e red" + "x".repeat(5000);
        server.tell(request -> Reply.of(403, with(with(request.refusal("denied"), "detail", evil), "hint", "a\rb")));
        DeniedException denied = assertThrows(DeniedException.class, () -> client.tryAcquire("report/42"));
        assertTrue(denied.getMessage().startsWith("report/42: first second"), denied.getMessage());
        assertTrue(denied.getMessage().chars().noneMatch(c -> Character.isISOControl(c) || c == 0x202e));
        assertTrue(denied.getMessage().length() < 2000);
    }

    @Test
    void optionsAreSent() {
        LeaseOptions options = LeaseOptions.defaults().level("quorum").tokenAbove(6);
        client.acquire("report/42", options).close();
        Request asked = server.requests().get(0);
        assertEquals("quorum", asked.text("level"));
        assertTrue(asked.body().containsValue("6") || asked.body().containsValue(6L), asked.body().keySet().toString());
    }

    @Test
    void aTryWhoseGrantComesTooLateHasNoEffect() throws InterruptedException {
        server.tell(request -> {
            Thread.sleep(500);
            return Reply.of(200, request.grant());
        });
        LeaseOptions options = LeaseOptions.defaults().ttl(Duration.ofMillis(500));
        UnavailableException error = assertThrows(UnavailableException.class, () -> client.tryAcquire("report/42", options));
        assertEquals(Effect.NONE, error.effect());
        server.release();
    }

    @Test
    void theTokenOfTheCallerIsInNoMessage() {
        String secret = "lh_0123456789abcdef_" + "ab".repeat(32);
        try (LeaseholdClient other = LeaseholdClient.builder(server.url()).token(secret + "\n").build()) {
            InvalidException error = assertThrows(InvalidException.class, () -> other.tryAcquire("report/42"));
            assertFalse(error.toString().contains("lh_"), error.toString());
        }
    }

    @Test
    void aServerThatIsNotThereHasNoEffect() throws IOException {
        int port;
        try (ServerSocket socket = new ServerSocket(0)) {
            port = socket.getLocalPort();
        }
        try (LeaseholdClient other = LeaseholdClient.connect("http://127.0.0.1:" + port)) {
            UnavailableException error = assertThrows(UnavailableException.class, () -> other.tryAcquire("report/42"));
            assertEquals(Effect.NONE, error.effect());
        }
    }

    @Test
    void closingIsQuickWhenNobodyAnswers() {
        Lease lease = client.acquire("report/42");
        server.close();
        long started = System.nanoTime();
        lease.close();
        assertTrue(System.nanoTime() - started < Duration.ofSeconds(15).toNanos());
        assertThrows(LostException.class, lease::check);
    }
}

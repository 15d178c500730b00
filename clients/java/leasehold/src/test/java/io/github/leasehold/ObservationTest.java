package io.github.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.leasehold.FakeServer.Reply;
import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What observers of an election see while something is wrong. */
@Timeout(60)
class ObservationTest {
    private FakeServer server;
    private LeaseholdClient client;
    private final BlockingQueue<Optional<Leader>> seen = new LinkedBlockingQueue<>();

    @BeforeEach
    void start() throws IOException {
        server = new FakeServer(request -> Reply.of(200, state(leader("7"))));
        client = LeaseholdClient.connect(server.url());
    }

    @AfterEach
    void stop() {
        client.close();
        server.close();
    }

    private static Map<String, Object> leader(String token) {
        return Map.of(
                "holder", Map.of("host", "a", "pid", 1),
                "token", token, "weight", 1, "held_for_ms", 0, "remaining_ms", 30_000, "note", "a:8080");
    }

    private static Map<String, Object> state(Object... holders) {
        Map<String, Object> state = new LinkedHashMap<>();
        state.put("resource", "scheduler/eu");
        state.put("key", "scheduler/eu");
        state.put("capacity", 1);
        state.put("holders", List.of(holders));
        state.put("holder_count", holders.length);
        state.put("queue_length", 0);
        state.put("cursor", "c");
        return state;
    }

    private static Map<String, Object> unreadable() {
        Map<String, Object> state = state();
        state.put("unreadable", "the key is\u001b[31m corrupt");
        return state;
    }

    private long nextToken() throws InterruptedException {
        Optional<Leader> next = seen.poll(30, TimeUnit.SECONDS);
        assertTrue(next != null && next.isPresent(), "somebody leads: " + next);
        return next.get().token();
    }

    /** Answers so twice, at least. */
    private void answerTwice(Reply reply) throws InterruptedException {
        CountDownLatch answered = new CountDownLatch(2);
        server.tell(request -> {
            answered.countDown();
            return reply;
        });
        assertTrue(answered.await(30, TimeUnit.SECONDS), "the observation goes on");
    }

    @Test
    void theLastLeaderStandsWhileTheResourceCannotBeRead() throws InterruptedException {
        try (Observation observation = client.observe("scheduler/eu", seen::add)) {
            assertEquals(7, nextToken());
            answerTwice(Reply.of(200, unreadable()));
            server.tell(request -> Reply.of(200, state(leader("8"))));
            assertEquals(8, nextToken());
        }
    }

    @Test
    void nobodyKnowsTheLeaderOfAResourceThatCannotBeRead() {
        server.tell(request -> Reply.of(200, unreadable()));
        CorruptException error = assertThrows(CorruptException.class, () -> client.leader("scheduler/eu"));
        assertTrue(error.getMessage().contains("corrupt"));
        assertEquals(-1, error.getMessage().indexOf('\u001b'));
    }

    @Test
    void theLastLeaderStandsDuringAnOutage() throws InterruptedException {
        try (Observation observation = client.observe("scheduler/eu", seen::add)) {
            assertEquals(7, nextToken());
            answerTwice(Reply.of(503, Map.of("kind", "unavailable", "effect", "none")));
            server.tell(request -> Reply.of(200, state(leader("8"))));
            assertEquals(8, nextToken());
        }
    }

    @Test
    void aRefusalEndsItAndIsTold() throws Exception {
        try (Observation observation = client.observe("scheduler/eu", seen::add)) {
            assertEquals(7, nextToken());
            server.tell(request -> Reply.of(401, Map.of("kind", "unauthenticated", "effect", "none")));
            LeaseholdException refused = observation.refused().get(30, TimeUnit.SECONDS);
            assertInstanceOf(DeniedException.class, refused);
            assertEquals(null, seen.poll(), "no leader, and no word that nobody leads");
        }
    }

    @Test
    void anErrorOfTheListenerDoesNotEndIt() throws InterruptedException {
        try (Observation observation = client.observe("scheduler/eu", leader -> {
            seen.add(leader);
            throw new AssertionError("the listener fails");
        })) {
            assertEquals(7, nextToken());
            server.tell(request -> Reply.of(200, state(leader("8"))));
            assertEquals(8, nextToken());
        }
    }
}

package io.github.leasehold.shedlock;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.leasehold.FakeServer;
import io.github.leasehold.FakeServer.Reply;
import io.github.leasehold.LeaseholdClient;
import java.time.Duration;
import net.javacrumbs.shedlock.core.ClockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A server that does not keep a resource closed for as long as lockAtLeastFor says. */
@Timeout(60)
class RefusedReleaseTest {
    @Test
    void theLockIsReleasedAtOnce() throws Exception {
        try (FakeServer server = new FakeServer(request -> Reply.of(200, request.grant()));
                LeaseholdClient client = LeaseholdClient.connect(server.url())) {
            server.tellReleases(request -> request.body().containsKey("keep_for_ms")
                    ? Reply.of(422, request.refusal("limit"))
                    : Reply.of(200, request.released()));
            LockConfiguration nightly =
                    new LockConfiguration(ClockProvider.now(), "nightly", Duration.ofMinutes(10), Duration.ofMinutes(5));
            new LeaseholdLockProvider(client).lock(nightly).orElseThrow().unlock();
            assertTrue(server.release().body().containsKey("keep_for_ms"));
            assertFalse(server.release().body().containsKey("keep_for_ms"));
        }
    }
}

package io.github.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.leasehold.FakeServer.Reply;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Renewals: what their answers mean, and what must not stop them. */
@Timeout(60)
class RenewalTest {
    /** After so long, a lease of 30 s is renewed, and has much time left. */
    private static final Duration UNTIL_RENEWAL = Duration.ofSeconds(11);

    private FakeServer server;
    private final TestClock clock = new TestClock();

    @BeforeEach
    void start() throws IOException {
        server = new FakeServer(request -> request.isAcquire() ? Reply.of(200, request.grant()) : request.renewals(kept -> kept));
    }

    @AfterEach
    void stop() {
        server.close();
    }

    private LeaseholdClient.Builder builder() {
        return LeaseholdClient.builder(server.url()).clock(clock);
    }

    private static Map<String, Object> with(Map<String, Object> fields, String field, Object value) {
        fields.put(field, value);
        return fields;
    }

    private void assertIsNotThere(FakeServer.Script renewal) throws Exception {
        try (LeaseholdClient client = builder().build()) {
            Lease lease = client.acquire("report/42");
            server.tell(renewal);
            clock.stopProcess(UNTIL_RENEWAL);
            assertEquals(LossReason.NOT_THERE, lease.lost().get(30, TimeUnit.SECONDS).why());
            lease.close();
            // The claim may have another grant, or get one.
            assertTrue(server.release().body().containsKey("bury_ms"));
        }
    }

    @Test
    void aRenewalOfAnotherGrantEndsTheLease() throws Exception {
        assertIsNotThere(request -> request.renewals(kept -> with(kept, "grant", "9")));
    }

    @Test
    void aClaimThatOnlyWaitsHasLostItsLease() throws Exception {
        assertIsNotThere(request -> request.renewals(kept -> with(with(kept, "verdict", "queued"), "status", 202)));
    }

    @Test
    void aNoteOnAnotherGrantEndsTheLease() {
        try (LeaseholdClient client = builder().build()) {
            Lease lease = client.acquire("report/42");
            server.tell(request -> Reply.of(200, with(request.kept(), "grant", "9")));
            assertThrows(LostException.class, () -> lease.setNote("here"));
            assertFalse(lease.isHeld());
        }
    }

    @Test
    void aHandleIsNotExtendedUnderAnotherGrant() throws IOException {
        try (LeaseholdClient client = builder().build()) {
            DistributedLeaseService service = client.leaseService();
            LeaseHandle handle = service.tryAcquire(new LeaseRequest("report", "42", Duration.ofSeconds(30), true)).orElseThrow();
            server.tell(request -> Reply.of(200, with(request.kept(), "grant", "7")));
            assertTrue(service.extend(handle, Duration.ofSeconds(30)));
            server.tell(request -> Reply.of(200, with(request.kept(), "grant", "9")));
            assertFalse(service.extend(handle, Duration.ofSeconds(30)));
            server.tell(request -> Reply.of(202, with(request.kept(), "verdict", "queued")));
            assertFalse(service.extend(handle, Duration.ofSeconds(30)));
        }
    }

    @Test
    void aRenewalGivesNoMoreThanItAskedFor() {
        try (LeaseholdClient client = builder().build()) {
            Lease lease = client.acquire("report/42");
            server.tell(request -> Reply.of(200, with(with(request.kept(), "ttl_ms", 3_600_000), "remaining_ms", 3_600_000)));
            lease.setNote("here");
            assertTrue(lease.remaining().compareTo(lease.ttl()) <= 0);
            assertEquals(Duration.ofSeconds(30), lease.ttl());
        }
    }

    @Test
    void aSuspendIsNoticedAfterTheCalendarClockWasSetBack() {
        clock.moveWall(Duration.ofHours(1));
        try (LeaseholdClient client = builder().build()) {
            Lease lease = client.acquire("report/42");
            clock.moveWall(Duration.ofHours(-1));
            server.tell(request -> Reply.of(200, request.kept()));
            lease.setNote("renewed");
            lease.check();
            // The machine sleeps. On Linux, only the calendar clock tells.
            clock.moveWall(Duration.ofMinutes(10));
            assertEquals(LossReason.WALL_CLOCK, assertThrows(LostException.class, lease::check).why());
            assertEquals(Duration.ZERO, lease.remaining());
        }
    }

    @Test
    void aSuspendIsToldLongBeforeTheNextRenewal() throws Exception {
        try (LeaseholdClient client = builder().build()) {
            // Renewed after a minute. The test is over before.
            Lease lease = client.acquire("report/42", LeaseOptions.defaults().ttl(Duration.ofMinutes(5)));
            clock.moveWall(Duration.ofMinutes(10));
            assertEquals(LossReason.WALL_CLOCK, lease.lost().get(40, TimeUnit.SECONDS).why());
        }
    }

    @Test
    void theRestIsThatOfTheEarlierClock() {
        try (LeaseholdClient client = builder().build()) {
            Lease lease = client.acquire("report/42");
            clock.moveWall(Duration.ofSeconds(20));
            assertTrue(lease.remaining().compareTo(Duration.ofSeconds(6)) < 0);
        }
    }

    @Test
    void aLossIsToldWhileTheSourceOfTheTokenBlocks() throws Exception {
        AtomicBoolean blocks = new AtomicBoolean();
        CountDownLatch isBlocked = new CountDownLatch(1);
        CountDownLatch end = new CountDownLatch(1);
        try (LeaseholdClient client = builder().token(() -> blockIf(blocks, isBlocked, end)).build()) {
            Lease lease = client.acquire("report/42");
            blocks.set(true);
            clock.stopProcess(UNTIL_RENEWAL);
            assertTrue(isBlocked.await(30, TimeUnit.SECONDS));
            clock.stopProcess(Duration.ofMinutes(1));
            assertEquals(LossReason.EXPIRED, lease.lost().get(40, TimeUnit.SECONDS).why());
            end.countDown();
        }
    }

    private static String blockIf(AtomicBoolean blocks, CountDownLatch isBlocked, CountDownLatch end) {
        try {
            if (blocks.get()) {
                isBlocked.countDown();
                end.await();
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        return null;
    }

    @Test
    void anErrorOfTheSourceOfTheTokenDoesNotEndTheRenewals() throws Exception {
        AtomicBoolean fails = new AtomicBoolean();
        CountDownLatch failed = new CountDownLatch(1);
        try (LeaseholdClient client = builder().token(() -> failIf(fails, failed)).build()) {
            Lease lease = client.acquire("report/42");
            fails.set(true);
            clock.stopProcess(UNTIL_RENEWAL);
            assertTrue(failed.await(30, TimeUnit.SECONDS));
            fails.set(false);
            CountDownLatch renewed = new CountDownLatch(1);
            server.tell(request -> {
                renewed.countDown();
                return request.renewals(kept -> kept);
            });
            assertTrue(renewed.await(30, TimeUnit.SECONDS), "it is renewed after the error");
            lease.close();
        }
    }

    private static String failIf(AtomicBoolean fails, CountDownLatch failed) {
        if (fails.get()) {
            failed.countDown();
            throw new AssertionError("the source of the token fails");
        }
        return null;
    }

    @Test
    void aListenerThatFailsStopsNoOther() throws Exception {
        try (LeaseholdClient client = builder().build()) {
            Lease lease = client.acquire("report/42");
            CompletableFuture<LostException> told = new CompletableFuture<>();
            lease.onLost(loss -> {
                throw new AssertionError("this listener fails");
            });
            lease.onLost(told::complete);
            clock.stopProcess(Duration.ofMinutes(1));
            assertEquals(LossReason.EXPIRED, told.get(20, TimeUnit.SECONDS).why());
        }
    }

    @Test
    void withLockTellsALossAfterTheBody() {
        try (LeaseholdClient client = builder().build()) {
            LostException loss = assertThrows(LostException.class, () -> client.withLock("report/42", () -> {
                clock.stopProcess(Duration.ofMinutes(1));
                return "result";
            }));
            assertEquals(LossReason.EXPIRED, loss.why());
            IllegalStateException mine = new IllegalStateException("mine");
            assertEquals(mine, assertThrows(IllegalStateException.class, () -> client.withLock("report/42", (Runnable) () -> {
                clock.stopProcess(Duration.ofMinutes(1));
                throw mine;
            })));
        }
    }

    @Test
    void theBodyMayReleaseItsLease() {
        try (LeaseholdClient client = builder().build()) {
            assertEquals("result", client.withLock("report/42", LeaseOptions.defaults(), lease -> {
                lease.close();
                return "result";
            }));
        }
    }

    @Test
    void aBodyUnderAClientThatWasClosedHasLostItsLease() {
        try (LeaseholdClient client = builder().build()) {
            assertThrows(LostException.class, () -> client.withLock("report/42", () -> {
                client.close();
                return List.of();
            }));
        }
    }
}

package io.github.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Leases of a real server. */
@Timeout(90)
class LeaseTest {
    private static final LeaseOptions NO_WAIT = LeaseOptions.defaults().waitAtMost(Duration.ZERO);

    private TestServer server;
    private LeaseholdClient client;
    private LeaseholdClient other;

    @BeforeEach
    void start() {
        server = TestServer.start();
        client = LeaseholdClient.builder(server.url()).label("the test").host("test-host").build();
        other = LeaseholdClient.connect(server.url());
    }

    @AfterEach
    void stop() {
        if (server != null) {
            client.close();
            other.close();
            server.close();
        }
    }

    private int holders(String name) {
        return other.resource(name).holderCount();
    }

    /** Waits until so many claims wait for the resource. */
    private void awaitQueue(String name, int length) throws InterruptedException {
        while (other.resource(name).queueLength() != length) {
            Thread.sleep(10);
        }
    }

    @Test
    void isHeldUntilItIsClosed() {
        long first;
        try (Lease lease = client.acquire("report/42")) {
            lease.check();
            first = lease.token();
            assertTrue(lease.pass().startsWith(first + " "));
            assertEquals(Duration.ofSeconds(30), lease.ttl());
            assertTrue(lease.remaining().compareTo(Duration.ofSeconds(20)) > 0);
            assertTrue(lease.number().isEmpty());
            assertEquals(1, holders("report/42"));
        }
        assertEquals(0, holders("report/42"));
        Lease second = other.acquire("report/42");
        assertTrue(second.token() > first);
        assertTrue(second.release());
        assertFalse(second.release());
        assertEquals(LossReason.RELEASED, assertThrows(LostException.class, second::check).why());
        assertEquals(Duration.ZERO, second.remaining());
    }

    @Test
    void othersAreToldWhoHoldsIt() {
        try (Lease lease = client.acquire("report/42")) {
            assertTrue(other.tryAcquire("report/42").isEmpty());
            BusyException busy = assertThrows(BusyException.class, () -> other.acquire("report/42", NO_WAIT));
            Holder holder = busy.holders().get(0);
            assertEquals("test-host", holder.host());
            assertEquals(ProcessHandle.current().pid(), holder.pid());
            assertEquals("the test", holder.label());
            assertEquals(lease.token(), holder.token());
            assertTrue(busy.retryAfter().toMillis() > 0);
            LeaseOptions shortly = LeaseOptions.defaults().waitAtMost(Duration.ofMillis(300));
            assertThrows(TimedOutException.class, () -> other.acquire("report/42", shortly));
            assertEquals(0, other.resource("report/42").queueLength());
        }
    }

    @Test
    void anInterruptLeavesNothingAndKeepsTheFlag() throws Exception {
        try (Lease lease = client.acquire("report/42")) {
            CompletableFuture<Boolean> flag = new CompletableFuture<>();
            Thread waiter = new Thread(() -> {
                try {
                    other.acquire("report/42", LeaseOptions.defaults().waitForever()).close();
                } catch (CancelledException error) {
                    flag.complete(Thread.currentThread().isInterrupted());
                }
            });
            waiter.start();
            awaitQueue("report/42", 1);
            waiter.interrupt();
            assertTrue(flag.get(10, TimeUnit.SECONDS));
            awaitQueue("report/42", 0);
        }
        assertEquals(0, holders("report/42"));
    }

    @Test
    void anInterruptedThreadAsksForNothing() {
        Thread.currentThread().interrupt();
        assertThrows(CancelledException.class, () -> client.acquire("report/42"));
        assertTrue(Thread.interrupted());
        assertEquals(0, holders("report/42"));
    }

    @Test
    void closingDoesNotDependOnTheThread() throws InterruptedException {
        Lease lease = client.acquire("report/42");
        Thread.currentThread().interrupt();
        lease.close();
        assertTrue(Thread.interrupted(), "the flag is kept");
        while (holders("report/42") != 0) {
            Thread.sleep(10);
        }
    }

    @Test
    void theErrorOfTheBodyIsTheOnlyOne() {
        IllegalArgumentException mine = new IllegalArgumentException("mine");
        IllegalArgumentException thrown = assertThrows(IllegalArgumentException.class, () -> client.withLock("report/42", () -> {
            server.close();
            throw mine;
        }));
        assertSame(mine, thrown);
        assertEquals(0, thrown.getSuppressed().length);
        server = TestServer.start();
    }

    @Test
    void withLockGivesWhatTheBodyGives() throws Exception {
        assertEquals(1, (int) client.withLock("report/42", () -> holders("report/42")));
        AtomicBoolean ran = new AtomicBoolean();
        client.withLock("report/42", () -> ran.set(true));
        assertTrue(ran.get());
        try (Lease lease = client.acquire("report/42")) {
            assertThrows(BusyException.class, () -> other.withLock("report/42", NO_WAIT, mine -> mine.token()));
        }
        assertEquals(0, holders("report/42"));
    }

    @Test
    void isRenewedPastItsTtl() throws InterruptedException {
        try (Lease lease = client.acquire("report/42", LeaseOptions.defaults().ttl(Duration.ofSeconds(6)))) {
            CountDownLatch over = new CountDownLatch(1);
            other.acquire("timer/1", LeaseOptions.defaults().ttl(Duration.ofSeconds(8)).withoutRenewal())
                    .onLost(loss -> over.countDown());
            assertTrue(over.await(30, TimeUnit.SECONDS));
            lease.check();
            assertEquals(1, holders("report/42"));
        }
    }

    @Test
    void withoutRenewalItEndsByTheClock() throws Exception {
        Lease lease = client.acquire("report/42", LeaseOptions.defaults().ttl(Duration.ofMillis(500)).withoutRenewal());
        assertTrue(lease.extend(Duration.ofSeconds(1)));
        LostException loss = lease.lost().get(20, TimeUnit.SECONDS);
        assertEquals(LossReason.EXPIRED, loss.why());
        assertFalse(lease.isHeld());
        assertFalse(lease.extend(Duration.ofSeconds(1)));
        CompletableFuture<LostException> late = new CompletableFuture<>();
        lease.onLost(late::complete);
        assertSame(loss, late.get(20, TimeUnit.SECONDS));
    }

    @Test
    void anExtensionNeverShortens() {
        Lease lease = client.acquire("report/42", LeaseOptions.defaults().ttl(Duration.ofMinutes(5)).withoutRenewal());
        assertTrue(lease.extend(Duration.ofSeconds(10)));
        assertTrue(lease.remaining().compareTo(Duration.ofMinutes(4)) > 0);
        lease.close();
    }

    @Test
    void theResourceStaysClosedAfterTheRelease() {
        assertTrue(client.acquire("report/42").release(Duration.ofMinutes(1)));
        assertTrue(other.tryAcquire("report/42").isEmpty());
        assertTrue(client.leader("report/42").isEmpty());
    }

    @Test
    void semaphoresReadersAndWriters() {
        LeaseOptions one = NO_WAIT.share(Share.of(1, 2));
        try (Lease first = client.acquire("db/main", one); Lease second = client.acquire("db/main", one)) {
            assertTrue(first.number().isPresent());
            assertThrows(IllegalStateException.class, first::token);
            assertThrows(IllegalStateException.class, second::pass);
            assertThrows(BusyException.class, () -> client.acquire("db/main", one));
            MismatchException mismatch = assertThrows(MismatchException.class, () -> client.acquire("db/main", NO_WAIT.share(Share.of(1, 3))));
            assertEquals(2, mismatch.capacity().getAsInt());
        }
        try (Lease reader = client.acquire("doc/1", NO_WAIT.share(Share.READ))) {
            other.acquire("doc/1", NO_WAIT.share(Share.READ)).close();
            assertThrows(BusyException.class, () -> other.acquire("doc/1", NO_WAIT.share(Share.WRITE)));
        }
        try (Lease writer = client.acquire("doc/1", NO_WAIT.share(Share.WRITE))) {
            assertTrue(writer.token() > 0, "a writer is alone");
            assertThrows(BusyException.class, () -> other.acquire("doc/1", NO_WAIT.share(Share.READ)));
        }
        assertThrows(InvalidException.class, () -> Share.of(3, 2));
    }

    @Test
    void severalAreAcquiredInTheOrderOfTheirKeys() {
        List<String> names = List.of("box/b", "box/a c", "box/B", "acme:box/z", "box/a");
        try (Leases all = client.acquireAll(names, NO_WAIT)) {
            List<String> order = all.all().stream().map(Lease::resource).toList();
            assertEquals(List.of("acme:box/z", "box/B", "box/a", "box/a c", "box/b"), order);
            all.check();
            assertThrows(BusyException.class, () -> other.acquireAll(List.of("box/0", "box/b"), NO_WAIT));
            assertEquals(0, holders("box/0"));
        }
        assertEquals(List.of(), other.list("box/"));
        assertThrows(InvalidException.class, () -> client.acquireAll(List.of("a/1", "a/1"), NO_WAIT));
    }

    @Test
    void theLossOfOneEndsTheWaitForTheNext() throws Exception {
        try (Lease blocking = other.acquire("box/b")) {
            LeaseOptions options = LeaseOptions.defaults().waitForever();
            CompletableFuture<LostException> ended = new CompletableFuture<>();
            TestClock clock = new TestClock();
            LeaseholdClient slept = LeaseholdClient.builder(server.url()).clock(clock).build();
            Thread waiter = new Thread(() -> ended.complete(
                    assertThrows(LostException.class, () -> slept.acquireAll(List.of("box/a", "box/b"), options))));
            waiter.start();
            awaitQueue("box/b", 1);
            clock.moveWall(Duration.ofMinutes(1));
            assertEquals(LossReason.WALL_CLOCK, ended.get(30, TimeUnit.SECONDS).why());
            assertTrue(blocking.isHeld(), "it did not wait until the next one was free");
            awaitQueue("box/b", 0);
            while (holders("box/a") != 0) {
                Thread.sleep(10);
            }
            slept.close();
        }
    }

    @Test
    void observersSeeTheLeaderAndItsNote() throws InterruptedException {
        BlockingQueue<Optional<Leader>> seen = new LinkedBlockingQueue<>();
        try (Observation observation = other.observe("scheduler/eu", seen::add)) {
            assertEquals(Optional.empty(), seen.poll(20, TimeUnit.SECONDS));
            try (Lease lease = client.acquire("scheduler/eu", NO_WAIT.note("a:8080"))) {
                Leader leader = seen.poll(20, TimeUnit.SECONDS).orElseThrow();
                assertEquals(lease.token(), leader.token());
                assertEquals(Optional.of("a:8080"), leader.value());
                lease.setNote("a:9090");
                assertEquals(Optional.of("a:9090"), seen.poll(20, TimeUnit.SECONDS).orElseThrow().value());
                lease.setNote(Note.of(new byte[] {(byte) 0xff}));
                leader = seen.poll(20, TimeUnit.SECONDS).orElseThrow();
                assertEquals(Optional.empty(), leader.value());
                assertEquals(Note.of(new byte[] {(byte) 0xff}), leader.note().orElseThrow());
                assertEquals(leader, client.leader("scheduler/eu").orElseThrow());
            }
            assertEquals(Optional.empty(), seen.poll(20, TimeUnit.SECONDS));
        }
    }

    @Test
    void theServiceOfPlainValues() {
        DistributedLeaseService service = client.leaseService();
        LeaseRequest request = new LeaseRequest("report-export", "a b", Duration.ofSeconds(30), true);
        LeaseHandle a = service.tryAcquire(request).orElseThrow();
        assertEquals("report-export/a%20b", a.lockKey());
        assertTrue(a.fencingToken() > 0);
        assertFalse(a.toString().contains(a.ownerToken()));
        assertTrue(service.tryAcquire(request).isEmpty());
        assertTrue(service.extend(a, Duration.ofSeconds(60)));
        // Another client can end it: the handle is all that it takes.
        assertTrue(other.leaseService().release(a));
        assertFalse(service.release(a));
        assertFalse(service.extend(a, Duration.ofSeconds(60)));
        LeaseHandle b = service.tryAcquire(request).orElseThrow();
        assertTrue(b.fencingToken() > a.fencingToken());
        LeaseRequest unfenced = new LeaseRequest("report-export", "c", Duration.ofSeconds(30), false);
        assertEquals(0, service.tryAcquire(unfenced).orElseThrow().fencingToken());
    }

    @Test
    void operatorsSeeEverything() {
        List<Lease> held = new ArrayList<>();
        for (String id : List.of("b", "a", "c")) {
            held.add(client.acquire("job/" + id, NO_WAIT));
        }
        assertEquals(List.of("job/a", "job/b", "job/c"), other.list("job/").stream().map(ResourceState::name).toList());
        assertEquals(3, other.list("").size());
        assertEquals(3, other.overview().held());
        OverviewQuery query = OverviewQuery.all().containing("/B").kind("job").sort(OverviewQuery.Sort.NAME).limit(1);
        assertEquals(1, other.overview(query).matched());
        // Without tokens nobody may give orders.
        assertThrows(DeniedException.class, () -> other.order(Order.evictNow("job/a", "the test").any()));
        held.forEach(Lease::close);
    }

    @Test
    void aClosedClientHoldsNothing() throws Exception {
        Lease lease = client.acquire("report/42");
        Lease blocking = other.acquire("report/43");
        CompletableFuture<Class<?>> waiting = CompletableFuture.supplyAsync(
                () -> assertThrows(RuntimeException.class, () -> client.acquire("report/43")).getClass());
        awaitQueue("report/43", 1);
        client.close();
        assertEquals(CancelledException.class, waiting.get(20, TimeUnit.SECONDS));
        assertFalse(lease.isHeld());
        assertEquals(0, holders("report/42"));
        awaitQueue("report/43", 0);
        assertThrows(IllegalStateException.class, () -> client.acquire("report/42"));
        blocking.close();
    }

    @Test
    void anInterruptedThreadClosesItsClient() {
        client.acquire("report/42");
        Thread.currentThread().interrupt();
        client.close();
        assertTrue(Thread.interrupted(), "the flag is kept");
        assertEquals(0, holders("report/42"));
    }

    @Test
    void ownerTokensAreInNoText() throws Exception {
        List<String> logged = new ArrayList<>();
        Logger root = Logger.getLogger("");
        Handler handler = new Handler() {
            @Override
            public synchronized void publish(LogRecord entry) {
                logged.add(entry.getMessage() + entry.getThrown());
            }

            @Override
            public void flush() {}

            @Override
            public void close() {}
        };
        handler.setLevel(Level.ALL);
        Logger ours = Logger.getLogger("io.github.leasehold");
        ours.setLevel(Level.ALL);
        root.addHandler(handler);
        try {
            Lease lease = client.acquire("report/42", LeaseOptions.defaults().ttl(Duration.ofSeconds(3)));
            String owner = lease.claim().owner();
            server.close();
            LostException loss = lease.lost().get(30, TimeUnit.SECONDS);
            lease.close();
            String text = lease + " " + lease.claim() + " " + client + " " + loss + " " + loss.getCause() + logged;
            assertTrue(text.contains("report/42"));
            assertFalse(text.contains(owner), text);
        } finally {
            root.removeHandler(handler);
            ours.setLevel(null);
            server = TestServer.start();
        }
    }

    @Test
    void wrongAddressesAreInvalid() {
        List<String> wrong = List.of(
                "", "localhost:7420", "ftp://a", "http://", "http://user:secret@a", "http://a?x=1", "http://a b",
                "http://user:secret@lease_server:7420", "app:secret@host", "http://a?token=secret", "http://a#secret", "http:secret");
        for (String url : wrong) {
            InvalidException error = assertThrows(InvalidException.class, () -> LeaseholdClient.connect(url));
            assertFalse(error.toString().contains("secret"), error.toString());
        }
    }
}

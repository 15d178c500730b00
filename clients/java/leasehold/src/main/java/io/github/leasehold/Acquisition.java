package io.github.leasehold;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Acquires one lease, on the caller's thread.
 *
 * <ol>
 *   <li>Ask, and let the server wait. All requests of the claim have the same owner token: a grant whose answer was lost is found again.
 *   <li>Granted: done. A grant that is over when its answer arrives is released, and a claim with a fresh owner token begins anew
 *       (docs/adr/0095).
 *   <li>Still queued, or no answer: ask again, until the time to wait is over. The last request leaves the queue.
 *   <li>The owner token has a tombstone, because an operator has evicted the claim, for example: begin anew with a fresh one.
 *   <li>Whatever else ends this, an interrupt for example, releases the claim in the background: with a tombstone, so that a delayed
 *       request of it is refused.
 * </ol>
 */
final class Acquisition {
    /** How long an answer may take, besides the time that the server was asked to wait. */
    static final Duration TIMEOUT = Duration.ofSeconds(10);
    /** How long the release of a claim that was given up is repeated. */
    static final Duration ABANDONED_RELEASE_TIMEOUT = Duration.ofSeconds(60);

    /** The longest wait of one request: less than proxies allow. */
    private static final Duration WAIT_MAX = Duration.ofSeconds(50);
    /** A claim without a limit gives up when nobody has answered for so long. */
    private static final Duration OUTAGE_MAX = Duration.ofMinutes(1);
    private static final Duration PAUSE_FIRST = Duration.ofMillis(50);
    private static final Duration PAUSE_MAX = Duration.ofSeconds(2);
    /** How often a try begins anew because its owner token has a tombstone. */
    private static final int TOMBSTONES_MAX = 3;

    private final Engine engine;
    private Claim claim;
    private final LeaseOptions options;
    private final Optional<Duration> wait;
    private final long startedAt;
    private Duration pause = PAUSE_FIRST;
    private long answeredAt;
    private int tombstones;
    /** The claim may be in the queue. */
    private boolean hasPlace;
    /** A request of the claim went unanswered: it may have been carried out, or may still be. */
    private boolean hadUnanswered;
    /** Completes if another thread ends this, with the reason. */
    private final CompletableFuture<LeaseholdException> stopped = new CompletableFuture<>();
    private volatile Transport.Exchange exchange;

    /** A lease that begins. */
    record Granted(Claim claim, Protocol.Grant grant, Times times, Duration ttl, boolean hadUnanswered) {}

    Acquisition(Engine engine, Claim claim, LeaseOptions options, Optional<Duration> wait) {
        this.engine = engine;
        this.claim = claim;
        this.options = options;
        this.wait = wait;
        this.startedAt = engine.clock.now();
        this.answeredAt = startedAt;
    }

    /** Ends this with the exception, from any thread. */
    void stop(LeaseholdException why) {
        stopped.complete(why);
        Transport.Exchange current = exchange;
        if (current != null) {
            current.cancel();
        }
    }

    /** Throws if there is no grant; then nothing of the claim is left, or a release is under way. */
    Granted run() {
        engine.enter(this);
        boolean isGranted = false;
        try {
            if (Thread.currentThread().isInterrupted()) {
                throw new InterruptedException();
            }
            Granted granted = ask();
            isGranted = true;
            return granted;
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new CancelledException("interrupted while waiting for " + claim.resource(), interrupted);
        } finally {
            if (!isGranted) {
                releaseAbandonedClaim();
            }
            engine.leave(this);
        }
    }

    /** In the background, if anything of the claim may be left. */
    private void releaseAbandonedClaim() {
        if (!hadUnanswered && !hasPlace) {
            return;
        }
        Protocol.ReleaseRequest request = new Protocol.ReleaseRequest(claim, Times.tombstone(claim.ttl()), Duration.ZERO);
        engine.releases.begin(request, engine.clock.now() + ABANDONED_RELEASE_TIMEOUT.toNanos());
    }

    /** Gives up the claim, and begins anew with a fresh owner token: a delayed request or release of the old one must not meet the next grant. */
    private void beginAnew() {
        releaseAbandonedClaim();
        claim = claim.again();
        hasPlace = false;
        hadUnanswered = false;
    }

    /** What is left of the time to wait; null without a limit. */
    private Duration left() {
        if (wait.isEmpty()) {
            return null;
        }
        Duration left = wait.get().minusNanos(engine.clock.now() - startedAt);
        return left.isNegative() ? Duration.ZERO : left;
    }

    private Granted ask() throws InterruptedException {
        while (true) {
            Duration left = left();
            boolean isLast = left != null && left.compareTo(WAIT_MAX) <= 0;
            long askedAt = engine.clock.now();
            try {
                Optional<Granted> granted = askOnce(isLast ? left : WAIT_MAX, isLast);
                if (granted.isPresent()) {
                    return granted.get();
                }
                // A server that drains answers early. Never ask in a tight loop.
                sleep(PAUSE_FIRST.minusNanos(engine.clock.now() - askedAt));
            } catch (BusyException busy) {
                afterBusy(busy);
            } catch (LostException tombstone) {
                afterTombstone(tombstone);
            } catch (UnavailableException error) {
                afterFailure(error);
            }
        }
    }

    private boolean isOver() {
        Duration left = left();
        return left != null && left.isZero();
    }

    private Optional<Granted> askOnce(Duration serverWait, boolean isLast) throws InterruptedException {
        engine.transport.checkOneStore(Effect.NONE);
        Clock.Sent sent = engine.clock.sent();
        Protocol.Verdict verdict = send(Protocol.acquire(claim, serverWait, !isLast, TIMEOUT));
        hasPlace = true;
        // Another request may have met another store meanwhile.
        checkOneStoreStill();
        answeredAt = engine.clock.now();
        pause = PAUSE_FIRST;
        return verdict.grant().map(grant -> granted(grant, sent));
    }

    private Protocol.Verdict send(Protocol.Call call) throws InterruptedException {
        Transport.Exchange begun = engine.transport.send(call);
        exchange = begun;
        if (stopped.isDone()) {
            begun.cancel();
        }
        boolean isAnswered = false;
        try {
            Protocol.Verdict verdict = Protocol.readAcquire(begun.await(), claim);
            isAnswered = true;
            return verdict;
        } catch (CancelledException cancelled) {
            throw stopped.getNow(cancelled);
        } catch (UnavailableException error) {
            isAnswered = error.effect() == Effect.NONE;
            throw error;
        } catch (LeaseholdException refusal) {
            isAnswered = true;
            hasPlace &= !(refusal instanceof BusyException);
            throw refusal;
        } finally {
            hadUnanswered |= !isAnswered || begun.hadUnanswered();
        }
    }

    private void checkOneStoreStill() {
        try {
            engine.transport.checkOneStore(Effect.UNKNOWN);
        } catch (UnavailableException error) {
            hadUnanswered = true;
            throw error;
        }
    }

    private Granted granted(Protocol.Grant grant, Clock.Sent sent) {
        Clock.Sent now = engine.clock.sent();
        Times.Left left = grant.left().cappedBy(claim.ttl(), Duration.ofNanos(now.at() - sent.at()));
        Times times = Times.of(sent, left, options.isRenewed());
        // Without renewal, it is the caller who chose the ttl and watches it.
        if (options.isRenewed() && times.stoppedBy(now) != null) {
            beginAnew();
            throw new UnavailableException(
                    "the grant of " + claim.resource() + " was over when its answer arrived: its ttl is too short for this server",
                    Effect.NONE,
                    null);
        }
        return new Granted(claim, grant, times, left.ttl(), hadUnanswered);
    }

    private void afterBusy(BusyException busy) throws InterruptedException {
        Duration left = left();
        if (left == null || !left.isZero() && left.compareTo(PAUSE_FIRST) > 0) {
            // The store has no queue. Its hint is when the holder's lease ends, but it may be released before.
            answeredAt = engine.clock.now();
            sleep(longer(nextPause(), Times.clamp(busy.retryAfter(), Duration.ZERO, PAUSE_MAX).dividedBy(2)));
            return;
        }
        boolean hasWaited = wait.isPresent() && !wait.get().isZero();
        if (!hasWaited) {
            throw busy;
        }
        throw new TimedOutException("waited " + wait.get().toMillis() + " ms for " + claim.resource() + ": " + busy.getMessage(), busy);
    }

    private void afterTombstone(LostException tombstone) throws InterruptedException {
        answeredAt = engine.clock.now();
        tombstones++;
        beginAnew();
        if (isOver() && tombstones > TOMBSTONES_MAX) {
            throw new UnavailableException(tombstone.getMessage(), Effect.NONE, tombstone);
        }
        sleep(nextPause());
    }

    private void afterFailure(UnavailableException error) throws InterruptedException {
        boolean isOutage = wait.isEmpty() && engine.clock.now() - answeredAt > OUTAGE_MAX.toNanos();
        if (isOver() || isOutage) {
            // The last request may not have been sent, and an earlier one carried out.
            throw hadUnanswered ? error.withUnknownEffect() : error;
        }
        Duration hinted = Times.clamp(error.retryAfter(), Duration.ZERO, Duration.ofSeconds(30));
        sleep(longer(nextPause(), hinted));
    }

    private static Duration longer(Duration a, Duration b) {
        return a.compareTo(b) > 0 ? a : b;
    }

    /** With jitter; at most a sixth of the ttl, because the last request may have brought a grant, which runs out meanwhile. */
    private Duration nextPause() {
        Duration most = Times.clamp(claim.ttl().dividedBy(6), Duration.ofMillis(20), PAUSE_MAX);
        Duration current = Times.clamp(pause, Duration.ofMillis(20), most);
        pause = pause.compareTo(PAUSE_MAX) < 0 ? pause.multipliedBy(2) : pause;
        return Duration.ofNanos(ThreadLocalRandom.current().nextLong(current.toNanos() / 2, current.toNanos() + 1));
    }

    /** Until the time to wait is over at most, or until this is stopped. */
    private void sleep(Duration time) throws InterruptedException {
        Duration left = left();
        Duration most = left != null && left.compareTo(time) < 0 ? left : time;
        try {
            throw stopped.get(Math.max(0, most.toNanos()), TimeUnit.NANOSECONDS);
        } catch (TimeoutException error) {
            return; // nobody has stopped this
        } catch (ExecutionException error) {
            throw new IllegalStateException("it only completes with a reason", error);
        }
    }
}

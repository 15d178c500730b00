package io.github.leasehold;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;

/**
 * Acquires one lease, on the caller's thread.
 *
 * <ol>
 *   <li>Ask, and let the server wait. All requests of the claim have the same owner token: a grant whose answer was lost is found again.
 *   <li>Granted: done. A grant that is over when its answer arrives is released, and a claim with a fresh owner token begins anew
 *       (docs/adr/0095).
 *   <li>Still queued, or no answer: ask again, until the time to wait is over. The last request leaves the queue.
 *   <li>Whatever else ends this, an interrupt for example, releases the claim in the background: with a tombstone, so that a delayed
 *       request of it is refused.
 * </ol>
 */
final class Acquisition {
    /** How long an answer may take, besides the time that the server was asked to wait. */
    static final Duration TIMEOUT = Duration.ofSeconds(10);
    /** How long a claim that was given up is released. */
    static final Duration FAREWELL = Duration.ofSeconds(60);

    /** The longest wait of one request: less than proxies allow. */
    private static final Duration WAIT_MAX = Duration.ofSeconds(50);
    /** A claim without a limit gives up when nobody has answered for so long. */
    private static final Duration OUTAGE_MAX = Duration.ofMinutes(1);
    private static final Duration PAUSE_FIRST = Duration.ofMillis(50);
    private static final Duration PAUSE_MAX = Duration.ofSeconds(2);

    private final Engine engine;
    private Claim claim;
    private final LeaseOptions options;
    private final Optional<Duration> wait;
    private final long startedAt;
    private Duration pause = PAUSE_FIRST;
    private long answeredAt;
    /** A request went unanswered, or the claim is in the queue. */
    private boolean mayHaveLeftSomething;
    private boolean wasUnanswered;

    /** A lease that begins. */
    record Granted(Claim claim, Protocol.Grant grant, Times times, Duration ttl, boolean needsTombstone) {}

    Acquisition(Engine engine, Claim claim, LeaseOptions options, Optional<Duration> wait) {
        this.engine = engine;
        this.claim = claim;
        this.options = options;
        this.wait = wait;
        this.startedAt = engine.clock.now();
        this.answeredAt = startedAt;
    }

    /** Throws if there is no grant; then nothing of the claim is left, or a release is under way. */
    Granted run() {
        engine.enter();
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
            if (!isGranted && mayHaveLeftSomething) {
                giveBack();
            }
            engine.leave();
        }
    }

    /** In the background. */
    private void giveBack() {
        Protocol.Farewell farewell = new Protocol.Farewell(claim, Times.tombstone(claim.ttl()), Duration.ZERO);
        engine.releases.begin(farewell, engine.clock.now() + FAREWELL.toNanos());
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
            } catch (LostException lost) {
                // What was granted has ended before the answer came.
                if (isOver()) {
                    throw lost;
                }
                sleep(nextPause());
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
        engine.transport.checkOneStore();
        Clock.Sent sent = engine.clock.sent();
        Protocol.Verdict verdict;
        boolean hadLeftSomething = mayHaveLeftSomething;
        mayHaveLeftSomething = true; // until it is answered: an interrupt must release the claim
        try {
            Protocol.Answer answer = engine.transport.call(Protocol.acquire(claim, serverWait, !isLast, TIMEOUT));
            verdict = Protocol.readAcquire(answer, claim);
        } catch (LeaseholdException error) {
            if (!(error instanceof CancelledException)) {
                // A refusal leaves nothing behind; an earlier request still may.
                mayHaveLeftSomething = hadLeftSomething && !(error instanceof BusyException && !wasUnanswered);
            }
            throw error;
        }
        answeredAt = engine.clock.now();
        pause = PAUSE_FIRST;
        if (verdict.grant().isEmpty()) {
            return Optional.empty();
        }
        return Optional.of(granted(verdict.grant().get(), sent));
    }

    private Granted granted(Protocol.Grant grant, Clock.Sent sent) {
        Times times = Times.of(sent, grant.left(), options.isRenewed());
        // Without renewal, it is the caller who chose the ttl and watches it.
        if (options.isRenewed() && engine.clock.now() - times.stopAt() >= 0) {
            giveBack();
            // The release may be repeated or late: it must not end the next grant.
            claim = claim.again();
            mayHaveLeftSomething = false;
            wasUnanswered = false;
            throw new UnavailableException(
                    "the grant of " + claim.resource() + " was over when its answer arrived: its ttl is too short for this server",
                    Effect.NONE,
                    null);
        }
        return new Granted(claim, grant, times, grant.left().ttl(), wasUnanswered);
    }

    private void afterBusy(BusyException busy) throws InterruptedException {
        Duration left = left();
        if (left == null || !left.isZero() && left.compareTo(PAUSE_FIRST) > 0) {
            // The store has no queue: ask again, not before something can have changed.
            answeredAt = engine.clock.now();
            Duration next = nextPause();
            Duration hinted = busy.retryAfter();
            sleep(!hinted.isZero() && hinted.compareTo(next) < 0 ? hinted : next);
            return;
        }
        boolean hasWaited = wait.isPresent() && !wait.get().isZero();
        if (!hasWaited) {
            throw busy;
        }
        throw new TimedOutException(
                "waited " + wait.get().toMillis() + " ms for " + claim.resource() + ": " + busy.getMessage(),
                busy.holders(),
                busy.retryAfter(),
                busy.isPaused());
    }

    private void afterFailure(UnavailableException error) throws InterruptedException {
        if (error.effect() == Effect.UNKNOWN) {
            mayHaveLeftSomething = true;
            wasUnanswered = true;
        }
        boolean isOutage = wait.isEmpty() && engine.clock.now() - answeredAt > OUTAGE_MAX.toNanos();
        if (isOver() || isOutage) {
            throw error;
        }
        Duration hinted = Times.clamp(error.retryAfter(), Duration.ZERO, Duration.ofSeconds(30));
        Duration next = nextPause();
        sleep(hinted.compareTo(next) > 0 ? hinted : next);
    }

    /** With jitter; at most a sixth of the ttl, because the last request may have brought a grant, which runs out meanwhile. */
    private Duration nextPause() {
        Duration most = Times.clamp(claim.ttl().dividedBy(6), Duration.ofMillis(20), PAUSE_MAX);
        Duration current = Times.clamp(pause, Duration.ofMillis(20), most);
        pause = pause.compareTo(PAUSE_MAX) < 0 ? pause.multipliedBy(2) : pause;
        return Duration.ofNanos(ThreadLocalRandom.current().nextLong(current.toNanos() / 2, current.toNanos() + 1));
    }

    private void sleep(Duration time) throws InterruptedException {
        Duration left = left();
        Duration most = left != null && left.compareTo(time) < 0 ? left : time;
        if (!most.isNegative() && !most.isZero()) {
            engine.sleep(most);
        }
    }
}

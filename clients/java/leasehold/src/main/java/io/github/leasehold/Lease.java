package io.github.leasehold;

import java.time.Duration;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;

/**
 * A lease that this process holds until it is closed or lost. Safe for use by several threads.
 *
 * <p>It is renewed in the background. If no renewal succeeds, it is <em>lost</em> when a sixth of its ttl is left: that is the time to
 * stop the work before another one may be granted. Loss is told by the clock, without an answer of the server: {@link #check} throws,
 * {@link #lost()} completes, and listeners run. A lost lease never comes back.
 *
 * <p>No lock of this kind can stop a thread that is paused between {@code check()} and a write. Hand {@link #token()} or {@link #pass()} to
 * what you write to, and let it refuse older tokens.
 */
public final class Lease implements AutoCloseable {
    private static final System.Logger LOG = System.getLogger("io.github.leasehold");

    private final Engine engine;
    private final Claim claim;
    private final Protocol.Grant grant;
    private final boolean isRenewed;
    /** A request to acquire went unanswered: it may still arrive, so the release leaves a tombstone. */
    private volatile boolean hadUnanswered;
    private final AtomicReference<LossReason> ended = new AtomicReference<>();
    private final CompletableFuture<LostException> lost = new CompletableFuture<>();
    private final AtomicBoolean releaseBegun = new AtomicBoolean();
    private volatile boolean isReleasedByProgram;

    private volatile Times times;
    private volatile LeaseholdException lastFailure;
    private volatile FinishRequest finishRequest;
    private volatile boolean isEvicting;
    private final CompletableFuture<FinishRequest> askedToFinish = new CompletableFuture<>();
    // Only on the timer's thread.
    private boolean isUnderWay;

    Lease(Engine engine, Acquisition.Granted granted, boolean isRenewed) {
        this.engine = engine;
        this.claim = granted.claim();
        this.grant = granted.grant();
        this.times = granted.times();
        this.hadUnanswered = granted.hadUnanswered();
        this.isRenewed = isRenewed;
        claim.setTtl(granted.ttl());
    }

    /**
     * The name of the resource.
     *
     * @return for example {@code report/42}
     */
    public String resource() {
        return claim.resource();
    }

    /**
     * The key of the resource. Several leases are acquired in the order of their keys.
     *
     * @return the name with its id percent-encoded
     */
    public String key() {
        return claim.key();
    }

    /**
     * The fencing token: each exclusive grant of the resource has a higher one.
     *
     * @return the token
     * @throws IllegalStateException if the lease is shared: see {@link #number()}
     */
    public long token() {
        return grant.token().orElseThrow(() -> new IllegalStateException("a shared lease has a number and no token"));
    }

    /**
     * What the holder of an exclusive lease presents to a fence: its token, the hash of its owner, and the resource.
     *
     * @return the pass
     * @throws IllegalStateException if the lease is shared
     */
    public String pass() {
        return grant.pass().orElseThrow(() -> new IllegalStateException("a shared lease has no pass"));
    }

    /**
     * The number of a shared grant. It orders nothing.
     *
     * @return the number, empty if the lease is exclusive
     */
    public OptionalLong number() {
        return grant.number();
    }

    /**
     * The ttl that the server has given.
     *
     * @return the ttl
     */
    public Duration ttl() {
        return claim.ttl();
    }

    /**
     * How long the work may go on if no renewal succeeds.
     *
     * @return the time until the stop-work threshold; zero if the lease has ended
     */
    public Duration remaining() {
        return isHeld() ? times.left(engine.clock.sent()) : Duration.ZERO;
    }

    /**
     * Whether it is held at this moment, by both clocks.
     *
     * @return false once it is lost or closed
     */
    public boolean isHeld() {
        return ended.get() == null && !endIfOver(engine.clock.sent());
    }

    /**
     * Call this before each effect. Asks the clocks only, not the server.
     *
     * @throws LostException if the lease has ended
     */
    public void check() {
        if (!isHeld()) {
            throw loss(ended.get(), lastFailure);
        }
    }

    /**
     * Completes when the lease is lost, with the reason. It never completes if the lease is closed before.
     *
     * <p>What depends on it runs on a thread of the client, and may take its time.
     *
     * @return a future of its own for each call
     */
    public CompletableFuture<LostException> lost() {
        return lost.copy();
    }

    /**
     * Calls the listener once if the lease is lost, also if it already is.
     *
     * @param listener runs on a thread of the client
     */
    public void onLost(Consumer<? super LostException> listener) {
        run(lost, listener);
    }

    /**
     * Calls the listener once if an operator asks this holder to finish: save the work, and close the lease.
     *
     * @param listener runs on a thread of the client
     */
    public void onFinishRequest(Consumer<? super FinishRequest> listener) {
        run(askedToFinish, listener);
    }

    private <T> void run(CompletableFuture<T> event, Consumer<? super T> listener) {
        event.thenAccept(value -> engine.inPool(() -> {
            try {
                listener.accept(value);
            } catch (Throwable error) {
                LOG.log(System.Logger.Level.WARNING, "a listener of the lease on " + claim.resource() + " failed", error);
            }
        }));
    }

    /**
     * An operator's request that this holder finish, as of the last renewal.
     *
     * @return the request, if there is one
     */
    public Optional<FinishRequest> finishRequest() {
        return Optional.ofNullable(finishRequest);
    }

    /**
     * Whether an operator has evicted this holder at its expiry, as of the last renewal: then the lease is not extended any more.
     *
     * @return true if the work should come to its end
     */
    public boolean isEvicting() {
        return isEvicting;
    }

    /**
     * Replaces the note that others read.
     *
     * @param note the text
     * @throws LostException if the lease has ended
     * @throws UnavailableException if the server does not answer
     */
    public void setNote(String note) {
        setNote(Note.of(note));
    }

    /**
     * Replaces the note that others read.
     *
     * @param note the note
     * @throws LostException if the lease has ended
     * @throws UnavailableException if the server does not answer
     */
    public void setNote(Note note) {
        check();
        renewNow(claim.ttl(), Optional.of(note));
    }

    /**
     * Renews the lease now, for so long. This never shortens it. It is for leases {@linkplain LeaseOptions#withoutRenewal() without renewal}.
     *
     * @param ttl counted from now
     * @return false if the lease has ended
     * @throws UnavailableException if the server does not answer; then the lease goes on for what is left of it
     */
    public boolean extend(Duration ttl) {
        if (ttl.toMillis() < 1) {
            throw new InvalidException("a ttl is at least 1 ms");
        }
        try {
            check();
            renewNow(ttl, Optional.empty());
            return true;
        } catch (LostException error) {
            return false;
        }
    }

    private void renewNow(Duration ttl, Optional<Note> note) {
        Clock.Sent sent = engine.clock.sent();
        try {
            Protocol.Renewal renewal = new Protocol.Renewal(claim, ttl, grant.tokenOrNumber());
            accept(sent, Protocol.readRenewal(engine.transport.call(Protocol.renewOne(renewal, note, Acquisition.TIMEOUT)), renewal));
            engine.renewals.lookBy(this);
        } catch (LostException error) {
            endedByServer(error);
            throw error;
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new CancelledException("interrupted while a renewal of " + claim.resource() + " was under way", interrupted);
        }
        check();
    }

    /**
     * Ends the lease, and waits a few seconds for the answer. The release goes on in the background until it is answered.
     *
     * @return whether it was still held at the server. Also false if an attempt of this release was not answered, and may have ended it
     * @throws UnavailableException if there is no answer in time
     * @throws CancelledException if this thread is interrupted: then it does not wait
     */
    public boolean release() {
        return release(Duration.ZERO);
    }

    /**
     * Ends the lease, and keeps the resource closed for a while: nobody holds it, and nobody is granted.
     *
     * @param keepFor how long, from now
     * @return whether it was still held at the server. Also false if an attempt of this release was not answered, and may have ended it
     * @throws InvalidException if the server does not keep a resource closed for so long: then it still has the lease, and {@link #release()}
     *     ends it
     * @throws UnavailableException if there is no answer in time
     * @throws CancelledException if this thread is interrupted: then it does not wait
     */
    public boolean release(Duration keepFor) {
        Optional<Releases.Pending> pending = beginRelease(keepFor);
        if (pending.isEmpty()) {
            return false;
        }
        isReleasedByProgram = true;
        try {
            return pending.get().await(Releases.RELEASE_WAIT_MAX);
        } catch (InvalidException refused) {
            releaseBegun.set(false);
            throw refused;
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new CancelledException("the release of " + claim.resource() + " goes on in the background", interrupted);
        }
    }

    /** Ends the lease. Empty if it had ended before: then others need not wait for an answer. */
    Optional<Releases.Pending> beginRelease(Duration keepFor) {
        boolean wasHeld = isHeld() && ended.compareAndSet(null, LossReason.RELEASED);
        engine.renewals.remove(this);
        if (!releaseBegun.compareAndSet(false, true)) {
            return Optional.empty();
        }
        Duration tombstone = hadUnanswered ? Times.tombstone(claim.ttl()) : Duration.ZERO;
        // A lost lease is given back, too, once its work has stopped: the server may still hold it. After the deadline there is nothing to
        // give back, but one request is sent in any case.
        long giveUpAt = hadUnanswered ? engine.clock.now() + Acquisition.ABANDONED_RELEASE_TIMEOUT.toNanos() : times.deadline();
        Releases.Pending pending = engine.releases.begin(new Protocol.ReleaseRequest(claim, tombstone, keepFor), giveUpAt);
        return wasHeld ? Optional.of(pending) : Optional.empty();
    }

    /**
     * Ends the lease. Never throws: an error of the work stays the only one. What the server does not answer in time is repeated in the
     * background. If it matters whether the lease was held until the end, call {@link #check()} last.
     */
    @Override
    public void close() {
        try {
            release();
        } catch (LeaseholdException error) {
            LOG.log(System.Logger.Level.DEBUG, "the lease on {0} was not released in time: {1}", claim.resource(), error.getMessage());
        }
    }

    /** Whether the program itself has released it while it was held. The close of its client does not count. */
    boolean isReleasedByProgram() {
        return isReleasedByProgram;
    }

    // The part of the client that renews.

    Claim claim() {
        return claim;
    }

    Protocol.Renewal renewal() {
        return new Protocol.Renewal(claim, claim.ttl(), grant.tokenOrNumber());
    }

    void setUnderWay(boolean isUnderWay) {
        this.isUnderWay = isUnderWay;
    }

    /** Whether a renewal is due: on the timer's thread. */
    boolean isDue(long now) {
        return isRenewed && !isUnderWay && times.renewAt() - now <= 0;
    }

    /** Whether it may be renewed with others, a little early. */
    boolean isDueSoon(long now) {
        return isRenewed && !isUnderWay && times.renewAt() - now <= Times.renewEvery(claim.ttl()) / 4;
    }

    /** When to look at it again, on the timer's thread: for a renewal, or for its end. */
    long nextEvent(long now) {
        Times current = times;
        boolean isRenewalFirst = isRenewed && !isUnderWay && current.renewAt() - current.stopAt() < 0;
        return isRenewalFirst ? current.renewAt() : current.stopAt();
    }

    /** Ends the lease if its time is over by one of the clocks. */
    boolean endIfOver(Clock.Sent now) {
        if (ended.get() != null) {
            return true;
        }
        LossReason why = times.stoppedBy(now);
        if (why != null) {
            end(why, lastFailure);
        }
        return ended.get() != null;
    }

    /** What a renewal in the background has brought: on the timer's thread. */
    void renewed(Clock.Sent sent, Protocol.Outcome outcome) {
        // An answer that comes too late changes nothing: the work has been told to stop.
        if (endIfOver(engine.clock.sent())) {
            return;
        }
        if (outcome.kept() != null) {
            lastFailure = null;
            accept(sent, outcome.kept());
        } else if (outcome.error() instanceof LostException error) {
            endedByServer(error);
        } else {
            lastFailure = outcome.error();
            retryRenewal(engine.clock.now());
        }
    }

    private synchronized void retryRenewal(long from) {
        Times old = times;
        times = new Times(from + Times.renewalRetry(claim.ttl()).toNanos(), old.stopAt(), old.deadline(), old.wallStopAt());
    }

    private synchronized void accept(Clock.Sent sent, Protocol.Kept kept) {
        if (ended.get() != null) {
            return;
        }
        claim.setTtl(kept.left().ttl());
        isEvicting = kept.evicting();
        times = times.laterOf(Times.of(sent, kept.left(), isRenewed));
        // An evicted holder is not extended any more: its next renewal seems overdue.
        long soonest = sent.at() + Times.renewalRetry(claim.ttl()).toNanos();
        if (times.renewAt() - soonest < 0) {
            retryRenewal(sent.at());
        }
        if (kept.asked().isPresent()) {
            FinishRequest request = kept.asked().get();
            finishRequest = request;
            if (!askedToFinish.isDone()) {
                engine.inPool(() -> askedToFinish.complete(request));
            }
        }
    }

    private void endedByServer(LostException error) {
        if (error.why() == LossReason.NOT_THERE) {
            // The store has forgotten this claim, and its tombstones with it: a delayed request may be granted anew, or was already.
            hadUnanswered = true;
        }
        end(error.why(), error);
    }

    private void end(LossReason why, Throwable cause) {
        if (!ended.compareAndSet(null, why)) {
            return;
        }
        engine.renewals.remove(this);
        LostException loss = loss(why, cause);
        engine.inPool(() -> {
            LOG.log(System.Logger.Level.WARNING, loss.getMessage());
            lost.complete(loss);
        });
    }

    private LostException loss(LossReason why, Throwable cause) {
        String text = switch (why) {
            case EXPIRED -> isRenewed ? "no renewal has succeeded in time" : "its ttl is over";
            case WALL_CLOCK -> "its time is over by the calendar clock";
            case NOT_THERE -> "the server knows it no more";
            case EVICTED -> "an operator has evicted this holder";
            case BURIED -> "its claim was cancelled";
            case RELEASED -> "this program has released it";
        };
        return new LostException("the lease on " + claim.resource() + " has ended: " + text, why, cause);
    }

    @Override
    public String toString() {
        LossReason why = ended.get();
        return "Lease[" + claim.resource() + ", " + (why == null ? "held" : why.code()) + "]";
    }
}

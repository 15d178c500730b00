package io.github.leasehold;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/**
 * Renews the leases of one client, and tells when they end. Everything here runs on the timer's thread, except where noted.
 *
 * <ol>
 *   <li>When a lease is due, all that are due soon are renewed in the same request.
 *   <li>A renewal that fails is repeated until the stop-work threshold of its lease.
 *   <li>At the threshold the lease is lost, by the clock: whatever the requests under way will say.
 *   <li>The calendar clock is read every second.
 * </ol>
 */
final class Renewals {
    private static final System.Logger LOG = System.getLogger("io.github.leasehold");
    private static final long LOOK_EVERY = Duration.ofSeconds(1).toNanos();
    private static final long LOOK_AGAIN = Duration.ofMillis(5).toNanos();
    /** Leases whose ttl differs more are not renewed together: the shortest one limits how long the request may take. */
    private static final int TTL_FACTOR_MAX = 4;

    private final Engine engine;
    private final Set<Lease> leases = ConcurrentHashMap.newKeySet();
    private ScheduledFuture<?> nextLook;
    private long nextLookAt;

    Renewals(Engine engine) {
        this.engine = engine;
    }

    /** From any thread. */
    void add(Lease lease) {
        leases.add(lease);
        lookBy(lease);
    }

    /** From any thread. */
    void remove(Lease lease) {
        leases.remove(lease);
    }

    /** From any thread: all leases that are held. */
    List<Lease> all() {
        return List.copyOf(leases);
    }

    /** The times of this lease have changed. From any thread. */
    void lookBy(Lease lease) {
        try {
            engine.timer.execute(() -> lookSoonFor(lease));
        } catch (RejectedExecutionException closed) {
            return; // and with the client, all its leases
        }
    }

    private void lookSoonFor(Lease lease) {
        long now = engine.clock.now();
        long inASecond = now + LOOK_EVERY;
        long next = lease.nextEvent(now);
        lookAt(next - inASecond < 0 ? next : inASecond);
    }

    private void lookAt(long at) {
        if (nextLook != null && nextLookAt - at <= 0) {
            return;
        }
        if (nextLook != null) {
            nextLook.cancel(false);
        }
        nextLookAt = at;
        nextLook = engine.timer.schedule(this::look, Math.max(0, at - engine.clock.now()), TimeUnit.NANOSECONDS);
    }

    /** Whatever fails in here, the next look is planned: the leases must be renewed, and their ends be told. */
    private void look() {
        nextLook = null;
        try {
            lookAtAll(engine.clock.sent());
        } catch (Throwable bug) {
            failed(bug);
        } finally {
            planNextLook();
        }
    }

    private void planNextLook() {
        if (leases.isEmpty()) {
            return;
        }
        long now = engine.clock.now();
        long next = now + LOOK_EVERY;
        for (Lease lease : leases) {
            long at = lease.nextEvent(now);
            next = at - next < 0 ? at : next;
        }
        // Not sooner: a lease whose renewal was not sent, after a failure, is still due.
        long soonest = now + LOOK_AGAIN;
        try {
            lookAt(next - soonest < 0 ? soonest : next);
        } catch (RejectedExecutionException closed) {
            return; // and with the client, all its leases
        }
    }

    private static void failed(Throwable bug) {
        LOG.log(System.Logger.Level.ERROR, "leases cannot be renewed; this is tried again", bug);
    }

    private void lookAtAll(Clock.Sent now) {
        List<Lease> soon = new ArrayList<>();
        boolean isDue = false;
        for (Lease lease : leases) {
            try {
                if (lease.endIfOver(now)) {
                    continue;
                }
            } catch (Throwable bug) {
                failed(bug);
            }
            if (lease.isDueSoon(now.at())) {
                soon.add(lease);
                isDue |= lease.isDue(now.at());
            }
        }
        if (isDue) {
            renew(soon);
        }
    }

    private void renew(List<Lease> due) {
        due.sort(Comparator.comparing(lease -> lease.claim().ttl()));
        List<Lease> batch = new ArrayList<>();
        for (Lease lease : due) {
            boolean fits = batch.isEmpty()
                    || batch.size() < Protocol.ENTRIES_MAX
                            && lease.claim().ttl().compareTo(batch.get(0).claim().ttl().multipliedBy(TTL_FACTOR_MAX)) <= 0;
            if (!fits) {
                send(batch);
                batch = new ArrayList<>();
            }
            batch.add(lease);
        }
        send(batch);
    }

    private void send(List<Lease> batch) {
        List<Protocol.Renewal> renewals = batch.stream().map(Lease::renewal).toList();
        Clock.Sent sent = engine.clock.sent();
        batch.forEach(lease -> lease.setUnderWay(true));
        try {
            Protocol.Call call = Protocol.renew(renewals, Times.renewalTimeout(renewals.get(0).ttl()));
            engine.transport.send(call).answer().whenComplete((answer, thrown) -> {
                List<Protocol.Outcome> outcomes = outcomes(answer, thrown, renewals);
                try {
                    engine.timer.execute(() -> apply(batch, sent, outcomes));
                } catch (RejectedExecutionException closed) {
                    return;
                }
            });
        } catch (CancelledException closed) {
            return;
        } catch (Throwable error) {
            apply(batch, sent, outcomes(null, error, renewals));
        }
    }

    private static List<Protocol.Outcome> outcomes(Protocol.Answer answer, Throwable thrown, List<Protocol.Renewal> renewals) {
        LeaseholdException error;
        try {
            if (thrown == null) {
                return Protocol.readRenewals(answer, renewals);
            }
            error = thrown instanceof LeaseholdException known ? known : failure(thrown);
        } catch (LeaseholdException unreadable) {
            error = unreadable;
        } catch (Throwable bug) {
            error = failure(bug);
        }
        Protocol.Outcome outcome = new Protocol.Outcome(null, error);
        return renewals.stream().map(renewal -> outcome).toList();
    }

    private static UnavailableException failure(Throwable error) {
        return new UnavailableException("the renewal failed: " + error, Effect.UNKNOWN, error);
    }

    private void apply(List<Lease> batch, Clock.Sent sent, List<Protocol.Outcome> outcomes) {
        batch.forEach(lease -> lease.setUnderWay(false));
        for (int i = 0; i < batch.size(); i++) {
            Lease lease = batch.get(i);
            try {
                lease.renewed(sent, outcomes.get(i));
                if (lease.isHeld()) {
                    lookAt(lease.nextEvent(engine.clock.now()));
                }
            } catch (RejectedExecutionException closed) {
                return;
            } catch (Throwable bug) {
                failed(bug);
            }
        }
    }
}

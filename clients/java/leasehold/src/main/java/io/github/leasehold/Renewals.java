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
            engine.timer.execute(() -> lookAt(lease.nextEvent(engine.clock.now())));
        } catch (RejectedExecutionException closed) {
            return; // and with the client, all its leases
        }
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

    private void look() {
        nextLook = null;
        Clock.Sent now = engine.clock.sent();
        try {
            lookAtAll(now);
        } catch (CancelledException closed) {
            return;
        } catch (RuntimeException bug) {
            // The leases of this round are not renewed, and end by the clock. The others must go on.
            LOG.log(System.Logger.Level.ERROR, "leases cannot be renewed", bug);
        }
        long next = now.at() + LOOK_EVERY;
        for (Lease lease : leases) {
            long at = lease.nextEvent(now.at());
            next = at - next < 0 ? at : next;
        }
        if (!leases.isEmpty()) {
            lookAt(next);
        }
    }

    private void lookAtAll(Clock.Sent now) {
        List<Lease> soon = new ArrayList<>();
        boolean isDue = false;
        for (Lease lease : leases) {
            if (lease.endIfOver(now)) {
                continue;
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
        List<Claim> claims = batch.stream().map(Lease::claim).toList();
        batch.forEach(lease -> lease.setUnderWay(true));
        Clock.Sent sent = engine.clock.sent();
        Protocol.Call call = Protocol.renew(claims, Times.renewalTimeout(claims.get(0).ttl()));
        engine.transport.send(call).answer().whenComplete((answer, thrown) -> {
            List<Protocol.Outcome> outcomes = outcomes(answer, thrown, claims);
            try {
                engine.timer.execute(() -> apply(batch, sent, outcomes));
            } catch (RejectedExecutionException closed) {
                return;
            }
        });
    }

    private static List<Protocol.Outcome> outcomes(Protocol.Answer answer, Throwable thrown, List<Claim> claims) {
        LeaseholdException error;
        try {
            if (thrown == null) {
                return Protocol.readRenewals(answer, claims);
            }
            error = thrown instanceof LeaseholdException known
                    ? known
                    : new UnavailableException("the renewal failed: " + thrown, Effect.UNKNOWN, thrown);
        } catch (LeaseholdException unreadable) {
            error = unreadable;
        }
        Protocol.Outcome outcome = new Protocol.Outcome(null, error);
        return claims.stream().map(claim -> outcome).toList();
    }

    private void apply(List<Lease> batch, Clock.Sent sent, List<Protocol.Outcome> outcomes) {
        for (int i = 0; i < batch.size(); i++) {
            Lease lease = batch.get(i);
            lease.setUnderWay(false);
            lease.renewed(sent, outcomes.get(i));
            if (lease.isHeld()) {
                lookAt(lease.nextEvent(engine.clock.now()));
            }
        }
    }
}

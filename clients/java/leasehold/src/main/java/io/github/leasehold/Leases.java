package io.github.leasehold;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;

/** Several leases that are held together, in the byte order of their keys. */
public final class Leases implements AutoCloseable, Iterable<Lease> {
    private final List<Lease> leases;

    Leases(List<Lease> leases) {
        this.leases = List.copyOf(leases);
    }

    /**
     * The leases.
     *
     * @return in the order in which they were acquired
     */
    public List<Lease> all() {
        return leases;
    }

    @Override
    public Iterator<Lease> iterator() {
        return leases.iterator();
    }

    /**
     * Call this before each effect.
     *
     * @throws LostException if one of the leases has ended
     */
    public void check() {
        leases.forEach(Lease::check);
    }

    /**
     * Completes when the first of the leases is lost.
     *
     * @return a future of its own for each call
     */
    public CompletableFuture<LostException> lost() {
        CompletableFuture<LostException> first = new CompletableFuture<>();
        leases.forEach(lease -> lease.lost().thenAccept(first::complete));
        return first;
    }

    /**
     * Calls the listener once, when the first of the leases is lost.
     *
     * @param listener runs on a thread of the client
     */
    public void onLost(Consumer<? super LostException> listener) {
        CompletableFuture<LostException> first = new CompletableFuture<>();
        leases.forEach(lease -> lease.onLost(loss -> {
            if (first.complete(loss)) {
                listener.accept(loss);
            }
        }));
    }

    /** Ends all leases, the last one first. Never throws: see {@link Lease#close()}. */
    @Override
    public void close() {
        List<Lease> reversed = new ArrayList<>(leases);
        Collections.reverse(reversed);
        List<Releases.Pending> pending = new ArrayList<>();
        for (Lease lease : reversed) {
            lease.beginRelease(Duration.ZERO).ifPresent(pending::add);
        }
        awaitAll(pending);
    }

    static void awaitAll(List<Releases.Pending> pending) {
        long endsAt = System.nanoTime() + Releases.RELEASE_WAIT_MAX.toNanos();
        for (Releases.Pending one : pending) {
            try {
                one.await(Duration.ofNanos(Math.max(1, endsAt - System.nanoTime())));
            } catch (InterruptedException interrupted) {
                // The releases go on without this thread.
                Thread.currentThread().interrupt();
                return;
            } catch (LeaseholdException error) {
                continue; // it is repeated in the background
            }
        }
    }

    @Override
    public String toString() {
        return "Leases" + leases;
    }

    /** Acquires all or none. */
    static Leases acquire(List<String> names, Optional<Duration> wait, One one) {
        List<Lease> held = new ArrayList<>();
        boolean isDone = false;
        long startedAt = System.nanoTime();
        try {
            for (String name : names) {
                Optional<Duration> left = wait.map(limit -> {
                    Duration rest = limit.minusNanos(System.nanoTime() - startedAt);
                    return rest.isNegative() ? Duration.ZERO : rest;
                });
                held.add(one.acquire(name, left, List.copyOf(held)));
                // Another one may have been lost at the last moment.
                held.forEach(Lease::check);
            }
            isDone = true;
            return new Leases(held);
        } finally {
            if (!isDone) {
                new Leases(held).close();
            }
        }
    }

    /** Acquires one lease. The loss of one of those that are held ends the wait. */
    interface One {
        Lease acquire(String name, Optional<Duration> wait, List<Lease> held);
    }
}

package io.github.leasehold;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Ends claims, in the background: a release does not depend on the thread that asks for it, which may have been interrupted.
 *
 * <ol>
 *   <li>A release is sent at once, and again after pauses, until it is answered or its time is over.
 *   <li>Few are under way at a time; the others wait.
 * </ol>
 */
final class Releases {
    /** How long a caller waits for its release. */
    static final Duration RELEASE_WAIT_MAX = Duration.ofSeconds(5);

    private static final Duration ATTEMPT = Duration.ofSeconds(3);
    private static final int AT_ONCE = 16;
    private static final Duration PAUSE_FIRST = Duration.ofMillis(100);
    private static final Duration PAUSE_MAX = Duration.ofSeconds(5);

    private final Engine engine;
    private final Queue<Task> waiting = new ArrayDeque<>();
    private final Set<Task> open = ConcurrentHashMap.newKeySet();
    private int underWay;

    Releases(Engine engine) {
        this.engine = engine;
    }

    private final class Task {
        private final Protocol.ReleaseRequest request;
        private final long giveUpAt;
        private final CompletableFuture<Boolean> done = new CompletableFuture<>();
        private final CompletableFuture<Throwable> firstFailure = new CompletableFuture<>();
        private Duration pause = PAUSE_FIRST;

        private Task(Protocol.ReleaseRequest request, long giveUpAt) {
            this.request = request;
            this.giveUpAt = giveUpAt;
        }

        private void attempt() {
            Transport.Exchange exchange;
            try {
                exchange = engine.transport.send(Protocol.release(request, ATTEMPT));
            } catch (RuntimeException closed) {
                done.completeExceptionally(closed);
                finished();
                return;
            }
            exchange.answer().whenComplete((answer, thrown) -> {
                try {
                    if (thrown != null) {
                        failed(thrown);
                    } else {
                        done.complete(Protocol.readRelease(answer, request.claim()));
                    }
                } catch (Throwable error) {
                    failed(error);
                } finally {
                    finished();
                }
            });
        }

        private void failed(Throwable error) {
            boolean mayHelp = error instanceof UnavailableException;
            if (!mayHelp || engine.clock.now() - giveUpAt >= 0) {
                done.completeExceptionally(error);
                return;
            }
            firstFailure.complete(error);
            long nanos = ThreadLocalRandom.current().nextLong(pause.toNanos() / 2, pause.toNanos() + 1);
            pause = Times.clamp(pause.multipliedBy(2), PAUSE_FIRST, PAUSE_MAX);
            try {
                engine.after(nanos, () -> enqueue(this));
            } catch (RejectedExecutionException closed) {
                done.completeExceptionally(error);
            }
        }
    }

    /** A release that goes on by itself. */
    final class Pending {
        private final Task task;

        private Pending(Task task) {
            this.task = task;
        }

        /**
         * Waits a while for the answer.
         *
         * @return whether the request ended the claim; false if it was gone
         */
        boolean await(Duration atMost) throws InterruptedException {
            try {
                return task.done.get(atMost.toNanos(), TimeUnit.NANOSECONDS);
            } catch (ExecutionException error) {
                throw Transport.unwrap(error);
            } catch (CancellationException error) {
                throw Engine.closed(error);
            } catch (TimeoutException error) {
                Throwable cause = task.firstFailure.getNow(error);
                throw new UnavailableException(
                        "the release of " + task.request.claim().resource() + " was not answered within " + atMost.toMillis()
                                + " ms; it is repeated in the background",
                        Effect.UNKNOWN,
                        cause);
            }
        }
    }

    /** Begins to end a claim, and repeats it until then. */
    Pending begin(Protocol.ReleaseRequest request, long giveUpAt) {
        Task task = new Task(request, giveUpAt);
        open.add(task);
        task.done.whenComplete((released, error) -> open.remove(task));
        enqueue(task);
        return new Pending(task);
    }

    private void enqueue(Task task) {
        synchronized (this) {
            if (underWay >= AT_ONCE) {
                waiting.add(task);
                return;
            }
            underWay++;
        }
        task.attempt();
    }

    private void finished() {
        Task next;
        synchronized (this) {
            next = waiting.poll();
            if (next == null) {
                underWay--;
                return;
            }
        }
        try {
            // Not here: the stack would grow with the queue.
            engine.pool.execute(next::attempt);
        } catch (RejectedExecutionException closed) {
            next.done.completeExceptionally(Engine.closed(closed));
        } catch (Throwable noThread) {
            engine.after(PAUSE_FIRST.toNanos(), next::attempt);
        }
    }

    /** Waits until everything has been released, or this time is over. */
    void flush(Duration atMost) throws InterruptedException {
        CompletableFuture<?>[] all = open.stream().map(task -> task.done).toArray(CompletableFuture[]::new);
        try {
            CompletableFuture.allOf(all).get(atMost.toNanos(), TimeUnit.NANOSECONDS);
        } catch (ExecutionException | TimeoutException error) {
            // What is not released by now ends with its ttl.
            return;
        }
    }
}

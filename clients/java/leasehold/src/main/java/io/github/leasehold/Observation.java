package io.github.leasehold;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Consumer;

/**
 * Follows an election until it is closed, or {@linkplain #refused() refused}. While the server does not answer, the last leader that was seen
 * stands.
 *
 * <p>The listener is called from one thread at a time: with the leader of the moment, then after each change.
 */
public final class Observation implements AutoCloseable {
    private static final System.Logger LOG = System.getLogger("io.github.leasehold");
    private static final Duration WAIT = Duration.ofSeconds(30);
    private static final Duration BETWEEN = Duration.ofMillis(50);
    private static final Duration PAUSE_MAX = Duration.ofSeconds(2);

    private final Engine engine;
    private final String resource;
    private final Consumer<Optional<Leader>> listener;
    private Transport.Exchange exchange;
    private volatile boolean isClosed;
    private final CompletableFuture<LeaseholdException> refused = new CompletableFuture<>();
    // Only one request is under way at a time, so these need no lock.
    private String cursor;
    private Optional<Leader> last;
    private Duration pause = BETWEEN;

    Observation(Engine engine, String resource, Consumer<Optional<Leader>> listener) {
        this.engine = engine;
        this.resource = resource;
        this.listener = listener;
        Names.keyOf(resource);
    }

    void start() {
        Map<String, String> query = new LinkedHashMap<>();
        query.put("name", resource);
        if (cursor != null) {
            query.put("cursor", cursor);
            query.put("wait_ms", Long.toString(WAIT.toMillis()));
        }
        Transport.Exchange begun = engine.transport.send(Protocol.get("/v1/resource", query, WAIT.plus(Acquisition.TIMEOUT)));
        synchronized (this) {
            exchange = begun;
        }
        if (isClosed) {
            begun.cancel();
        }
        // The pool: the listener may take its time.
        begun.answer().whenComplete((answer, thrown) -> engine.inPool(() -> answered(answer, thrown)));
    }

    private void answered(Protocol.Answer answer, Throwable thrown) {
        Duration next;
        try {
            next = thrown == null ? read(answer) : failed(thrown);
        } catch (LeaseholdException error) {
            next = failed(error);
        } catch (Throwable bug) {
            LOG.log(System.Logger.Level.WARNING, "the observation of " + resource + " goes on after a failure", bug);
            next = pauseAfterFailure();
        }
        if (isClosed) {
            return;
        }
        try {
            engine.after(next.toNanos(), this::startAgain);
        } catch (RejectedExecutionException closed) {
            isClosed = true;
        }
    }

    private void startAgain() {
        if (isClosed) {
            return;
        }
        try {
            start();
        } catch (CancelledException closed) {
            isClosed = true;
        }
    }

    private Duration read(Protocol.Answer answer) {
        ResourceState state = Protocol.readDocument(answer, ResourceState::read);
        if (!state.key().equals(Names.keyOf(resource))) {
            throw UnavailableException.unknown("the answer is about another resource");
        }
        // Throws if the resource cannot be read. That does not mean that nobody leads.
        Optional<Leader> leader = state.leader();
        cursor = state.cursor();
        pause = BETWEEN;
        tell(leader);
        return BETWEEN;
    }

    private Duration failed(Throwable error) {
        boolean mayPass = !(error instanceof LeaseholdException)
                || error instanceof UnavailableException
                || error instanceof CancelledException
                || error instanceof CorruptException;
        if (!mayPass) {
            isClosed = true;
            LOG.log(System.Logger.Level.WARNING, "the observation of {0} has ended: {1}", resource, error.getMessage());
            refused.complete((LeaseholdException) error);
        } else if (!isClosed) {
            boolean isFirst = pause.equals(BETWEEN);
            System.Logger.Level level =
                    error instanceof CorruptException && isFirst ? System.Logger.Level.WARNING : System.Logger.Level.DEBUG;
            LOG.log(level, "the observation of {0} goes on after a failure: {1}", resource, error.getMessage());
        }
        return pauseAfterFailure();
    }

    private Duration pauseAfterFailure() {
        cursor = null; // it may be of a server that is gone
        pause = Times.clamp(pause.multipliedBy(2), BETWEEN, PAUSE_MAX);
        return Duration.ofNanos(ThreadLocalRandom.current().nextLong(pause.toNanos() / 2, pause.toNanos() + 1));
    }

    private void tell(Optional<Leader> leader) {
        if (isClosed || leader.equals(last)) {
            return;
        }
        last = leader;
        try {
            listener.accept(leader);
        } catch (Throwable error) {
            LOG.log(System.Logger.Level.WARNING, "a listener of the election " + resource + " failed", error);
        }
    }

    /**
     * Completes if the server refuses the observation, as without a valid access token: then it has ended, and the listener is not called
     * any more.
     *
     * @return a future of its own for each call
     */
    public CompletableFuture<LeaseholdException> refused() {
        return refused.copy();
    }

    /** Ends the observation. A call of the listener that has begun goes on. */
    @Override
    public void close() {
        Transport.Exchange open;
        synchronized (this) {
            isClosed = true;
            open = exchange;
        }
        if (open != null) {
            open.cancel();
        }
    }
}

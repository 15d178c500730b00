package io.github.leasehold;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Consumer;

/**
 * Follows an election until it is closed. While the server does not answer, the last leader that was seen stands.
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
        begun.answer().whenCompleteAsync(this::answered, engine.pool);
    }

    private void answered(Protocol.Answer answer, Throwable thrown) {
        Duration next = BETWEEN;
        try {
            if (thrown != null) {
                next = failed(thrown);
            } else {
                ResourceState state = Protocol.readDocument(answer, ResourceState::read);
                if (!state.key().equals(Names.keyOf(resource))) {
                    throw UnavailableException.unknown("the answer is about another resource");
                }
                cursor = state.cursor();
                pause = BETWEEN;
                tell(state.leader());
            }
        } catch (LeaseholdException error) {
            next = failed(error);
        }
        if (isClosed) {
            return;
        }
        try {
            engine.after(next.toNanos(), () -> {
                if (!isClosed) {
                    start();
                }
            });
        } catch (RejectedExecutionException closed) {
            isClosed = true;
        }
    }

    private Duration failed(Throwable error) {
        if (!isClosed) {
            LOG.log(System.Logger.Level.DEBUG, "the observation of {0} goes on after a failure: {1}", resource, error.getMessage());
        }
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
        } catch (RuntimeException error) {
            LOG.log(System.Logger.Level.WARNING, "a listener of the election " + resource + " failed", error);
        }
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

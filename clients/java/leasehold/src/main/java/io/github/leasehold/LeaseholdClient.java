package io.github.leasehold;

import java.io.IOException;
import java.net.InetAddress;
import java.net.URI;
import java.net.UnknownHostException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;
import javax.net.ssl.SSLContext;

/**
 * A client of a leasehold server. Make one for a program and share it: it is safe for use by several threads, and renews all leases by
 * one thread of its own.
 *
 * <pre>{@code
 * LeaseholdClient client = LeaseholdClient.connect("http://127.0.0.1:7420");
 * try (Lease lease = client.acquire("report/42")) {
 *     lease.check();
 * }
 * }</pre>
 */
public final class LeaseholdClient implements AutoCloseable {
    private final Engine engine;
    private final Map<String, Object> identity;
    private final String label;
    private volatile boolean isClosed;

    private LeaseholdClient(Builder builder) {
        SSLContext tls = builder.tls;
        engine = new Engine(new Transport.Config(builder.server, builder.token, tls, builder.clock));
        label = builder.label;
        identity = new LinkedHashMap<>();
        identity.put("host", builder.host == null ? hostName() : builder.host);
        identity.put("pid", ProcessHandle.current().pid());
        identity.put("process", Names.randomHex(8));
    }

    /**
     * A client of the server at this address. Nothing is sent yet.
     *
     * @param url for example {@code http://127.0.0.1:7420}
     * @return the client
     */
    public static LeaseholdClient connect(String url) {
        return builder(url).build();
    }

    /**
     * Begins to make a client of the server at this address.
     *
     * @param url {@code http://HOST:PORT} or {@code https://HOST}, perhaps with a path before {@code /v1}
     * @return the builder
     */
    public static Builder builder(String url) {
        return new Builder(url);
    }

    /** Makes a client. */
    public static final class Builder {
        private final URI server;
        private Supplier<String> token;
        private SSLContext tls;
        private String label = "";
        private String host;
        private Clock clock = Clock.SYSTEM;

        private Builder(String url) {
            String trimmed = url.endsWith("/") ? url.substring(0, url.length() - 1) : url;
            URI uri;
            try {
                uri = URI.create(trimmed);
            } catch (IllegalArgumentException error) {
                // Without the text, which may have a password in it.
                throw new InvalidException("the address of the server is not a URL");
            }
            if (uri.getRawUserInfo() != null) {
                throw new InvalidException("the address has a user or a password in it: give the token to token(…)");
            }
            boolean isHttp = "http".equals(uri.getScheme()) || "https".equals(uri.getScheme());
            if (!isHttp || uri.getHost() == null || uri.getRawQuery() != null || uri.getRawFragment() != null) {
                // Without the text, too: Java finds no user and no host in an address like http://user:secret@lease_server.
                throw new InvalidException("the address of the server is wrong: write http://HOST:PORT or https://HOST, without a query;"
                        + " a host name has letters, digits, '-' and '.'");
            }
            server = uri;
        }

        /**
         * The access token.
         *
         * @param secret {@code lh_…}
         * @return this builder
         */
        public Builder token(String secret) {
            return token(() -> secret);
        }

        /**
         * Where the access token is read before each request: it may be replaced. It is read on a thread of the client. The time of the request
         * runs meanwhile.
         *
         * @param source gives the token, or null for none
         * @return this builder
         */
        public Builder token(Supplier<String> source) {
            token = source;
            return this;
        }

        /**
         * Certificates of authorities and of this client, for https.
         *
         * @param context the context; the default is that of the JVM
         * @return this builder
         */
        public Builder tls(SSLContext context) {
            tls = context;
            return this;
        }

        /**
         * The purpose of the leases, for people.
         *
         * @param purpose a short text
         * @return this builder
         */
        public Builder label(String purpose) {
            label = purpose;
            return this;
        }

        /**
         * The name of this host, for people. The default is what the system says.
         *
         * @param name the name
         * @return this builder
         */
        public Builder host(String name) {
            host = name;
            return this;
        }

        /** The clocks, for tests. */
        Builder clock(Clock clocks) {
            clock = clocks;
            return this;
        }

        /**
         * Makes the client. Nothing is sent yet.
         *
         * @return the client
         */
        public LeaseholdClient build() {
            return new LeaseholdClient(this);
        }
    }

    /** Without asking DNS where that can be avoided: it may take seconds. */
    private static String hostName() {
        try {
            String name = Files.readString(Path.of("/proc/sys/kernel/hostname")).trim();
            if (!name.isEmpty()) {
                return name;
            }
        } catch (IOException | SecurityException error) {
            // Not Linux.
        }
        for (String variable : List.of("HOSTNAME", "COMPUTERNAME")) {
            String name = System.getenv(variable);
            if (name != null && !name.isEmpty()) {
                return name;
            }
        }
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException error) {
            return "unknown";
        }
    }

    void checkOpen() {
        if (isClosed) {
            throw new IllegalStateException("the client is closed");
        }
    }

    /**
     * Acquires an exclusive lease of 30 s that is renewed in the background. Waits up to 10 s while others hold it.
     *
     * @param name {@code kind/id} or {@code namespace:kind/id}
     * @return the lease, which must be closed
     * @throws LeaseholdException see {@link #acquire(String, LeaseOptions)}
     */
    public Lease acquire(String name) {
        return acquire(name, LeaseOptions.defaults());
    }

    /**
     * Acquires a lease. Waits while others hold it, in the order of arrival; an interrupt ends that.
     *
     * @param name {@code kind/id} or {@code namespace:kind/id}
     * @param options the ttl, how long to wait, and more
     * @return the lease, which must be closed
     * @throws TimedOutException if others hold it, and the time to wait is over
     * @throws BusyException if others hold it, and there was no time to wait
     * @throws UnavailableException if the server does not answer
     * @throws DeniedException if the access token is not valid, or does not allow it
     * @throws InvalidException if the request is wrong
     * @throws CancelledException if this thread was interrupted; its interrupt flag is set
     */
    public Lease acquire(String name, LeaseOptions options) {
        return acquire(name, options, options.waitLimit(), List.of());
    }

    private Lease acquire(String name, LeaseOptions options, Optional<Duration> wait, List<Lease> others) {
        checkOpen();
        Map<String, Object> fields = new LinkedHashMap<>(identity);
        fields.putAll(options.fields(label));
        Claim claim = new Claim(name, options.ttl(), fields);
        Acquisition acquisition = new Acquisition(engine, claim, options, wait);
        others.forEach(other -> other.onLost(loss -> acquisition.stop(new LostException(loss.getMessage(), loss.why(), loss))));
        Lease lease = new Lease(engine, acquisition.run(), options.isRenewed());
        engine.renewals.add(lease);
        if (isClosed) {
            // It was closed meanwhile.
            lease.close();
            throw Engine.closed(null);
        }
        return lease;
    }

    /**
     * Tries to acquire an exclusive lease, once.
     *
     * @param name {@code kind/id} or {@code namespace:kind/id}
     * @return the lease, which must be closed; empty if others hold it
     * @throws LeaseholdException if that cannot be told
     */
    public Optional<Lease> tryAcquire(String name) {
        return tryAcquire(name, LeaseOptions.defaults());
    }

    /**
     * Tries to acquire a lease, once, whatever the options say of waiting. Who holds it is in the exception of
     * {@link #acquire(String, LeaseOptions)} with no time to wait.
     *
     * @param name {@code kind/id} or {@code namespace:kind/id}
     * @param options the ttl, and more
     * @return the lease, which must be closed; empty if others hold it
     * @throws LeaseholdException if that cannot be told
     */
    public Optional<Lease> tryAcquire(String name, LeaseOptions options) {
        try {
            return Optional.of(acquire(name, options, Optional.of(Duration.ZERO), List.of()));
        } catch (BusyException busy) {
            return Optional.empty();
        }
    }

    /**
     * Acquires several leases, all or none, in the byte order of their keys: two programs cannot block each other. If one of them is lost
     * while this waits for the next one, it ends at once.
     *
     * @param names the resources
     * @param options for each of them; the time to wait is for all together
     * @return the leases, which must be closed
     * @throws LostException if one of them was lost before all were acquired
     * @throws LeaseholdException see {@link #acquire(String, LeaseOptions)}; then none of them is held
     */
    public Leases acquireAll(Collection<String> names, LeaseOptions options) {
        checkOpen();
        Map<String, String> byKey = new TreeMap<>();
        for (String name : names) {
            if (byKey.put(Names.keyOf(name), name) != null) {
                throw new InvalidException(name + " is there twice");
            }
        }
        return Leases.acquire(List.copyOf(byKey.values()), options.waitLimit(), (name, wait, held) -> acquire(name, options, wait, held));
    }

    /**
     * Runs something while an exclusive lease is held.
     *
     * @param <T> what it gives
     * @param name the resource
     * @param body what to do
     * @return what it gives
     * @throws LostException if the lease was lost before the body ended
     * @throws LeaseholdException if there is no lease; then the body was not run
     */
    public <T> T withLock(String name, Supplier<T> body) {
        return withLock(name, LeaseOptions.defaults(), lease -> body.get());
    }

    /**
     * Runs something while an exclusive lease is held.
     *
     * @param name the resource
     * @param body what to do
     * @throws LostException if the lease was lost before the body ended
     * @throws LeaseholdException if there is no lease; then the body was not run
     */
    public void withLock(String name, Runnable body) {
        withLock(name, LeaseOptions.defaults(), lease -> {
            body.run();
            return null;
        });
    }

    /**
     * Runs something while a lease is held. An error of the body comes out as it is. The body may release the lease itself.
     *
     * @param <T> what it gives
     * @param <E> what it may throw
     * @param name the resource
     * @param options how the lease is acquired
     * @param body what to do; it should call {@link Lease#check()} before each effect
     * @return what it gives
     * @throws E the error of the body
     * @throws LostException if the lease was lost before the body ended
     * @throws LeaseholdException if there is no lease; then the body was not run
     */
    public <T, E extends Exception> T withLock(String name, LeaseOptions options, LeaseBody<T, E> body) throws E {
        try (Lease lease = acquire(name, options)) {
            T result = body.run(lease);
            if (!lease.isReleasedByProgram()) {
                lease.check();
            }
            return result;
        }
    }

    /**
     * Who leads an election: the holder of its resource. A candidate {@linkplain #acquire(String, LeaseOptions) acquires} it, with its
     * address as the note.
     *
     * @param name the resource of the election
     * @return the leader, if there is one
     * @throws LeaseholdException if that cannot be told
     */
    public Optional<Leader> leader(String name) {
        return resource(name).leader();
    }

    /**
     * Follows an election: calls the listener with the leader of the moment, and after each change, also of the leader's note. While the
     * server does not answer, and while it cannot read the resource, the last leader that was seen stands. If the server refuses it, as
     * without a valid access token, this ends: see {@link Observation#refused()}.
     *
     * @param name the resource of the election
     * @param listener runs on a thread of the client, one call at a time; empty while nobody leads
     * @return close it to end this
     */
    public Observation observe(String name, Consumer<Optional<Leader>> listener) {
        checkOpen();
        Observation observation = new Observation(engine, name, listener);
        observation.start();
        return observation;
    }

    /**
     * A resource as it is now.
     *
     * @param name the resource
     * @return its state
     * @throws LeaseholdException if that cannot be told
     */
    public ResourceState resource(String name) {
        Names.keyOf(name);
        return query("/v1/resource", Map.of("name", name), ResourceState::read);
    }

    /**
     * All resources that are in use, in the order of their keys.
     *
     * @param prefix what their keys begin with; empty for all
     * @return the resources
     * @throws LeaseholdException if that cannot be told
     */
    public List<ResourceState> list(String prefix) {
        List<ResourceState> all = new ArrayList<>();
        Map<String, String> query = new LinkedHashMap<>();
        query.put("prefix", prefix);
        Optional<String> next;
        do {
            next = query("/v1/resources", query, page -> {
                page.docs("resources").forEach(resource -> all.add(ResourceState.read(resource)));
                return page.optText("next");
            });
            next.ifPresent(after -> query.put("after", after));
        } while (next.isPresent());
        return all;
    }

    /**
     * All resources in numbers, and those with the longest waits.
     *
     * @return the overview
     * @throws LeaseholdException if that cannot be told
     */
    public Overview overview() {
        return overview(OverviewQuery.all());
    }

    /**
     * All resources in numbers, and some of them.
     *
     * @param query which ones
     * @return the overview
     * @throws LeaseholdException if that cannot be told
     */
    public Overview overview(OverviewQuery query) {
        return query("/v1/overview", query.parameters(), Overview::read);
    }

    /**
     * Carries out an operator's order. It is sent once: after an {@link UnavailableException} with an unknown effect, look first.
     *
     * @param order the order
     * @throws HolderChangedException if the grant that it names is gone
     * @throws LeaseholdException if it is refused, or not answered
     */
    public void order(Order order) {
        Protocol.readDocument(call(Protocol.order(order, Acquisition.TIMEOUT)), doc -> {
            if (!doc.optText("verdict").orElse("").equals("done")) {
                throw UnavailableException.unknown("the answer to an order has an unknown verdict");
            }
            if (!doc.text("key").equals(order.key())) {
                throw UnavailableException.unknown("the answer to an order is about another resource");
            }
            return null;
        });
    }

    private <T> T query(String path, Map<String, String> parameters, Function<Doc, T> reader) {
        return Protocol.readDocument(call(Protocol.get(path, parameters, Acquisition.TIMEOUT)), reader);
    }

    Protocol.Answer call(Protocol.Call call) {
        checkOpen();
        try {
            return engine.transport.call(call);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new CancelledException("interrupted while a request was under way", interrupted);
        }
    }

    /**
     * This client as a service of plain values, without renewal in the background.
     *
     * @return the service
     */
    public DistributedLeaseService leaseService() {
        return new ClientLeaseService(this, engine, label, identity);
    }

    /**
     * Ends everything: waiting claims are cancelled, all leases that are held are released, within a few seconds. What is not released by
     * then ends with its ttl. A thread that was interrupted before releases, too, and keeps its interrupt flag.
     */
    @Override
    public void close() {
        if (isClosed) {
            return;
        }
        isClosed = true;
        boolean wasInterrupted = Thread.interrupted();
        try {
            engine.cancelAcquisitions(Releases.RELEASE_WAIT_MAX);
            releaseAll();
        } catch (InterruptedException interrupted) {
            wasInterrupted = true;
        } finally {
            engine.shutdown();
            if (wasInterrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private void releaseAll() throws InterruptedException {
        engine.renewals.all().forEach(lease -> lease.beginRelease(Duration.ZERO));
        engine.releases.flush(Releases.RELEASE_WAIT_MAX);
    }

    @Override
    public String toString() {
        return "LeaseholdClient[" + engine.transport.server() + "]";
    }
}

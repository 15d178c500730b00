package io.github.leasehold;

import java.io.IOException;
import java.net.ConnectException;
import java.net.URI;
import java.net.UnknownHostException;
import java.net.http.HttpClient;
import java.net.http.HttpConnectTimeoutException;
import java.net.http.HttpHeaders;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.channels.UnresolvedAddressException;
import java.security.cert.CertificateException;
import java.time.Duration;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLException;
import javax.net.ssl.SSLHandshakeException;

/**
 * Sends requests, and believes only answers to them.
 *
 * <ol>
 *   <li>HTTP/1.1: each request has a connection of its own. Over HTTP/2 all would share one, and one that hangs would hang them all.
 *   <li>Renewals and releases have connections that claims do not use.
 *   <li>An answer without the headers of a leasehold server, of another store than the first answer, or to another request, is not
 *       believed, and its connection is closed. After an answer of another store no lease is taken for a minute: another client may
 *       hold the same lease there.
 *   <li>No connection: no effect. Everything else that fails has an unknown effect. A request whose connection breaks is sent once more,
 *       if it may be repeated: the server closes idle connections. The first one may have been carried out, or may still be, so
 *       {@link Exchange#hadUnanswered} says so, also if the second one is answered.
 *   <li>Requests begin on a thread of the pool: the source of the access token is code of the program, and may block or fail.
 * </ol>
 */
final class Transport {
    /** How much of an answer is read. */
    static final int ANSWER_MAX = 64 << 20;

    private static final Duration CONNECT_TIMEOUT = Duration.ofSeconds(5);
    private static final Duration TWO_STORES_FOR = Duration.ofMinutes(1);

    private final URI server;
    private final Supplier<String> token;
    private final Clock clock;
    private final ScheduledExecutorService timer;
    private final HttpClient claims;
    private final HttpClient leases;
    private String store;
    private long anotherStoreAt;
    private boolean sawAnotherStore;
    private final Executor pool;
    private final Set<Exchange> underWay = ConcurrentHashMap.newKeySet();
    private volatile boolean claimsEnded;
    private volatile boolean isClosed;

    /** What a transport needs. */
    record Config(URI server, Supplier<String> token, SSLContext tls, Clock clock) {}

    Transport(Config config, ScheduledExecutorService timer, Executor pool) {
        this.server = config.server;
        this.token = config.token;
        this.clock = config.clock;
        this.timer = timer;
        this.pool = pool;
        this.claims = httpClient(config, pool);
        this.leases = httpClient(config, pool);
    }

    private static HttpClient httpClient(Config config, Executor pool) {
        HttpClient.Builder builder = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .followRedirects(HttpClient.Redirect.NEVER)
                .connectTimeout(CONNECT_TIMEOUT)
                .executor(pool);
        if (config.tls != null) {
            builder.sslContext(config.tls);
        }
        return builder.build();
    }

    URI server() {
        return server;
    }

    /**
     * Fails if two stores have answered at this address a short while ago.
     *
     * @param effect of the request, which may have been sent before
     */
    synchronized void checkOneStore(Effect effect) {
        if (sawAnotherStore && clock.now() - anotherStoreAt < TWO_STORES_FOR.toNanos()) {
            throw new UnavailableException(
                    server + " has answered for another store within the last " + TWO_STORES_FOR.toSeconds()
                            + " s, so no lease is taken there: all servers at one address must have the same store",
                    effect,
                    null);
        }
    }

    /** A request that is under way. */
    final class Exchange {
        private final Protocol.Call call;
        private final CompletableFuture<Protocol.Answer> answer = new CompletableFuture<>();
        private final ScheduledFuture<?> limit;
        private CompletableFuture<?> attempt;
        private boolean isOver;
        private volatile boolean hadUnanswered;

        private Exchange(Protocol.Call call) {
            this.call = call;
            this.limit = timer.schedule(this::timedOut, call.atMost().toNanos(), TimeUnit.NANOSECONDS);
        }

        /** The answer, or a {@link LeaseholdException}. */
        CompletableFuture<Protocol.Answer> answer() {
            return answer;
        }

        /** Whether the request was sent before, without an answer: that one may have been carried out, or may still be. */
        boolean hadUnanswered() {
            return hadUnanswered;
        }

        /** Waits for the answer. An interrupt cancels the request. */
        Protocol.Answer await() throws InterruptedException {
            try {
                return answer.get();
            } catch (InterruptedException interrupted) {
                cancel();
                throw interrupted;
            } catch (ExecutionException error) {
                throw unwrap(error);
            } catch (CancellationException error) {
                throw Engine.closed(error);
            }
        }

        private void timedOut() {
            fail(new UnavailableException(
                    server + " did not answer within " + call.atMost().toMillis() + " ms", Effect.UNKNOWN, null));
        }

        /** Gives up, and closes the connection. */
        void cancel() {
            end(null, new CancellationException("the request was cancelled"));
        }

        private void fail(LeaseholdException error) {
            boolean mayHaveBeenSent = hadUnanswered && error instanceof UnavailableException;
            end(null, mayHaveBeenSent ? ((UnavailableException) error).withUnknownEffect() : error);
        }

        private void end(Protocol.Answer value, Throwable error) {
            limit.cancel(false);
            underWay.remove(this);
            CompletableFuture<?> abandoned;
            synchronized (this) {
                isOver = true;
                abandoned = attempt;
                attempt = null;
            }
            if (error == null) {
                answer.complete(value);
                return;
            }
            answer.completeExceptionally(error);
            if (abandoned != null) {
                abandoned.cancel(true);
            }
        }

        private void start() {
            String id = Names.randomHex(8);
            CompletableFuture<HttpResponse<byte[]>> sent;
            try {
                HttpRequest request = request(call, id);
                synchronized (this) {
                    if (isOver) {
                        return;
                    }
                }
                HttpClient client = call.lane() == Protocol.Lane.LEASES ? leases : claims;
                sent = client.sendAsync(request, info -> subscriber(info, id));
            } catch (Throwable error) {
                // Errors, too, as those of the token's source: somebody waits for this exchange.
                fail(error instanceof LeaseholdException known ? known : cannotBeSent(error));
                return;
            }
            boolean isAbandoned;
            synchronized (this) {
                isAbandoned = isOver;
                attempt = isOver ? null : sent;
            }
            if (isAbandoned) {
                sent.cancel(true);
            }
            sent.whenComplete(this::completed);
        }

        private void completed(HttpResponse<byte[]> response, Throwable thrown) {
            if (thrown == null) {
                end(new Protocol.Answer(response.statusCode(), response.body()), null);
                return;
            }
            LeaseholdException error = explain(thrown);
            boolean isBroken = error instanceof UnavailableException && error.effect() == Effect.UNKNOWN && error.getCause() != null;
            if (isBroken && call.mayRepeat() && !hadUnanswered && !answer.isDone()) {
                hadUnanswered = true;
                start();
            } else {
                fail(error);
            }
        }
    }

    private static UnavailableException cannotBeSent(Throwable error) {
        return new UnavailableException("the request cannot be sent: " + error, Effect.NONE, error);
    }

    /** Begins a request, on a thread of the pool. Read the clock before. */
    Exchange send(Protocol.Call call) {
        Exchange exchange;
        try {
            exchange = new Exchange(call);
        } catch (RejectedExecutionException error) {
            throw Engine.closed(error);
        }
        underWay.add(exchange);
        // Looked at after the exchange was added: close() first sets this, and then cancels all exchanges that it finds.
        if (isClosed || claimsEnded && call.lane() == Protocol.Lane.CLAIMS) {
            exchange.cancel();
            return exchange;
        }
        try {
            pool.execute(exchange::start);
        } catch (RejectedExecutionException error) {
            exchange.cancel();
        } catch (Throwable error) {
            // No more threads, for example.
            exchange.fail(cannotBeSent(error));
        }
        return exchange;
    }

    /** Ends all requests that are neither renewals nor releases, and begins no more of them: the client is being closed. */
    void endClaims() {
        claimsEnded = true;
        underWay.stream().filter(exchange -> exchange.call.lane() == Protocol.Lane.CLAIMS).forEach(Exchange::cancel);
    }

    /** Ends all requests, and begins no more: nothing limits their time any more. */
    void close() {
        isClosed = true;
        underWay.forEach(Exchange::cancel);
    }

    /** Sends a request, and waits for its answer. An interrupt cancels it. */
    Protocol.Answer call(Protocol.Call call) throws InterruptedException {
        return send(call).await();
    }

    /** The exception, with the frames of the caller: it was made on another thread, and belongs to this caller alone. */
    static RuntimeException unwrap(ExecutionException error) {
        if (error.getCause() instanceof LeaseholdException known) {
            known.fillInStackTrace();
            return known;
        }
        return new UnavailableException("the request failed: " + error.getCause(), Effect.UNKNOWN, error.getCause());
    }

    private HttpRequest request(Protocol.Call call, String id) {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(server + call.path()))
                .header("Leasehold-Request", id)
                .header("User-Agent", "leasehold-java/" + Version.VERSION);
        String secret = token == null ? null : token.get();
        if (secret != null) {
            try {
                request.header("Authorization", "Bearer " + secret);
            } catch (IllegalArgumentException error) {
                // Its own message has the token in it.
                throw new InvalidException("the access token has characters that a header cannot have");
            }
        }
        if (call.body() == null) {
            return request.GET().build();
        }
        return request.header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(call.body()))
                .build();
    }

    private HttpResponse.BodySubscriber<byte[]> subscriber(HttpResponse.ResponseInfo info, String id) {
        try {
            check(info.headers(), info.statusCode(), id);
            return LimitedBody.of(ANSWER_MAX);
        } catch (LeaseholdException error) {
            return LimitedBody.refusing(error);
        }
    }

    /** That the answer is of a leasehold server, of our store, and to this request. */
    private void check(HttpHeaders headers, int status, String id) {
        Optional<String> theirs = headers.firstValue("Leasehold-Store");
        boolean isOurs = headers.firstValue("Leasehold-Api").filter(version -> version.startsWith("1.")).isPresent();
        if (theirs.isEmpty() || !isOurs) {
            throw UnavailableException.unknown(server + " answered with status " + status
                    + ", and not as a leasehold server does: check the address, and what stands between this host and the server");
        }
        if (!headers.firstValue("Leasehold-Request").equals(Optional.of(id))) {
            throw UnavailableException.unknown("the answer of " + server + " belongs to another request");
        }
        checkStore(theirs.get());
    }

    private synchronized void checkStore(String theirs) {
        if (store == null) {
            store = theirs;
        }
        if (!store.equals(theirs)) {
            sawAnotherStore = true;
            anotherStoreAt = clock.now();
            String shown = Json.escape(theirs.length() <= 20 ? theirs : theirs.substring(0, 20));
            throw UnavailableException.unknown(server + " now serves another store (id " + shown + ", before " + store
                    + "), so its answer says nothing about our leases: all servers at one address must have the same store");
        }
    }

    private LeaseholdException explain(Throwable thrown) {
        Throwable error = thrown instanceof CompletionException && thrown.getCause() != null ? thrown.getCause() : thrown;
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof LeaseholdException known) {
                return known;
            }
            if (cause instanceof CertificateException) {
                return new DeniedException(server + " cannot be trusted: " + cause.getMessage(), Effect.NONE, error);
            }
        }
        String why = error.getMessage() == null ? error.getClass().getSimpleName() : error.getMessage();
        if (isBeforeSending(error)) {
            return new UnavailableException("cannot connect to " + server + ": " + why, Effect.NONE, error);
        }
        if (error instanceof IOException || error instanceof CancellationException) {
            return new UnavailableException(
                    "the connection to " + server + " broke before the answer came: " + why, Effect.UNKNOWN, error);
        }
        return new UnavailableException("the request to " + server + " failed: " + why, Effect.UNKNOWN, error);
    }

    private static boolean isBeforeSending(Throwable error) {
        return error instanceof ConnectException
                || error instanceof HttpConnectTimeoutException
                || error instanceof UnknownHostException
                || error instanceof SSLHandshakeException
                || error instanceof SSLException && error.getCause() instanceof SSLHandshakeException
                || error.getCause() instanceof UnresolvedAddressException;
    }
}

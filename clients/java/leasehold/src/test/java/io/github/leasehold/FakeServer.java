package io.github.leasehold;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import com.sun.net.httpserver.HttpsConfigurator;
import com.sun.net.httpserver.HttpsServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;
import javax.net.ssl.SSLContext;

/** A server that answers as the test wants. Releases are answered well, unless the test wants otherwise, and noted. */
public final class FakeServer implements AutoCloseable {
    private final HttpServer server;
    private final String scheme;
    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final BlockingQueue<Request> releases = new LinkedBlockingQueue<>();
    private final List<Request> requests = new CopyOnWriteArrayList<>();
    private volatile Script script;
    private volatile Script releaseScript = request -> Reply.of(200, request.released());

    /** A request as it arrived. */
    public record Request(String path, Map<?, ?> body) {
        public String text(String field) {
            return (String) body.get(field);
        }

        /** Whether this is a claim. */
        boolean isAcquire() {
            return path.equals("/v1/acquire");
        }

        /** A truthful grant. */
        public Map<String, Object> grant() {
            String hash = Names.ownerHash(text("owner"));
            // The requests of a handle name the key. Here both are the same.
            String resource = body.containsKey("resource") ? text("resource") : text("key");
            Map<String, Object> grant = new LinkedHashMap<>();
            grant.put("verdict", "granted");
            grant.put("resource", resource);
            grant.put("key", Names.keyOf(resource));
            grant.put("owner_hash", hash);
            grant.put("token", "7");
            grant.put("pass", "7 " + hash + " " + resource);
            grant.put("ttl_ms", body.get("ttl_ms"));
            grant.put("remaining_ms", body.get("ttl_ms"));
            grant.put("waited_ms", 0);
            return grant;
        }

        /** A truthful answer to a release. */
        public Map<String, Object> released() {
            return with("verdict", "released");
        }

        /** A truthful answer to the renewal of one lease. */
        Map<String, Object> kept() {
            Map<String, Object> kept = with("verdict", "kept");
            kept.put("status", 200);
            kept.put("grant", "7");
            return kept;
        }

        /** A refusal that names the claim. */
        public Map<String, Object> refusal(String kind) {
            Map<String, Object> refusal = with("kind", kind);
            refusal.put("verdict", kind);
            refusal.put("detail", "it is " + kind);
            return refusal;
        }

        private Map<String, Object> with(String field, Object value) {
            Map<String, Object> changed = grant();
            changed.put(field, value);
            return changed;
        }

        /** The answer to a list of renewals, with the change for each lease. */
        Reply renewals(UnaryOperator<Map<String, Object>> change) {
            List<?> entries = ((List<?>) body.get("leases")).stream()
                    .map(entry -> change.apply(new Request(path, (Map<?, ?>) entry).kept()))
                    .toList();
            return Reply.of(200, Map.of("leases", entries));
        }
    }

    /** An answer. */
    public record Reply(int status, String body, Map<String, String> headers) {
        public static Reply of(int status, Map<String, ?> body) {
            return new Reply(status, Json.write(body), Map.of());
        }

        Reply with(String header, String value) {
            Map<String, String> more = new LinkedHashMap<>(headers);
            more.put(header, value);
            return new Reply(status, body, more);
        }
    }

    /** What it answers. */
    public interface Script {
        /** The answer; null to close the connection without one. */
        Reply answer(Request request) throws InterruptedException;
    }

    public FakeServer(Script script) throws IOException {
        this(script, HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0), "http");
    }

    private FakeServer(Script script, HttpServer server, String scheme) {
        this.script = script;
        this.server = server;
        this.scheme = scheme;
        server.setExecutor(threads);
        server.createContext("/", this::handle);
        server.start();
    }

    /** A server for https. */
    static FakeServer withTls(Script script, SSLContext tls) throws IOException {
        HttpsServer server = HttpsServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.setHttpsConfigurator(new HttpsConfigurator(tls));
        return new FakeServer(script, server, "https");
    }

    /** Its address. */
    public String url() {
        return scheme + "://127.0.0.1:" + server.getAddress().getPort();
    }

    void tell(Script next) {
        script = next;
    }

    /** How it answers releases. */
    public void tellReleases(Script next) {
        releaseScript = next;
    }

    List<Request> requests() {
        return requests;
    }

    /** The next release that arrives. */
    public Request release() throws InterruptedException {
        Request release = releases.poll(20, TimeUnit.SECONDS);
        if (release == null) {
            throw new AssertionError("no release arrived");
        }
        return release;
    }

    boolean wasReleased() {
        return !releases.isEmpty();
    }

    private void handle(HttpExchange exchange) throws IOException {
        try (exchange) {
            byte[] body = exchange.getRequestBody().readAllBytes();
            Request request = new Request(exchange.getRequestURI().getPath(), body.length == 0 ? Map.of() : (Map<?, ?>) Json.read(body));
            requests.add(request);
            Reply reply;
            if (request.path.equals("/v1/release")) {
                releases.add(request);
                reply = releaseScript.answer(request);
            } else {
                reply = script.answer(request);
            }
            if (reply != null) {
                send(exchange, reply);
            }
        } catch (Json.JsonException | InterruptedException error) {
            throw new IOException(error);
        }
    }

    private static void send(HttpExchange exchange, Reply reply) throws IOException {
        Map<String, String> headers = new LinkedHashMap<>();
        headers.put("Leasehold-Api", "1.0");
        headers.put("Leasehold-Store", "store-a");
        headers.put("Leasehold-Request", exchange.getRequestHeaders().getFirst("Leasehold-Request"));
        headers.putAll(reply.headers);
        headers.forEach((name, value) -> {
            if (!value.isEmpty()) {
                exchange.getResponseHeaders().add(name, value);
            }
        });
        byte[] bytes = reply.body.getBytes(StandardCharsets.UTF_8);
        boolean isCut = reply.headers.containsKey("X-Cut");
        exchange.sendResponseHeaders(reply.status, isCut ? bytes.length + 10 : bytes.length == 0 ? -1 : bytes.length);
        exchange.getResponseBody().write(bytes);
    }

    @Override
    public void close() {
        server.stop(0);
        threads.shutdownNow();
    }
}

package io.github.leasehold;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ForkJoinPool;

/** The driver of this client for the stories: see crates/stories/README.md. Each command runs on a thread of its own. */
public final class StoryDriver {
    private final Map<String, LeaseholdClient> clients = new ConcurrentHashMap<>();
    private final Map<String, AutoCloseable> leases = new ConcurrentHashMap<>();
    private final Map<String, CountDownLatch> finishes = new ConcurrentHashMap<>();
    private final Map<Long, Thread> running = new ConcurrentHashMap<>();
    private final ExecutorService threads = Executors.newCachedThreadPool(task -> {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        return thread;
    });
    private final PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private StoryDriver() {}

    /** An error of the program's own body. */
    private static final class BodyException extends Exception {
        private static final long serialVersionUID = 1L;

        BodyException() {
            super("the body failed");
        }
    }

    /** Reads commands until the end of the input. */
    public static void main(String[] arguments) throws IOException {
        new StoryDriver().run();
        System.out.flush();
        // The end of the input is the end of the process: nothing is released.
        Runtime.getRuntime().halt(0);
    }

    private void run() throws IOException {
        write(Map.of("hello", "java", "cannot", Map.of("fork", "a JVM cannot fork")));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Command command = Command.read(line);
            threads.execute(() -> answer(command));
        }
    }

    private record Command(Map<?, ?> fields) {
        static Command read(String line) {
            try {
                return new Command((Map<?, ?>) Json.read(line));
            } catch (Json.JsonException error) {
                throw new IllegalStateException("the runner writes JSON", error);
            }
        }

        long id() {
            return (Long) fields.get("id");
        }

        String text(String name) {
            return (String) fields.get(name);
        }

        Optional<String> optText(String name) {
            return Optional.ofNullable(text(name));
        }

        Duration time(String name) {
            return Duration.ofMillis((Long) fields.get(name));
        }

        LeaseOptions options() {
            LeaseOptions options = LeaseOptions.defaults().ttl(time("ttl_ms")).waitAtMost(time("wait_ms"));
            Object share = fields.get("share");
            if (share instanceof Map<?, ?> parts) {
                options = options.share(Share.of(((Long) parts.get("weight")).intValue(), ((Long) parts.get("capacity")).intValue()));
            } else if (share != null) {
                options = options.share(share.equals("read") ? Share.READ : Share.WRITE);
            }
            if (text("note") != null) {
                options = options.note(text("note"));
            }
            return text("label") == null ? options : options.label(text("label"));
        }
    }

    private void answer(Command command) {
        running.put(command.id(), Thread.currentThread());
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", command.id());
        try {
            answer.put("ok", carryOut(command));
        } catch (Exception error) {
            answer.put("error", describe(error));
        }
        running.remove(command.id());
        Thread.interrupted(); // the thread is used again
        write(answer);
    }

    private Object carryOut(Command command) throws Exception {
        LeaseholdClient client = clients.get(command.optText("client").orElse(""));
        String name = command.optText("lease").orElse("");
        switch (command.text("do")) {
            case "connect" -> {
                LeaseholdClient.Builder builder = LeaseholdClient.builder(command.text("url"));
                command.optText("token").ifPresent(builder::token);
                clients.put(command.text("client"), builder.build());
            }
            case "acquire" -> {
                Lease lease = client.acquire(command.text("resource"), command.options());
                return held(name, lease);
            }
            case "acquire_all" -> {
                List<String> resources = ((List<?>) command.fields.get("resources")).stream().map(String.class::cast).toList();
                Leases all = client.acquireAll(resources, command.options());
                leases.put(name, all);
                all.onLost(loss -> write(lost(name, loss)));
                List<Object> described = new ArrayList<>();
                all.forEach(lease -> described.add(described(lease)));
                return Map.of("leases", described);
            }
            case "cancel" -> running.getOrDefault((Long) command.fields.get("of"), new Thread()).interrupt();
            case "check" -> check(name);
            case "note" -> ((Lease) leases.get(name)).setNote(command.text("note"));
            case "release" -> release(name);
            case "scope" -> scope(client, command);
            case "finish" -> finishes.computeIfAbsent(name, key -> new CountDownLatch(1)).countDown();
            case "observe" -> client.observe(command.text("resource"), leader -> write(leader(command.text("observer"), leader)));
            case "names" -> {
                return Map.of("names", client.list(command.text("prefix")).stream().map(ResourceState::name).toList());
            }
            case "overview" -> {
                Overview overview = client.overview();
                return Map.of("held", overview.held(), "waiting", overview.waiting());
            }
            case "order" -> client.order(order(command));
            case "block" -> block(command.time("for_ms"), name);
            default -> throw new IllegalArgumentException("unknown command " + command.text("do"));
        }
        return Map.of();
    }

    private Map<String, Object> held(String name, Lease lease) {
        leases.put(name, lease);
        lease.onLost(loss -> write(lost(name, loss)));
        return described(lease);
    }

    private static Map<String, Object> described(Lease lease) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("resource", lease.resource());
        if (lease.number().isPresent()) {
            fields.put("number", Long.toString(lease.number().getAsLong()));
        } else {
            fields.put("token", Long.toString(lease.token()));
            fields.put("pass", lease.pass());
        }
        return fields;
    }

    private static Map<String, Object> lost(String name, LostException loss) {
        return Map.of("event", "lost", "lease", name, "why", loss.why().code());
    }

    private static Map<String, Object> leader(String observer, Optional<Leader> leader) {
        Map<String, Object> event = new LinkedHashMap<>();
        event.put("event", "leader");
        event.put("observer", observer);
        event.put("token", leader.map(seen -> Long.toString(seen.token())).orElse(null));
        event.put("value", leader.flatMap(Leader::value).orElse(null));
        return event;
    }

    private void check(String name) {
        if (leases.get(name) instanceof Leases all) {
            all.check();
        } else {
            ((Lease) leases.get(name)).check();
        }
    }

    private void release(String name) throws Exception {
        if (leases.get(name) instanceof Lease lease) {
            lease.release();
        } else {
            leases.get(name).close();
        }
    }

    private static Order order(Command command) {
        String resource = command.text("resource");
        String why = command.text("why");
        Order order = command.text("action").equals("pause")
                ? Order.pause(resource, Duration.ofMinutes(10), why)
                : Order.named(command.text("action"), resource, why);
        if (Boolean.TRUE.equals(command.fields.get("any"))) {
            order = order.any();
        }
        return command.text("token") == null ? order : order.token(Long.parseLong(command.text("token")));
    }

    private void scope(LeaseholdClient client, Command command) throws Exception {
        String name = command.text("lease");
        client.withLock(command.text("resource"), command.options(), lease -> {
            held(name, lease);
            write(Map.of("event", "entered", "lease", name, "token", Long.toString(lease.token())));
            switch (command.text("body")) {
                case "raise" -> throw new BodyException();
                case "work" -> work(name, lease);
                case "work_then_raise" -> {
                    finishes.computeIfAbsent(name, key -> new CountDownLatch(1)).await();
                    throw new BodyException();
                }
                default -> {
                    return null;
                }
            }
            return null;
        });
    }

    /** Steps of work. Each step checks the lease first. */
    private void work(String name, Lease lease) throws InterruptedException {
        try {
            while (true) {
                lease.check();
                Thread.sleep(10);
            }
        } finally {
            write(Map.of("event", "stopped", "lease", name));
        }
    }

    /** Java's event loops are pools. This takes all threads of the common one, and its own. */
    private void block(Duration time, String name) throws InterruptedException {
        CountDownLatch busy = new CountDownLatch(ForkJoinPool.getCommonPoolParallelism());
        for (int i = 0; i < ForkJoinPool.getCommonPoolParallelism(); i++) {
            ForkJoinPool.commonPool().execute(() -> {
                busy.countDown();
                try {
                    Thread.sleep(time.toMillis());
                } catch (InterruptedException error) {
                    Thread.currentThread().interrupt();
                }
            });
        }
        busy.await();
        Thread.sleep(time.toMillis());
        check(name);
    }

    private static Map<String, Object> describe(Exception error) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("kind", kind(error));
        fields.put("message", String.valueOf(error.getMessage()));
        if (error instanceof BusyException busy) {
            fields.put("retry_after_ms", busy.retryAfter().toMillis());
            fields.put("holders", busy.holders().stream().map(StoryDriver::holder).toList());
        } else if (error instanceof LostException lost) {
            fields.put("why", lost.why().code());
        } else if (error instanceof UnavailableException unavailable) {
            fields.put("effect", unavailable.effect() == Effect.NONE ? "none" : "unknown");
        }
        return fields;
    }

    private static Map<String, Object> holder(Holder holder) {
        return Map.of(
                "host", holder.host(), "pid", holder.pid(), "label", holder.label(), "token", Long.toString(holder.token()));
    }

    private static String kind(Exception error) {
        if (error instanceof TimedOutException) {
            return "timed_out";
        } else if (error instanceof BusyException) {
            return "busy";
        } else if (error instanceof LostException) {
            return "lost";
        } else if (error instanceof UnavailableException) {
            return "unavailable";
        } else if (error instanceof DeniedException) {
            return "denied";
        } else if (error instanceof InvalidException) {
            return "invalid";
        } else if (error instanceof CancelledException) {
            return "cancelled";
        }
        return error instanceof BodyException ? "body" : "bug";
    }

    private synchronized void write(Map<String, ?> line) {
        out.println(Json.write(line));
        out.flush();
    }
}

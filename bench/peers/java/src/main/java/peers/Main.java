package peers;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;

/** The peers that are written in Java, and the leasehold client. bench/peers/README.md has the protocol. */
public final class Main {
    /** Locks that are acquired side by side at the start of "keep". */
    private static final int ACQUIRED_AT_ONCE = 200;
    /** Numbers of holders: the process times this, plus the task. */
    private static final long TASKS_MAX = 100_000;
    /** How long the waiters of "fair" may take to queue. */
    private static final long QUEUE_TIMEOUT_NANOS = 120_000_000_000L;

    private final Lock lock;
    private final int tasks;
    private final long holdNanos;
    private final String prefix;
    private final int process;
    private final ExecutorService threads = Executors.newCachedThreadPool();

    private Main(Lock lock, Map<String, String> words) {
        this.lock = lock;
        this.tasks = Integer.parseInt(words.get("tasks"));
        this.holdNanos = Long.parseLong(words.get("hold_us")) * 1000;
        this.prefix = words.get("prefix");
        this.process = Integer.parseInt(words.get("process"));
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> words = new HashMap<>();
        for (String arg : args) {
            String[] parts = arg.split("=", 2);
            words.put(parts[0], parts.length > 1 ? parts[1] : "");
        }
        String kind = words.get("lock");
        String address = words.get("address");
        Lock lock = switch (kind) {
            case "curator" -> CuratorLocks.connect(address);
            case "leasehold" -> LeaseholdLocks.connect(words.get("url"));
            default -> RedissonLocks.connect(kind, address, Integer.parseInt(words.get("tasks")));
        };
        Main main = new Main(lock, words);
        switch (words.get("work")) {
            case "pair" -> {
                // One pair before "ready": a lock that does not work at all says why.
                lock.acquire(0, main.prefix + "-check-" + main.process).run();
                main.eachGo(main::pairs);
            }
            case "handover" -> main.eachGo(main::handovers);
            case "fair" -> main.fair();
            case "keep" -> main.keep();
            default -> throw new IllegalArgumentException("there is no work called " + words.get("work"));
        }
        // Open connections would keep the process alive.
        System.exit(0);
    }

    private interface Run {
        Measured of(long nanos) throws Exception;
    }

    private static final class Measured {
        long done;
        long errors;
        final List<Long> latencies = new ArrayList<>();
        final List<Long> grants = new ArrayList<>();

        void add(Measured other) {
            done += other.done;
            errors += other.errors;
            latencies.addAll(other.latencies);
            grants.addAll(other.grants);
        }

        void failed(Throwable error) throws InterruptedException {
            errors++;
            System.err.println(error);
            Thread.sleep(1);
        }

        String json(long tookNanos) {
            String numbers = "{\"done\":" + done + ",\"took_ns\":" + tookNanos + ",\"errors\":" + errors;
            return numbers + ",\"latencies_ns\":" + list(latencies) + ",\"grants\":" + list(grants) + "}";
        }

        private static String list(List<Long> numbers) {
            StringBuilder text = new StringBuilder("[");
            for (Long number : numbers) {
                text.append(text.length() > 1 ? "," : "").append(number);
            }
            return text.append(']').toString();
        }
    }

    private void eachGo(Run run) throws Exception {
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            long nanos = Long.parseLong(line.substring("go ".length()).trim()) * 1_000_000;
            long started = System.nanoTime();
            Measured measured = run.of(nanos);
            System.out.println(measured.json(System.nanoTime() - started));
        }
    }

    private interface Task {
        void run(int number, Measured measured) throws Exception;
    }

    /** Runs the tasks side by side, each on a thread of its own, and adds up what they measured. */
    private Measured all(Task task) throws Exception {
        List<Future<Measured>> running = new ArrayList<>();
        for (int number = 0; number < tasks; number++) {
            int own = number;
            running.add(threads.submit(() -> {
                Measured measured = new Measured();
                task.run(own, measured);
                return measured;
            }));
        }
        Measured sum = new Measured();
        for (Future<Measured> one : running) {
            sum.add(one.get());
        }
        return sum;
    }

    private Measured pairs(long nanos) throws Exception {
        long until = System.nanoTime() + nanos;
        return all((task, measured) -> {
            String name = prefix + "-" + process + "-" + task;
            for (long started = System.nanoTime(); started < until; started = System.nanoTime()) {
                try {
                    lock.acquire(task, name).run();
                    measured.done++;
                    measured.latencies.add(System.nanoTime() - started);
                } catch (Exception error) {
                    measured.failed(error);
                }
            }
        });
    }

    private Measured handovers(long nanos) throws Exception {
        long until = System.nanoTime() + nanos;
        return all((task, measured) -> {
            while (System.nanoTime() < until) {
                try {
                    Lock.Release release = lock.acquire(task, prefix);
                    long grantedAt = System.nanoTime();
                    if (holdNanos > 0) {
                        Thread.sleep(holdNanos / 1_000_000, (int) (holdNanos % 1_000_000));
                    }
                    release.run();
                    if (grantedAt < until) {
                        measured.done++;
                        measured.grants.add(grantedAt);
                        measured.grants.add(process * TASKS_MAX + task);
                    }
                } catch (Exception error) {
                    measured.failed(error);
                }
            }
        });
    }

    /** All tasks wait in line while one more holds the lock. Thousands of waiters have no threads. */
    private void fair() throws Exception {
        lock.acquireAsync(tasks, prefix).toCompletableFuture().get();
        ConcurrentLinkedQueue<long[]> grants = new ConcurrentLinkedQueue<>();
        AtomicLong errors = new AtomicLong();
        for (int task = 0; task < tasks; task++) {
            waitInLine(task, grants, errors);
        }
        long until = System.nanoTime() + QUEUE_TIMEOUT_NANOS;
        while (lock.waiting(prefix) < tasks) {
            if (System.nanoTime() > until) {
                throw new IllegalStateException(tasks + " waiters do not queue in time");
            }
            Thread.sleep(200);
        }
        boolean[] held = {true};
        eachGo(nanos -> {
            if (held[0]) {
                held[0] = false;
                lock.releaseAsync(tasks, prefix).toCompletableFuture().get();
            }
            grants.clear();
            errors.set(0);
            Thread.sleep(nanos / 1_000_000);
            Measured measured = new Measured();
            for (long[] grant = grants.poll(); grant != null; grant = grants.poll()) {
                measured.done++;
                measured.grants.add(grant[0]);
                measured.grants.add(grant[1]);
            }
            measured.errors = errors.get();
            return measured;
        });
    }

    private void waitInLine(int task, ConcurrentLinkedQueue<long[]> grants, AtomicLong errors) {
        CompletionStage<Void> turn = lock.acquireAsync(task, prefix).thenCompose(nothing -> {
            grants.add(new long[] {System.nanoTime(), process * TASKS_MAX + task});
            return lock.releaseAsync(task, prefix);
        });
        turn.whenComplete((nothing, error) -> {
            if (error != null) {
                errors.incrementAndGet();
            }
            waitInLine(task, grants, errors);
        });
    }

    private void keep() throws Exception {
        for (int start = 0; start < tasks; start += ACQUIRED_AT_ONCE) {
            List<CompletionStage<Void>> some = new ArrayList<>();
            for (int task = start; task < Math.min(start + ACQUIRED_AT_ONCE, tasks); task++) {
                some.add(lock.acquireAsync(task, prefix + "-" + task));
            }
            for (CompletionStage<Void> one : some) {
                one.toCompletableFuture().get();
            }
        }
        eachGo(nanos -> {
            Thread.sleep(nanos / 1_000_000);
            // Whether the locks are alive is for the runner to ask the server: asking here would be counted as work.
            Measured measured = new Measured();
            measured.done = tasks;
            return measured;
        });
    }
}

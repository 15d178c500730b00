package io.github.leasehold;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * A real {@code leasehold serve} over a SQLite file of its own. The program is that of the system property {@code leasehold.program}, or of
 * the environment variable {@code LEASEHOLD_PROGRAM}, or {@code target/debug/leasehold} of the repository.
 */
public final class TestServer implements AutoCloseable {
    /**
     * Runs the server until standard input ends, which it does when this JVM dies, however it dies. Then the folder is removed. The shell closes
     * its own standard output, so that ours ends if the server does not start.
     */
    private static final String WATCH =
            "folder=$1; shift; \"$@\" </dev/null & server=$!; exec >/dev/null; cat; kill -9 $server; wait $server 2>/dev/null; rm -rf \"$folder\"";

    private final Process process;
    private final String url;

    private TestServer(Process process, String url) {
        this.process = process;
        this.url = url;
    }

    /** The program under test. Its absence is a failure: nothing is skipped. */
    static Path program() {
        String given = System.getProperty("leasehold.program", System.getenv("LEASEHOLD_PROGRAM"));
        Path path = given == null ? Path.of("../../../target/debug/leasehold") : Path.of(given);
        if (!Files.isExecutable(path)) {
            throw new IllegalStateException(path + " is not there: build it with `cargo build -p leasehold-cli`, or set LEASEHOLD_PROGRAM");
        }
        return path;
    }

    /** Makes an access token, in a file for {@code --tokens}. */
    static String newToken(Path file, String name, String role) throws IOException, InterruptedException {
        Process process = new ProcessBuilder(
                        program().toString(), "token", "--tokens", file.toString(), "new", name, "--role", role)
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        String token = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8).trim();
        if (process.waitFor() != 0) {
            throw new IllegalStateException("no token was made");
        }
        return token;
    }

    /** In memory, if there is such a place: a busy disk delays commits by seconds. */
    private static Path newFolder() throws IOException {
        Path memory = Path.of("/dev/shm");
        return Files.isWritable(memory) ? Files.createTempDirectory(memory, "leasehold-java") : Files.createTempDirectory("leasehold-java");
    }

    /** Starts a server on a free port. */
    public static TestServer start(String... more) {
        try {
            Path folder = newFolder();
            List<String> command = new ArrayList<>(List.of("sh", "-c", WATCH, "sh", folder.toString()));
            command.addAll(List.of(
                    program().toString(), "--store", "sqlite:" + folder.resolve("leases.db"), "--json", "serve", "--listen", "127.0.0.1:0"));
            command.addAll(List.of(more));
            Process process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
            BufferedReader out = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
            String line = out.readLine();
            if (line == null) {
                new TestServer(process, "").close();
                throw new IllegalStateException("the server did not start");
            }
            return new TestServer(process, Doc.read(line.getBytes(StandardCharsets.UTF_8)).text("listening"));
        } catch (IOException error) {
            throw new IllegalStateException("the server cannot be started", error);
        }
    }

    /** Its address. */
    public String url() {
        return url;
    }

    /** Kills it, and removes its store. */
    @Override
    public void close() {
        try {
            process.getOutputStream().close();
        } catch (IOException error) {
            throw new IllegalStateException("the server cannot be stopped", error);
        }
        process.onExit().join();
    }
}

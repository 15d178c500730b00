package io.github.leasehold;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Stream;

/**
 * A real {@code leasehold serve} over a SQLite file of its own. The program is that of the system property {@code leasehold.program}, or of
 * the environment variable {@code LEASEHOLD_PROGRAM}, or {@code target/debug/leasehold} of the repository.
 */
public final class TestServer implements AutoCloseable {
    private final Path folder;
    private final Process process;
    private final String url;

    private TestServer(Path folder, Process process, String url) {
        this.folder = folder;
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

    /** Starts a server on a free port. */
    public static TestServer start(String... more) {
        try {
            Path folder = Files.createTempDirectory("leasehold-java");
            List<String> command = new ArrayList<>(List.of(
                    program().toString(), "--store", "sqlite:" + folder.resolve("leases.db"), "--json", "serve", "--listen", "127.0.0.1:0"));
            command.addAll(List.of(more));
            Process process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
            BufferedReader out = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
            String line = out.readLine();
            if (line == null) {
                throw new IllegalStateException("the server did not start");
            }
            return new TestServer(folder, process, Doc.read(line.getBytes(StandardCharsets.UTF_8)).text("listening"));
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
        process.destroyForcibly().onExit().join();
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.deleteIfExists(file);
            }
        } catch (IOException error) {
            throw new IllegalStateException("the folder of the test cannot be removed", error);
        }
    }
}

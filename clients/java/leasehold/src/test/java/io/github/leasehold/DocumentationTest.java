package io.github.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The documentation compiles, and its first program runs. */
class DocumentationTest {
    @TempDir
    Path folder;

    @Test
    void theFirstProgramOfTheReadmeRuns() throws Exception {
        Documentation.compile(Path.of("../README.md"), folder);
        try (TestServer server = TestServer.start(); LeaseholdClient other = LeaseholdClient.connect(server.url())) {
            String exported = run(server, 0);
            assertTrue(exported.matches("exported with token [0-9]+\\R"), exported);
            try (Lease lease = other.acquire("report/42", LeaseOptions.defaults().label("the other"))) {
                String refused = run(server, 75);
                assertTrue(refused.contains("report/42"), refused);
            }
        }
    }

    private String run(TestServer server, int code) throws IOException, InterruptedException {
        String path = folder + System.getProperty("path.separator") + System.getProperty("java.class.path");
        ProcessBuilder program = new ProcessBuilder(
                List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-cp", path, "Export"));
        program.environment().put("LEASEHOLD_URL", server.url());
        Process process = program.redirectErrorStream(true).start();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(code, process.waitFor(), output);
        return output;
    }

    @Test
    void theLicencesAreInThePackage() {
        assertNotNull(LeaseholdClient.class.getResource("/META-INF/LICENSE-MIT"));
        assertNotNull(LeaseholdClient.class.getResource("/META-INF/LICENSE-APACHE"));
    }
}

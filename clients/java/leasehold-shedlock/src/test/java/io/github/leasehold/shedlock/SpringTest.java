package io.github.leasehold.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.leasehold.Documentation;
import io.github.leasehold.Lease;
import io.github.leasehold.LeaseholdClient;
import io.github.leasehold.TestServer;
import java.nio.file.Path;
import java.time.Duration;
import net.javacrumbs.shedlock.core.ClockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.support.LockException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.core.env.MapPropertySource;

/** The example of docs/spring.md runs. */
class SpringTest {
    @TempDir
    Path folder;

    @Test
    void aJobRunsOnceAmongInstances() throws Exception {
        ClassLoader classes = Documentation.compile(Path.of("../docs/spring.md"), folder);
        try (TestServer server = TestServer.start(); LeaseholdClient other = LeaseholdClient.connect(server.url())) {
            AnnotationConfigApplicationContext context = new AnnotationConfigApplicationContext();
            context.setClassLoader(classes);
            context.getEnvironment().getPropertySources()
                    .addFirst(new MapPropertySource("test", java.util.Map.of("leasehold.url", server.url())));
            Class<?> job = classes.loadClass("Nightly");
            context.register(classes.loadClass("Leases"), job, classes.loadClass("Settlement"));
            context.refresh();
            try (context) {
                Object nightly = context.getBean(job);
                try (Lease lease = other.acquire("shedlock/nightly")) {
                    job.getMethod("run").invoke(nightly);
                    assertEquals(0, job.getMethod("runs").invoke(nightly), "another instance runs it");
                    assertTrue(lease.isHeld());
                }
                job.getMethod("run").invoke(nightly);
                job.getMethod("run").invoke(nightly);
                assertEquals(1, job.getMethod("runs").invoke(nightly), "it stays closed for lockAtLeastFor");
                assertEquals("shedlock/nightly", other.list("shedlock/").get(0).name());
            }
        }
    }

    @Test
    void aServerThatDoesNotAnswerIsAnError() {
        TestServer server = TestServer.start();
        try (LeaseholdClient client = LeaseholdClient.connect(server.url())) {
            LeaseholdLockProvider provider = new LeaseholdLockProvider(client, "acme:jobs");
            LockConfiguration nightly =
                    new LockConfiguration(ClockProvider.now(), "nightly", Duration.ofMinutes(1), Duration.ZERO);
            provider.lock(nightly).orElseThrow().unlock();
            server.close();
            assertThrows(LockException.class, () -> provider.lock(nightly));
        }
    }
}

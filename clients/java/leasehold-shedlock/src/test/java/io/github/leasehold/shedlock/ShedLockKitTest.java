package io.github.leasehold.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.github.leasehold.LeaseholdClient;
import io.github.leasehold.TestServer;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.test.support.AbstractExtensibleLockProviderIntegrationTest;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** ShedLock's own tests for providers. */
class ShedLockKitTest extends AbstractExtensibleLockProviderIntegrationTest {
    private TestServer server;
    private LeaseholdClient client;
    private LeaseholdLockProvider provider;

    @BeforeEach
    void start() {
        server = TestServer.start();
        client = LeaseholdClient.connect(server.url());
        provider = new LeaseholdLockProvider(client);
    }

    @AfterEach
    void stop() {
        client.close();
        server.close();
    }

    @Override
    protected ExtensibleLockProvider getLockProvider() {
        return provider;
    }

    @Override
    protected void assertUnlocked(String lockName) {
        assertEquals(0, client.resource("shedlock/" + lockName).holderCount());
    }

    @Override
    protected void assertLocked(String lockName) {
        assertEquals(1, client.resource("shedlock/" + lockName).holderCount());
    }
}

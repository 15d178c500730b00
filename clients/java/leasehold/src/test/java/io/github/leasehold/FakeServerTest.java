package io.github.leasehold;

import io.github.leasehold.FakeServer.Reply;
import java.io.IOException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** A client, and a server that grants each claim until a test tells it something else. */
abstract class FakeServerTest {
    FakeServer server;
    LeaseholdClient client;

    @BeforeEach
    void start() throws IOException {
        server = new FakeServer(request -> Reply.of(200, request.grant()));
        client = LeaseholdClient.connect(server.url());
    }

    @AfterEach
    void stop() {
        client.close();
        server.close();
    }
}

package io.github.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.github.leasehold.FakeServer.Reply;
import java.io.InputStream;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.util.List;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Certificates. */
@Timeout(60)
class TlsTest {
    private static final String PASSWORD = "for-the-test";

    @TempDir
    Path folder;

    /** A context with a fresh certificate of its own, which it trusts. */
    private SSLContext context() throws Exception {
        Path file = folder.resolve("keys.p12");
        List<String> command = List.of(
                Path.of(System.getProperty("java.home"), "bin", "keytool").toString(),
                "-genkeypair", "-alias", "test", "-keyalg", "EC", "-dname", "CN=localhost", "-ext", "san=ip:127.0.0.1",
                "-validity", "2", "-storetype", "PKCS12", "-keystore", file.toString(), "-storepass", PASSWORD);
        assertEquals(0, new ProcessBuilder(command).inheritIO().start().waitFor());
        KeyStore store = KeyStore.getInstance("PKCS12");
        try (InputStream in = Files.newInputStream(file)) {
            store.load(in, PASSWORD.toCharArray());
        }
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(store, PASSWORD.toCharArray());
        KeyStore trusted = KeyStore.getInstance("PKCS12");
        trusted.load(null, null);
        trusted.setCertificateEntry("test", store.getCertificate("test"));
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
        return context;
    }

    @Test
    void onlyATrustedServerIsAsked() throws Exception {
        SSLContext tls = context();
        try (FakeServer server = FakeServer.withTls(request -> Reply.of(200, request.grant()), tls)) {
            try (LeaseholdClient client = LeaseholdClient.builder(server.url()).tls(tls).build()) {
                client.acquire("report/42").close();
            }
            int asked = server.requests().size();
            try (LeaseholdClient client = LeaseholdClient.connect(server.url())) {
                DeniedException denied = assertThrows(DeniedException.class, () -> client.acquire("report/42"));
                assertEquals(Effect.NONE, denied.effect());
            }
            String plain = "http://127.0.0.1:" + URI.create(server.url()).getPort();
            try (LeaseholdClient client = LeaseholdClient.connect(plain)) {
                assertThrows(UnavailableException.class, () -> client.tryAcquire("report/42"));
            }
            assertEquals(asked, server.requests().size(), "nothing was sent");
        }
    }
}

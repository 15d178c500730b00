package io.github.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.postgresql.ds.PGSimpleDataSource;

/** The code of docs/fencing.md runs on a real PostgreSQL, and a stale holder is refused there. */
@Timeout(120)
class FenceTest {
    @TempDir
    Path folder;

    /** An empty database. {@code leasehold-stories --postgres COMMAND} starts one for a command. Its absence is a failure: nothing is skipped. */
    private static PGSimpleDataSource database() {
        String url = System.getenv("LEASEHOLD_TEST_POSTGRES");
        assertNotNull(url, "LEASEHOLD_TEST_POSTGRES is not set: run the tests by `leasehold-stories --postgres mvn verify`");
        URI uri = URI.create(url);
        PGSimpleDataSource database = new PGSimpleDataSource();
        database.setServerNames(new String[] {uri.getHost()});
        database.setPortNumbers(new int[] {uri.getPort()});
        database.setDatabaseName(uri.getPath().substring(1));
        database.setUser(uri.getUserInfo());
        return database;
    }

    private static String schema() throws IOException, InterruptedException {
        Process process = new ProcessBuilder(TestServer.program().toString(), "fence", "schema")
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        String sql = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(0, process.waitFor());
        return sql;
    }

    private static void execute(PGSimpleDataSource database, String sql) throws SQLException {
        try (Connection connection = database.getConnection(); Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    private static String state(PGSimpleDataSource database) throws SQLException {
        try (Connection connection = database.getConnection();
                Statement statement = connection.createStatement();
                ResultSet row = statement.executeQuery("SELECT body || ' ' || (SELECT state FROM job) FROM report")) {
            assertTrue(row.next());
            return row.getString(1);
        }
    }

    /** Runs a block of the page. Its program holds the lease of this client. */
    private static void run(ClassLoader page, int block, LeaseholdClient client, PGSimpleDataSource database) throws Throwable {
        Class<?> type = page.loadClass("Block" + block);
        Object program = type.getConstructor().newInstance();
        type.getField("client").set(program, client);
        type.getField("database").set(program, database);
        try {
            type.getMethod("run").invoke(program);
        } catch (InvocationTargetException error) {
            throw error.getCause();
        }
    }

    @Test
    void aStaleHolderIsRefusedByTheDatabase() throws Throwable {
        PGSimpleDataSource database = database();
        execute(database, schema());
        execute(database, "CREATE TABLE report (id BIGINT PRIMARY KEY, body TEXT); INSERT INTO report VALUES (42, 'old')");
        execute(database, "CREATE TABLE job (id BIGINT PRIMARY KEY, state TEXT, last_token BIGINT NOT NULL DEFAULT 0)");
        execute(database, "INSERT INTO job VALUES (7, 'waiting')");
        ClassLoader page = Documentation.compile(Path.of("../docs/fencing.md"), folder);
        try (TestServer server = TestServer.start(); LeaseholdClient client = LeaseholdClient.connect(server.url())) {
            // As after a ttl: this process was stopped, and does not know that its lease is over.
            Lease stale = client.acquire("report/42");
            stale.close();
            run(page, 1, client, database);
            run(page, 2, client, database);
            assertEquals("new running", state(database));

            try (Connection connection = database.getConnection();
                    var admit = connection.prepareStatement("SELECT leasehold_fence.admit(?)")) {
                connection.setAutoCommit(false);
                admit.setString(1, stale.pass());
                SQLException refused = assertThrows(SQLException.class, admit::execute);
                assertEquals("LH001", refused.getSQLState());
            }

            // A later holder has written to the row: the column of its own refuses what is not newer.
            execute(database, "UPDATE job SET state = 'waiting', last_token = " + Long.MAX_VALUE);
            Throwable refused = assertThrows(IllegalStateException.class, () -> run(page, 2, client, database));
            assertInstanceOf(IllegalStateException.class, refused);
            assertEquals("new waiting", state(database));
        }
    }
}

//! Triggers, which fence a table for every client.

use leasehold_fence::mariadb;

use crate::test_server::{Session, Test, TestServer, connect, pass, refusal};

pub(crate) const TESTS: &[Test] = &[
    ("every_client_needs_the_pass_of_the_row", every_client),
    ("a_pass_ends_with_its_transaction", ends_with_its_transaction),
    ("a_stale_pass_is_refused_and_nothing_is_written", stale_pass),
    ("a_rollback_to_a_savepoint_does_not_lose_the_mark", savepoint),
    ("a_row_that_moves_needs_the_passes_of_both_resources", moving_row),
    ("every_way_to_write_a_row_is_fenced", ways_to_write),
    ("odd_names_and_null_columns", odd_names),
    ("a_user_needs_no_rights_to_the_marks", rights),
    ("the_triggers_can_be_removed", removed),
];

/// A connection, and a fenced table whose resources have this kind.
async fn fenced(server: &TestServer, table: &str) -> Session {
    let mut connection = server.connect().await;
    let create = format!(
        "CREATE TABLE {table} (id INT AUTO_INCREMENT PRIMARY KEY, state VARCHAR(20) UNIQUE) ENGINE = InnoDB"
    );
    connection.execute(create).await.unwrap();
    let template = format!("{table}/{{id}}").parse().unwrap();
    for statement in mariadb::trigger_statements([table], &template).unwrap() {
        connection.execute(statement).await.unwrap();
    }
    connection
}

async fn begin(connection: &mut Session, passes: &[(&str, u64)]) {
    connection.execute("START TRANSACTION").await.unwrap();
    for (resource, token) in passes {
        connection.enter(&pass(resource, *token, 1)).await.unwrap();
    }
}

#[track_caller]
fn is_refused<T: std::fmt::Debug>(result: Result<T, sqlx::Error>, state: &str, why: &str) {
    let (found, message) = refusal(result);
    assert!(found == state && message.contains(why), "{found} {message}, wanted {state} {why}");
}

async fn states(connection: &mut Session, table: &str) -> Vec<(i32, String)> {
    let select = sqlx::AssertSqlSafe(format!("SELECT id, state FROM {table} ORDER BY id"));
    sqlx::query_as(select).fetch_all(&mut connection.0).await.unwrap()
}

fn every_client(server: &TestServer) {
    server.run(async {
        let mut connection = fenced(server, "orders").await;
        let insert = "INSERT INTO orders (id, state) VALUES (7, 'new')";
        is_refused(connection.execute(insert).await, "LH003", "needs the pass of orders/7");
        // The client program, without a pass and with one.
        let refused = server.server.try_sql(&format!("USE shop; {insert}")).unwrap_err().to_string();
        assert!(refused.contains("LH003") && refused.contains("leasehold_fence.enter"), "{refused}");
        let script = format!(
            "USE shop; START TRANSACTION; CALL leasehold_fence.enter('33 - orders/7'); {insert}; COMMIT"
        );
        server.server.sql(&script);

        begin(&mut connection, &[("orders/7", 34)]).await;
        connection.execute("UPDATE orders SET state = 'paid' WHERE id = 7").await.unwrap();
        // The pass of another row.
        is_refused(connection.execute("INSERT INTO orders VALUES (8, 'x')").await, "LH003", "orders/8");
        connection.execute("COMMIT").await.unwrap();
        assert_eq!(states(&mut connection, "orders").await, [(7, "paid".to_owned())]);
        begin(&mut connection, &[("orders/7", 34)]).await;
        connection.execute("DELETE FROM orders").await.unwrap();
        connection.execute("COMMIT").await.unwrap();
        assert!(states(&mut connection, "orders").await.is_empty());
    });
}

/// The next transaction of a connection that a pool gives to another client must show its own pass.
fn ends_with_its_transaction(server: &TestServer) {
    server.run(async {
        let mut connection = fenced(server, "pooled").await;
        let write =
            "INSERT INTO pooled (id, state) VALUES (1, 'x') ON DUPLICATE KEY UPDATE state = UUID_SHORT()";
        for end in ["COMMIT", "ROLLBACK"] {
            begin(&mut connection, &[("pooled/1", 34)]).await;
            connection.execute(write).await.unwrap();
            connection.execute(end).await.unwrap();
            is_refused(connection.execute(write).await, "LH003", "pooled/1");
            connection.execute("START TRANSACTION").await.unwrap();
            is_refused(connection.execute(write).await, "LH003", "pooled/1");
            connection.execute("ROLLBACK").await.unwrap();
        }
        // BEGIN ends the transaction before it.
        begin(&mut connection, &[("pooled/1", 34)]).await;
        connection.execute("BEGIN").await.unwrap();
        is_refused(connection.execute(write).await, "LH003", "pooled/1");
        connection.execute("ROLLBACK").await.unwrap();
        // Prepared statements, and transactions that begin by themselves.
        connection.execute("SET autocommit = 0").await.unwrap();
        connection.enter(&pass("pooled/1", 34, 1)).await.unwrap();
        connection.execute_with(write, &[]).await.unwrap();
        connection.execute_with("COMMIT", &[]).await.unwrap();
        is_refused(connection.execute_with(write, &[]).await, "LH003", "pooled/1");
        connection.execute("ROLLBACK").await.unwrap();
        // Without a transaction, enter raises the mark and shows nothing.
        connection.execute("SET autocommit = 1").await.unwrap();
        connection.enter(&pass("pooled/1", 35, 1)).await.unwrap();
        is_refused(connection.execute(write).await, "LH003", "pooled/1");
    });
}

fn stale_pass(server: &TestServer) {
    server.run(async {
        let mut connection = fenced(server, "late").await;
        begin(&mut connection, &[("late/1", 34)]).await;
        connection.execute("INSERT INTO late VALUES (1, 'B')").await.unwrap();
        connection.execute("COMMIT").await.unwrap();
        connection.execute("START TRANSACTION").await.unwrap();
        let enter = connection.enter(&pass("late/1", 33, 2)).await;
        is_refused(enter, "LH001", "(presented=33 highest=34)");
        // MariaDB does not end the transaction. A client that goes on has shown no pass.
        is_refused(connection.execute("UPDATE late SET state = 'A'").await, "LH003", "late/1");
        connection.execute("COMMIT").await.unwrap();
        assert_eq!(states(&mut connection, "late").await, [(1, "B".to_owned())]);
    });
}

/// The mark is rolled back, and the session still shows the pass: the next write raises the mark again.
fn savepoint(server: &TestServer) {
    server.run(async {
        let mut connection = fenced(server, "saved").await;
        connection.execute("START TRANSACTION").await.unwrap();
        connection.execute("SAVEPOINT before_the_pass").await.unwrap();
        connection.enter(&pass("saved/1", 34, 1)).await.unwrap();
        connection.execute("ROLLBACK TO before_the_pass").await.unwrap();
        connection.execute("INSERT INTO saved VALUES (1, 'x')").await.unwrap();
        connection.execute("COMMIT").await.unwrap();
        is_refused(connection.enter(&pass("saved/1", 33, 2)).await, "LH001", "(presented=33 highest=34)");
    });
}

fn moving_row(server: &TestServer) {
    server.run(async {
        let mut connection = fenced(server, "moving").await;
        begin(&mut connection, &[("moving/1", 1)]).await;
        connection.execute("INSERT INTO moving VALUES (1, 'x')").await.unwrap();
        is_refused(connection.execute("UPDATE moving SET id = 2").await, "LH003", "moving/2");
        connection.execute("COMMIT").await.unwrap();
        begin(&mut connection, &[("moving/2", 1)]).await;
        is_refused(connection.execute("UPDATE moving SET id = 2").await, "LH003", "moving/1");
        connection.execute("ROLLBACK").await.unwrap();
        begin(&mut connection, &[("moving/1", 1), ("moving/2", 1)]).await;
        connection.execute("UPDATE moving SET id = 2").await.unwrap();
        connection.execute("COMMIT").await.unwrap();
        assert_eq!(states(&mut connection, "moving").await, [(2, "x".to_owned())]);
    });
}

fn ways_to_write(server: &TestServer) {
    server.run(async {
        let mut connection = fenced(server, "ways").await;
        begin(&mut connection, &[("ways/1", 1), ("ways/2", 1), ("ways/3", 1)]).await;
        // The number of a new row comes from the server, before the trigger.
        connection.execute("INSERT INTO ways (state) VALUES ('a'), ('b'), ('c')").await.unwrap();
        connection.execute("UPDATE ways SET state = CONCAT(state, '!')").await.unwrap();
        connection.execute("COMMIT").await.unwrap();
        let before = states(&mut connection, "ways").await;
        assert_eq!(before.len(), 3);
        let refused = [
            ("INSERT INTO ways (id, state) VALUES (1, 'z') ON DUPLICATE KEY UPDATE state = 'z'", "ways/1"),
            // The pass for the row with the same id, but not for the row with the same state, which is replaced, too.
            ("REPLACE INTO ways (id, state) VALUES (1, 'b!')", "ways/"),
            ("UPDATE ways SET state = CONCAT(state, '?')", "ways/1"),
            ("DELETE FROM ways WHERE id > 2", "ways/3"),
            ("DELETE w FROM ways w JOIN ways v ON v.id = w.id", "ways/1"),
            ("INSERT INTO ways (state) SELECT 'new' FROM ways LIMIT 1", "ways/"),
        ];
        for (statement, resource) in refused {
            is_refused(connection.execute(statement).await, "LH003", resource);
            begin(&mut connection, &[("ways/9", 1)]).await;
            is_refused(connection.execute(statement).await, "LH003", resource);
            connection.execute("COMMIT").await.unwrap();
        }
        begin(&mut connection, &[("ways/1", 1)]).await;
        is_refused(connection.execute(refused[1].0).await, "LH003", "ways/2");
        connection.execute("COMMIT").await.unwrap();
        assert_eq!(states(&mut connection, "ways").await, before, "a refused statement changes no row");
    });
}

fn odd_names(server: &TestServer) {
    server.run(async {
        let mut connection = server.connect().await;
        let create = "CREATE TABLE `odd ``table` (`a \"b\"` VARCHAR(20) CHARACTER SET latin1, tenant VARCHAR(20)) ENGINE = InnoDB";
        connection.execute(create).await.unwrap();
        let template = "{tenant}:order/it's \\{a \"b\"}".parse().unwrap();
        for statement in mariadb::trigger_statements(["shop", "odd `table"], &template).unwrap() {
            connection.execute(statement).await.unwrap();
        }
        begin(&mut connection, &[("acme:order/it's \\é ü", 1)]).await;
        let insert = "INSERT INTO `odd ``table` VALUES (?, ?)";
        connection.execute_with(insert, &[Some("é ü"), Some("acme")]).await.unwrap();
        // Compared byte for byte: case and trailing spaces count.
        for (id, tenant) in [("É ü", "acme"), ("é ü ", "acme"), ("é ü", "other")] {
            is_refused(connection.execute_with(insert, &[Some(id), Some(tenant)]).await, "LH003", "needs the pass of");
        }
        let null = connection.execute_with(insert, &[None, Some("acme")]).await;
        is_refused(null, "LH004", "null");
        connection.execute("COMMIT").await.unwrap();
    });
}

fn rights(server: &TestServer) {
    server.run(async {
        let mut owner = fenced(server, "guarded").await;
        for statement in [
            "CREATE USER app@'127.0.0.1'",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON shop.* TO app@'127.0.0.1'",
            "GRANT EXECUTE ON PROCEDURE leasehold_fence.enter TO app@'127.0.0.1'",
        ] {
            owner.execute(statement).await.unwrap();
        }
        let mut app = connect(&server.server.url("shop").replace("root@", "app@")).await;
        begin(&mut app, &[("guarded/1", 34)]).await;
        app.execute("INSERT INTO guarded VALUES (1, 'x')").await.unwrap();
        app.execute("COMMIT").await.unwrap();
        for forbidden in [
            "UPDATE leasehold_fence.mark SET token = 1",
            "CALL leasehold_fence.rebase('guarded/1', 1, NULL, 'me', 'why')",
            "CALL leasehold_fence.judge('guarded/1', 99, NULL)",
            "DROP TRIGGER leasehold_fence_insert_guarded",
            "TRUNCATE guarded",
        ] {
            is_refused(app.execute(forbidden).await, "42000", "denied");
        }
    });
}

fn removed(server: &TestServer) {
    server.run(async {
        let mut connection = fenced(server, "removable").await;
        for statement in mariadb::remove_trigger_statements(["removable"]).unwrap() {
            connection.execute(statement).await.unwrap();
        }
        connection.execute("INSERT INTO removable VALUES (1, 'x')").await.unwrap();
    });
}

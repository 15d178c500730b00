//! Access: wrong passwords, missing rights, missing databases, a server that is full or read only; and who may create the
//! tables.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{
    fs,
    sync::{Arc, OnceLock},
};

use common::{LONG, claim, connect, eventually, granted, kind_and_effect, open, release, renew, report};
use leasehold::{BackendExt as _, Effect, ErrorKind, Released, Renewal};
use leasehold_testkit::servers::PostgresServer;

/// One server for all tests. Every test has its own schema or database.
fn server() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = PostgresServer::with(&["fsync=off", "max_connections=60"]);
        server.require_passwords();
        server
    })
}

fn at(server: &PostgresServer, login: &str, rest: &str) -> String {
    format!("postgres://{login}@127.0.0.1:{}/{rest}", server.port())
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_a_rotated_one_is_read_anew() {
    let server = server();
    server.sql("CREATE ROLE app LOGIN PASSWORD 'first'; GRANT CREATE ON DATABASE postgres TO app");
    for login in ["app:hunter2", "app", "nobody:hunter2"] {
        let error = connect(&at(server, login, "postgres?schema=rotated")).await.unwrap_err();
        assert_eq!(kind_and_effect(&error), (ErrorKind::Denied, Effect::None), "{login}: {error:?}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    let file = server.folder().join("password");
    fs::write(&file, "first\n").unwrap();
    let url =
        at(server, "app", &format!("postgres?schema=rotated&connections=1&password_file={}", file.display()));
    let postgres = open(&url).await;
    let ours = claim(&report(), LONG);
    granted(&postgres, &ours).await;
    server.sql("ALTER ROLE app PASSWORD 'second'");
    assert!(
        matches!(renew(&postgres, ours.reference(), LONG).await, Renewal::Renewed(_)),
        "an open session goes on"
    );
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'");
    let denied =
        || async { postgres.acquire_one(&ours).await.is_err_and(|error| error.kind() == ErrorKind::Denied) };
    eventually("the old password is refused", denied).await;
    fs::write(&file, "second").unwrap();
    eventually("the new one is taken", || async { postgres.acquire_one(&ours).await.is_ok() }).await;
}

#[tokio::test]
async fn the_error_for_a_role_that_may_not_create_says_what_to_execute_and_that_is_enough() {
    let server = server();
    server.sql("CREATE ROLE guest LOGIN PASSWORD 'guest'");
    let url = at(server, "guest:guest", "postgres?schema=by_hand");
    let error = connect(&url).await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Denied, Effect::None), "{error:?}");
    assert!(error.to_string().contains("leasehold schema postgres --schema by_hand"), "{error}");
    server.sql(&leasehold_postgres::schema_sql("by_hand").unwrap());
    let error = connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(error.to_string().contains("GRANT USAGE ON SCHEMA by_hand"), "{error}");
    server.sql(
        "GRANT USAGE ON SCHEMA by_hand TO guest; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA by_hand TO guest",
    );
    let postgres = open(&url).await;
    let ours = claim(&report(), LONG);
    granted(&postgres, &ours).await;
    assert_eq!(release(&postgres, &ours).await, Released::Now);
    // Executed again, it changes nothing.
    server.sql(&leasehold_postgres::schema_sql("by_hand").unwrap());
    granted(&postgres, &claim(&report(), LONG)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_that_start_at_once_create_the_tables_once() {
    let url = format!("{}?schema=crowd", server().url());
    let starting: Vec<_> = (0..12)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move { connect(&url).await })
        })
        .collect();
    for task in starting {
        let postgres = task.await.unwrap().expect("it starts");
        let ours = claim(&report(), LONG);
        granted(&postgres, &ours).await;
        release(&postgres, &ours).await;
    }
}

#[tokio::test]
async fn tables_of_a_newer_format_are_refused_and_foreign_tables_are_not_touched() {
    let server = server();
    let url = format!("{}?schema=future", server.url());
    open(&url).await;
    server.sql("UPDATE future.meta SET value = 2 WHERE name = 'format'");
    let error = connect(&url).await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unsupported, Effect::None), "{error:?}");
    assert!(error.to_string().contains("format 2"), "{error}");
    server.sql("CREATE SCHEMA strange; CREATE TABLE strange.meta (name text, value bigint)");
    let error = connect(&format!("{}?schema=strange", server.url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    assert!(error.to_string().contains("strange.meta"), "{error}");
}

#[tokio::test]
async fn the_error_names_a_missing_database() {
    let error = connect(&at(server(), "postgres", "nowhere")).await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Invalid, Effect::None), "{error:?}");
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[tokio::test]
async fn a_missing_server_is_unavailable_without_effect() {
    let error = connect("postgres://u@127.0.0.1:1/x").await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::None), "{error:?}");
}

#[tokio::test]
async fn the_error_names_a_dropped_schema_and_the_next_start_creates_it_again() {
    let server = server();
    let url = format!("{}?schema=dropped", server.url());
    let postgres = open(&url).await;
    granted(&postgres, &claim(&report(), LONG)).await;
    server.sql("DROP SCHEMA dropped CASCADE");
    let error = postgres.acquire_one(&claim(&report(), LONG)).await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Corrupt, Effect::None), "{error:?}");
    granted(&open(&url).await, &claim(&report(), LONG)).await;
    granted(&postgres, &claim(&"report/43".parse().unwrap(), LONG)).await;
}

#[tokio::test]
async fn a_read_only_database_is_unavailable_until_it_takes_writes_again() {
    let server = server();
    server.sql("CREATE DATABASE calm");
    let url = at(server, "postgres", "calm?connections=1");
    let postgres = open(&url).await;
    let ours = claim(&report(), LONG);
    granted(&postgres, &ours).await;
    server.sql("ALTER DATABASE calm SET default_transaction_read_only = on");
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'calm'";
    server.sql(end);
    let refused = || async {
        let Err(error) = postgres.acquire_one(&ours).await else { return false };
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        error.to_string().contains("read only")
    };
    eventually("the error says read only", refused).await;
    let error = connect(&url).await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::None), "{error:?}");
    server.sql("ALTER DATABASE calm RESET default_transaction_read_only");
    eventually("it goes on", || async { postgres.acquire_one(&ours).await.is_ok() }).await;
}

#[tokio::test]
async fn a_statement_in_a_read_only_transaction_has_no_effect() {
    // The setting changes while the session is open: the statement itself is refused.
    let server = PostgresServer::start();
    let postgres = open(&format!("{}?connections=1", server.url())).await;
    server.sql("ALTER SYSTEM SET default_transaction_read_only = on");
    server.sql("SELECT pg_reload_conf()");
    let refused = || async {
        let answer = postgres.acquire_one(&claim(&report(), LONG)).await;
        answer.is_err_and(|error| kind_and_effect(&error) == (ErrorKind::Unavailable, Effect::None))
    };
    eventually("it is refused", refused).await;
}

#[tokio::test]
async fn a_full_server_is_unavailable_and_says_what_to_do() {
    let server =
        PostgresServer::with(&["fsync=off", "max_connections=4", "superuser_reserved_connections=1"]);
    server.sql("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app");
    let url = at(&server, "app", "postgres?connections=1");
    let mut open_ones = Vec::new();
    let error = loop {
        match connect(&url).await {
            Ok(postgres) => open_ones.push(postgres),
            Err(error) => break error,
        }
        assert!(open_ones.len() < 5, "there is a limit");
    };
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::None), "{error:?}");
    assert!(error.to_string().contains("max_connections"), "{error}");
    // Those who are in go on.
    granted(&open_ones[0], &claim(&report(), LONG)).await;
}

#[tokio::test]
async fn statement_and_lock_timeouts_are_unavailable_without_effect() {
    let server = server();
    server.sql("CREATE DATABASE hasty");
    server.sql("ALTER DATABASE hasty SET statement_timeout = '300ms'");
    let postgres = open(&at(server, "postgres", "hasty?connections=2")).await;
    let ours = claim(&report(), LONG);
    granted(&postgres, &ours).await;
    let folder = server.folder().to_path_buf();
    let port = server.port();
    // Someone else has the row.
    let blocker = tokio::task::spawn_blocking(move || {
        let script = "BEGIN; SELECT 1 FROM leasehold.resource FOR UPDATE; SELECT pg_sleep(2); COMMIT";
        let url = format!("postgres://postgres@127.0.0.1:{port}/hasty?options=-cstatement_timeout%3D0");
        std::process::Command::new("psql")
            .current_dir(folder)
            .args(["-X", "-q", "-d", &url, "-c", script])
            .output()
    });
    let refused = || async {
        let Err(error) = postgres.acquire_one(&claim(&report(), LONG)).await else { return false };
        assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::None), "{error:?}");
        true
    };
    eventually("the timeout", refused).await;
    assert!(blocker.await.unwrap().unwrap().status.success());
    assert_eq!(release(&postgres, &ours).await, Released::Now);
}

#[tokio::test]
async fn other_defaults_for_isolation_and_synchronous_commit_do_no_harm() {
    let server = server();
    server.sql("CREATE DATABASE strict");
    server.sql("ALTER DATABASE strict SET default_transaction_isolation = 'serializable'");
    server.sql("ALTER DATABASE strict SET synchronous_commit = 'off'");
    let postgres = Arc::new(open(&at(server, "postgres", "strict")).await);
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let postgres = Arc::clone(&postgres);
            tokio::spawn(async move {
                for _ in 0..10 {
                    postgres.acquire_one(&claim(&report(), LONG)).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

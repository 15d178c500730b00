//! The means of PostgreSQL itself, on a real server.
#![allow(clippy::disallowed_methods, reason = "a driver's connection is driven by a task")]
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

use std::sync::OnceLock;

use leasehold::{Effect, ErrorKind, Resource};
use leasehold_patterns::database::{RowLock, Table, Versioned, advisory};
use leasehold_testkit::servers::{PgBouncer, PostgresServer};
use tokio_postgres::{Client, NoTls, types::Type};

fn server() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(PostgresServer::start)
}

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Creates a table with one account, which has a balance of 100.
async fn accounts(name: &str) -> (Client, Table) {
    let client = client(&server().url()).await;
    let quoted = name.replace('"', "\"\"");
    let create = format!(
        "CREATE TABLE \"{quoted}\" (id bigint PRIMARY KEY, \"the balance\" bigint NOT NULL, version bigint NOT NULL); \
         INSERT INTO \"{quoted}\" VALUES (1, 100, 1)"
    );
    client.batch_execute(&create).await.unwrap();
    (client, Table::new(name).unwrap())
}

fn versioned(table: &Table) -> Versioned {
    Versioned::new(table, "id", "version", &["the balance"]).unwrap()
}

async fn balance(client: &Client, name: &str) -> (i64, i64) {
    let row =
        client.query_one(&format!("SELECT \"the balance\", version FROM \"{name}\""), &[]).await.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost_among_many_writers() {
    let (reader, table) = accounts("contended").await;
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (client, rows) = (client(&server().url()).await, versioned(&table).attempts(500));
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                let add = |row: &tokio_postgres::Row| Some(vec![Box::new(row.get::<_, i64>(0) + 1) as _]);
                assert!(rows.update(&client, &1i64, add).await.unwrap());
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(balance(&reader, "contended").await, (180, 81));
}

#[tokio::test]
async fn if_a_row_changes_in_every_attempt_the_error_names_the_remedy() {
    let (client, table) = accounts("changing \"one\"").await;
    let other = server();
    let mut calls = 0;
    let outcome = versioned(&table)
        .attempts(3)
        .update(&client, &1i64, |row| {
            calls += 1;
            other.sql("UPDATE \"changing \"\"one\"\"\" SET version = version + 1");
            Some(vec![Box::new(row.get::<_, i64>(0)) as _])
        })
        .await;
    let error = outcome.unwrap_err();
    assert_eq!((error.kind(), calls), (ErrorKind::Contended, 3));
    assert!(error.to_string().contains("FOR UPDATE"), "{error}");
}

#[tokio::test]
async fn a_row_may_stay_unchanged_or_be_missing_and_wrong_columns_are_errors() {
    let (client, table) = accounts("calm").await;
    let rows = versioned(&table);
    assert!(!rows.update(&client, &1i64, |_| None).await.unwrap());
    assert!(!rows.update(&client, &2i64, |_| unreachable!("there is no such row")).await.unwrap());
    let error = rows.update(&client, &1i64, |_| Some(Vec::new())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let wrong = Versioned::new(&table, "id", "version", &["colour"]).unwrap();
    let error = wrong.update(&client, &1i64, |_| None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("colour"), "{error}");
    assert!(Versioned::new(&table, "id", "version", &[]).is_err());
    assert_eq!(balance(&client, "calm").await, (100, 1));
}

/// Creates a table whose version column has this type, with one row that has this version.
async fn with_version(name: &str, sql_type: &str, version: &str) -> (Client, Versioned) {
    let client = client(&server().url()).await;
    let create = format!(
        "CREATE TABLE {name} (id bigint PRIMARY KEY, balance bigint NOT NULL, version {sql_type}); \
         INSERT INTO {name} VALUES (1, 100, {version})"
    );
    client.batch_execute(&create).await.unwrap();
    (client, Versioned::new(&Table::new(name).unwrap(), "id", "version", &["balance"]).unwrap())
}

fn add_one(row: &tokio_postgres::Row) -> Option<leasehold_patterns::database::NewValues> {
    Some(vec![Box::new(row.get::<_, i64>(0) + 1) as _])
}

#[tokio::test]
async fn the_version_may_be_of_every_integer_type() {
    for sql_type in ["smallint", "INT", "bigint"] {
        let name = format!("integers_{}", sql_type.to_lowercase());
        let (client, rows) = with_version(&name, &format!("{sql_type} NOT NULL"), "1").await;
        for _ in 0..2 {
            let written = rows.update(&client, &1i64, add_one).await;
            assert!(written.unwrap_or_else(|error| panic!("{sql_type}: {error}")), "{sql_type}");
        }
        let row = client.query_one(&format!("SELECT balance, version::bigint FROM {name}"), &[]).await;
        let row = row.unwrap();
        assert_eq!((row.get(0), row.get(1)), (102i64, 3i64), "{sql_type}");
    }
}

#[tokio::test]
async fn a_version_that_cannot_be_raised_is_an_error_that_names_the_remedy() {
    let cases = [("smallint", "32767"), ("int", "2147483647"), ("bigint", "9223372036854775807")];
    for (sql_type, highest) in cases {
        let name = format!("full_{sql_type}");
        let (client, rows) = with_version(&name, sql_type, highest).await;
        let error = rows.update(&client, &1i64, add_one).await.unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
        assert!(text.contains("\"version\"") && text.contains(highest), "{text}");
        assert_eq!(text.contains("bigint"), sql_type != "bigint", "a larger type is named: {text}");
        assert!(!rows.update(&client, &1i64, |_| None).await.unwrap(), "an unchanged row needs no version");
    }
}

#[tokio::test]
async fn a_version_that_is_null_or_no_integer_is_an_error_that_says_which() {
    for (sql_type, version, why) in
        [("int", "NULL", "is null"), ("text", "'1'", "text"), ("numeric", "1", "numeric")]
    {
        let (client, rows) = with_version(&format!("odd_{sql_type}"), sql_type, version).await;
        let error = rows.update(&client, &1i64, add_one).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("\"version\"") && error.to_string().contains(why), "{error}");
    }
}

#[tokio::test]
async fn a_parameter_of_another_type_than_its_column_is_not_a_lost_connection() {
    let (client, table) = accounts("typed").await;
    let error = versioned(&table).update(&client, &1i32, |_| None).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Invalid, Effect::None), "{error}");
    assert!(error.to_string().contains("another type"), "{error}");
    let values = |_: &tokio_postgres::Row| Some(vec![Box::new("many") as _]);
    let error = versioned(&table).update(&client, &1i64, values).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Invalid, Effect::None), "{error}");
}

#[tokio::test]
async fn a_locked_row_is_busy_at_once_for_other_transactions() {
    let (mut ours, table) = accounts("locked").await;
    let mut theirs = client(&server().url()).await;
    let transaction = ours.transaction().await.unwrap();
    let RowLock::Row(row) = table.lock_row(&transaction, "id", &1i64).await.unwrap() else {
        panic!("the row is not locked");
    };
    assert_eq!(row.get::<_, i64>("the balance"), 100);
    let other = theirs.transaction().await.unwrap();
    assert!(matches!(table.lock_row(&other, "id", &1i64).await.unwrap(), RowLock::Busy));
    other.rollback().await.unwrap();
    transaction.commit().await.unwrap();
    let other = theirs.transaction().await.unwrap();
    assert!(matches!(table.lock_row(&other, "id", &1i64).await.unwrap(), RowLock::Row(_)));
    assert!(matches!(table.lock_row(&other, "id", &9i64).await.unwrap(), RowLock::Missing));
}

#[tokio::test]
async fn an_advisory_lock_ends_with_its_transaction_or_its_session() {
    let (mut ours, mut theirs) = (client(&server().url()).await, client(&server().url()).await);
    let report: Resource = "report/42 */ SELECT 1; --".parse().unwrap();
    let transaction = ours.transaction().await.unwrap();
    assert!(advisory::try_transaction(&transaction, &report).await.unwrap());
    assert!(advisory::try_session(&theirs, &report).await.unwrap().is_none());
    transaction.commit().await.unwrap();
    let lock = advisory::try_session(&ours, &report).await.unwrap().unwrap();
    let transaction = theirs.transaction().await.unwrap();
    assert!(!advisory::try_transaction(&transaction, &report).await.unwrap());
    transaction.rollback().await.unwrap();
    assert!(lock.release().await.unwrap());
    // Dropping the guard does not release the lock: it is held until the session ends.
    drop(advisory::try_session(&ours, &report).await.unwrap().unwrap());
    assert!(advisory::try_session(&theirs, &report).await.unwrap().is_none());
    drop(ours);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while advisory::try_session(&theirs, &report).await.unwrap().is_none() {
        assert!(std::time::Instant::now() < until, "the session has ended");
    }
}

#[tokio::test]
async fn different_resources_have_different_lock_numbers() {
    let numbers: std::collections::HashSet<i64> =
        (0..10_000).map(|n| advisory::key(&format!("report/{n}").parse().unwrap())).collect();
    assert_eq!(numbers.len(), 10_000);
    assert!(numbers.iter().all(|number| *number > 0));
}

/// Shows the problem that docs/patterns/database.md warns of.
#[tokio::test]
async fn behind_a_pool_a_session_lock_outlives_its_client() {
    let server = PostgresServer::start();
    let pool = PgBouncer::start(&server, 1);
    let report: Resource = "report/42".parse().unwrap();
    let pooled = client(&pool.url()).await;
    // `query_typed` prepares no named statement, which a pool in transaction mode would not find again.
    let key = advisory::key(&report);
    let taken = pooled.query_typed("SELECT pg_try_advisory_lock($1)", &[(&key, Type::INT8)]).await.unwrap();
    assert!(taken[0].get::<_, bool>(0));
    drop(pooled);
    // The client is gone, and the connection of the pool still holds the lock.
    let mut direct = client(&server.url()).await;
    let transaction = direct.transaction().await.unwrap();
    assert!(!advisory::try_transaction(&transaction, &report).await.unwrap());
}

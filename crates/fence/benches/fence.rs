//! What a fence costs: the same write with and without it, in turns, on servers of its own.
//!
//! ```text
//! cargo xtask bench fence
//! ```
//!
//! Medians of rounds that alternate, so that a busy machine slows all of them alike: look at the ratios.

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock and has a runtime")]

use std::time::{Duration, Instant};

use leasehold_core::{FencingToken, OwnerToken, Pass};
use leasehold_fence::{postgres, redis::Fence, sqlite};
use leasehold_testkit::servers::{PostgresServer, RedisServer};
use rusqlite::Connection;
use tokio_postgres::{Client, NoTls};

const ROUNDS: usize = 300;
const ROWS: i32 = 2000;

fn pass() -> Pass {
    let token = FencingToken::new(34).unwrap();
    Pass::new("report/1".parse().unwrap(), token).owned_by(OwnerToken::from_bytes([7; 16]))
}

/// How long each way took, round by round.
struct Ways<const N: usize>([(&'static str, Vec<Duration>); N]);

impl<const N: usize> Ways<N> {
    fn new(names: [&'static str; N]) -> Ways<N> {
        Ways(names.map(|name| (name, Vec::new())))
    }

    fn took(&mut self, way: usize, since: Instant) {
        self.0[way].1.push(since.elapsed());
    }

    /// The median of each, and how much that is of the first.
    fn print(mut self, title: &str) {
        println!("{title}");
        let mut first = None;
        for (name, times) in &mut self.0 {
            times.sort();
            let median = times[times.len() / 2].as_secs_f64() * 1e6;
            let base = *first.get_or_insert(median);
            println!("  {name:<46} {median:>10.1} µs   {:>5.2} x", median / base);
        }
    }
}

fn on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let database = Connection::open(folder.path().join(name)).unwrap();
        database.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; CREATE TABLE report (id INTEGER PRIMARY KEY, body TEXT); INSERT INTO report VALUES (1, '')").unwrap();
        sqlite::setup(&database).unwrap();
        database
    };
    let (mut plain, mut guarded, pass) = (open("plain.db"), open("guarded.db"), pass());
    sqlite::install(&guarded, "report", &"report/{id}".parse().unwrap()).unwrap();
    let update = |database: &Connection| {
        database.prepare_cached("UPDATE report SET body = 'x' WHERE id = 1").unwrap().execute([]).unwrap()
    };
    let mut ways =
        Ways::new(["a transaction with one update", "the same, admitted first", "the same, under triggers"]);
    for _ in 0..ROUNDS {
        for way in 0..3 {
            let since = Instant::now();
            let transaction = if way == 2 { &mut guarded } else { &mut plain }.transaction().unwrap();
            match way {
                0 => drop(update(&transaction)),
                1 => {
                    sqlite::admit(&transaction, &pass).unwrap();
                    update(&transaction);
                }
                _ => drop(sqlite::under(&transaction, &pass, update).unwrap()),
            }
            transaction.commit().unwrap();
            ways.took(way, since);
        }
    }
    ways.print("SQLite, a file in WAL mode");
}

async fn on_redis() {
    let server = RedisServer::start();
    let mut connection =
        redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let (fence, pass) = (Fence::new(), pass());
    let mut ways = Ways::new(["SET", "fenced set"]);
    for _ in 0..ROUNDS {
        let since = Instant::now();
        let () = redis::cmd("SET").arg("plain").arg("x").query_async(&mut connection).await.unwrap();
        ways.took(0, since);
        let since = Instant::now();
        fence.set(&pass, "fenced", "x").unwrap().run(&mut connection).await.unwrap();
        ways.took(1, since);
    }
    ways.print("Redis, over the loopback");
}

async fn on_postgres() {
    let server = PostgresServer::durable();
    let (mut client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let make = "CREATE TABLE plain (id int PRIMARY KEY, body text); CREATE TABLE guarded (id int PRIMARY KEY, body text); \
                INSERT INTO plain VALUES (1, ''); INSERT INTO guarded VALUES (1, '')";
    client.batch_execute(make).await.unwrap();
    postgres::install(&client, "guarded", &"report/{id}".parse().unwrap()).await.unwrap();
    let pass = pass();
    let mut ways = Ways::new([
        "a transaction with one update",
        "the same, admitted first",
        "the same, under triggers (enter)",
        "the same, under triggers (set_config in the batch)",
    ]);
    let batch = format!(
        "BEGIN; SELECT set_config('leasehold.pass', '{pass}', true); UPDATE guarded SET body = 'x' WHERE id = 1; COMMIT"
    );
    for _ in 0..ROUNDS {
        for way in 0..3 {
            let since = Instant::now();
            let transaction = client.transaction().await.unwrap();
            match way {
                0 => {}
                1 => drop(postgres::admit(&transaction, &pass).await.unwrap()),
                _ => drop(postgres::enter(&transaction, &pass).await.unwrap()),
            }
            let table = if way == 2 { "guarded" } else { "plain" };
            transaction.batch_execute(&format!("UPDATE {table} SET body = 'x' WHERE id = 1")).await.unwrap();
            transaction.commit().await.unwrap();
            ways.took(way, since);
        }
        let since = Instant::now();
        client.batch_execute(&batch).await.unwrap();
        ways.took(3, since);
    }
    ways.print("PostgreSQL, durable, over the loopback");
    rows(&client).await;
}

/// The triggers fire for each row: what a statement over many rows costs.
async fn rows(client: &Client) {
    let make = format!(
        "CREATE TABLE many (id int PRIMARY KEY, report int, body text); INSERT INTO many SELECT n, 1, '' FROM generate_series(1, {ROWS}) n; \
         CREATE TABLE many_guarded AS TABLE many"
    );
    client.batch_execute(&make).await.unwrap();
    postgres::install(client, "many_guarded", &"report/{report}".parse().unwrap()).await.unwrap();
    let show = format!("SELECT set_config('leasehold.pass', '{}', true)", pass());
    let mut ways = Ways::new(["one update", "one update of a fenced table"]);
    for _ in 0..10 {
        for (way, table) in ["many", "many_guarded"].into_iter().enumerate() {
            let since = Instant::now();
            client
                .batch_execute(&format!("BEGIN; {show}; UPDATE {table} SET body = 'x'; COMMIT"))
                .await
                .unwrap();
            ways.took(way, since);
        }
    }
    ways.print(&format!("PostgreSQL, {ROWS} rows of one resource in a statement"));
}

fn main() {
    on_sqlite();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(on_redis());
    runtime.block_on(on_postgres());
}

//! What a fence costs: the same write with and without it, on servers that the benchmark starts.
//!
//! ```text
//! cargo xtask bench fence
//! ```
//!
//! The variants alternate, and the figures are medians, so that a busy machine slows all of them alike: read
//! the ratios.

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock and has a runtime")]

use std::time::{Duration, Instant};

use leasehold_bench::median;
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

/// How long each variant of a write took, round by round.
struct VariantTimes<const N: usize>([(&'static str, Vec<Duration>); N]);

impl<const N: usize> VariantTimes<N> {
    fn new(names: [&'static str; N]) -> VariantTimes<N> {
        VariantTimes(names.map(|name| (name, Vec::new())))
    }

    fn add(&mut self, variant: usize, since: Instant) {
        self.0[variant].1.push(since.elapsed());
    }

    /// Prints the median of each variant and its ratio to the first variant.
    fn print(self, title: &str) {
        println!("{title}");
        let mut first = None;
        for (name, times) in self.0 {
            let median = median(times).as_secs_f64() * 1e6;
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
    let mut times = VariantTimes::new([
        "a transaction with one update",
        "the same, admitted first",
        "the same, under triggers",
    ]);
    for _ in 0..ROUNDS {
        for variant in 0..3 {
            let since = Instant::now();
            let transaction = if variant == 2 { &mut guarded } else { &mut plain }.transaction().unwrap();
            match variant {
                0 => drop(update(&transaction)),
                1 => {
                    sqlite::admit(&transaction, &pass).unwrap();
                    update(&transaction);
                }
                _ => drop(sqlite::under(&transaction, &pass, update).unwrap()),
            }
            transaction.commit().unwrap();
            times.add(variant, since);
        }
    }
    times.print("SQLite, a file in WAL mode");
}

async fn on_redis() {
    let server = RedisServer::start();
    let mut connection =
        redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let (fence, pass) = (Fence::new(), pass());
    let mut times = VariantTimes::new(["SET", "fenced set"]);
    for _ in 0..ROUNDS {
        let since = Instant::now();
        let () = redis::cmd("SET").arg("plain").arg("x").query_async(&mut connection).await.unwrap();
        times.add(0, since);
        let since = Instant::now();
        fence.set(&pass, "fenced", "x").unwrap().run(&mut connection).await.unwrap();
        times.add(1, since);
    }
    times.print("Redis, over the loopback");
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
    let mut times = VariantTimes::new([
        "a transaction with one update",
        "the same, admitted first",
        "the same, under triggers (enter)",
        "the same, under triggers (set_config in the batch)",
    ]);
    let batch = format!(
        "BEGIN; SELECT set_config('leasehold.pass', '{pass}', true); UPDATE guarded SET body = 'x' WHERE id = 1; COMMIT"
    );
    for _ in 0..ROUNDS {
        for variant in 0..3 {
            let since = Instant::now();
            let transaction = client.transaction().await.unwrap();
            match variant {
                0 => {}
                1 => drop(postgres::admit(&transaction, &pass).await.unwrap()),
                _ => drop(postgres::enter(&transaction, &pass).await.unwrap()),
            }
            let table = if variant == 2 { "guarded" } else { "plain" };
            transaction.batch_execute(&format!("UPDATE {table} SET body = 'x' WHERE id = 1")).await.unwrap();
            transaction.commit().await.unwrap();
            times.add(variant, since);
        }
        let since = Instant::now();
        client.batch_execute(&batch).await.unwrap();
        times.add(3, since);
    }
    times.print("PostgreSQL, durable, over the loopback");
    rows(&client).await;
}

/// What a statement over many rows costs. The triggers fire for each row.
async fn rows(client: &Client) {
    let make = format!(
        "CREATE TABLE many (id int PRIMARY KEY, report int, body text); INSERT INTO many SELECT n, 1, '' FROM generate_series(1, {ROWS}) n; \
         CREATE TABLE many_guarded AS TABLE many"
    );
    client.batch_execute(&make).await.unwrap();
    postgres::install(client, "many_guarded", &"report/{report}".parse().unwrap()).await.unwrap();
    let show = format!("SELECT set_config('leasehold.pass', '{}', true)", pass());
    let mut times = VariantTimes::new(["one update", "one update of a fenced table"]);
    for _ in 0..10 {
        for (variant, table) in ["many", "many_guarded"].into_iter().enumerate() {
            let since = Instant::now();
            client
                .batch_execute(&format!("BEGIN; {show}; UPDATE {table} SET body = 'x'; COMMIT"))
                .await
                .unwrap();
            times.add(variant, since);
        }
    }
    times.print(&format!("PostgreSQL, {ROWS} rows of one resource in a statement"));
}

fn main() {
    on_sqlite();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(on_redis());
    runtime.block_on(on_postgres());
}

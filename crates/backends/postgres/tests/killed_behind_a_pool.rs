//! A client is killed while PgBouncer has its requests under way: no other client may get the replies.
//!
//! This program is also the client: started with a URL, it acquires leases as the test commands.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

#[path = "common/mod.rs"]
mod common;

use std::{
    collections::HashMap,
    io::{BufRead as _, Write as _},
    process::ExitCode,
    sync::{Arc, Mutex},
    time::Duration,
};

use common::{LONG, TIME_LIMIT};
use leasehold::Lease;
use leasehold_testkit::{
    ClientProcess, client_process,
    servers::{PgBouncer, PostgresServer},
};

fn main() -> ExitCode {
    client_process::program_with_tests(
        "postgres://",
        client,
        &[("the_replies_to_a_killed_client_reach_no_other_client", killed)],
    )
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
}

/// The client. To the line `try NAME` it answers `asked NAME`, then `NAME granted TOKEN`, `NAME blocked` or
/// `NAME failed WHY`; it reads further lines before that. To `check NAME` it answers `NAME ok` or `NAME over`.
fn client() -> ExitCode {
    let url = std::env::args().nth(1).expect("a URL");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let leases = runtime.block_on(leasehold::connect(&url)).expect("the pool accepts connections");
    say("waiting");
    let held: Arc<Mutex<HashMap<String, Lease>>> = Arc::default();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (command, name) = line.split_once(' ').expect("two words");
        let (name, held) = (name.to_owned(), Arc::clone(&held));
        if command == "check" {
            let held = held.lock().expect("no thread panics");
            say(&format!("{name} {}", if held[&name].check().is_ok() { "ok" } else { "over" }));
            continue;
        }
        let attempt = leases.lease("report", &name).ttl(LONG).try_acquire();
        say(&format!("asked {name}"));
        runtime.spawn(async move {
            match attempt.await {
                Ok(Some(lease)) => {
                    say(&format!("{name} granted {}", lease.token()));
                    held.lock().expect("no thread panics").insert(name, lease);
                }
                Ok(None) => say(&format!("{name} blocked")),
                Err(error) => say(&format!("{name} failed {error}")),
            }
        });
    }
    ExitCode::SUCCESS
}

/// A session that has locked the row of a resource until this is dropped.
struct LockedRow(Option<tokio_postgres::Client>);

impl LockedRow {
    async fn of(server: &PostgresServer, name: &str) -> LockedRow {
        let (client, connection) =
            tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.expect("the server is there");
        tokio::spawn(connection);
        let lock = format!("BEGIN; SELECT FROM leasehold.resource WHERE key = 'report/{name}' FOR UPDATE");
        client.batch_execute(&lock).await.expect("no other session has locked it");
        LockedRow(Some(client))
    }

    async fn unlock(mut self) {
        self.0.take().expect("locked").batch_execute("COMMIT").await.expect("the session lives");
    }
}

/// Waits until a session waits for a lock.
fn await_waiting_session(server: &PostgresServer) {
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let until = std::time::Instant::now() + TIME_LIMIT;
    while server.sql(waiting) == "0" {
        assert!(std::time::Instant::now() < until, "a session waits for a row");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn killed() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let server = PostgresServer::start();
    let pool = PgBouncer::start(&server, 1);
    let program = std::env::current_exe().expect("this program");
    let start = || ClientProcess::start_with(&program, &[&format!("{}?timeout=20s", pool.url())]);
    let (mut first, mut second, mut third) = (start(), start(), start());
    for name in ["a", "b"] {
        third.send(&format!("try {name}"));
        third.expect_line(&format!("asked {name}"));
        third.expect_line(&format!("{name} granted"));
    }
    server.sql("DELETE FROM leasehold.seat; UPDATE leasehold.resource SET held = 0, seats = 0");
    third.send("try c");
    third.expect_line("asked c");
    let token = third.expect_line("c granted");

    let (a, b) =
        runtime.block_on(async { (LockedRow::of(&server, "a").await, LockedRow::of(&server, "b").await) });
    first.send("try b");
    first.expect_line("asked b");
    await_waiting_session(&server);
    first.send("try a");
    first.expect_line("asked a");
    // Long enough to reach the pool, if it is sent before the first reply.
    std::thread::sleep(Duration::from_millis(300));
    runtime.block_on(b.unlock());
    first.expect_line("b granted");
    await_waiting_session(&server);
    first.kill();
    second.send("try c");
    second.expect_line("asked c");
    std::thread::sleep(Duration::from_millis(300));
    runtime.block_on(a.unlock());

    let reply = second.expect_line("c ");
    assert!(!reply.starts_with("granted"), "two clients hold c, whose token is {token}: {reply}");
    third.send("check c");
    assert_eq!(third.expect_line("c "), "ok");
    let seats = "SELECT string_agg(token::text, ' ') FROM leasehold.seat JOIN leasehold.resource r ON r.id = resource \
                 WHERE key = 'report/c'";
    assert_eq!(server.sql(seats), token, "the database has one holder");
}

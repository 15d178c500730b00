//! Holders and waiters in processes of their own, through a server on SQLite, on Redis and on PostgreSQL: killed, stopped past their
//! ttl, continued.
//!
//! This program is also the client process: it is one when it is started with a URL.

mod common;

use std::{path::Path, process::ExitCode, time::Duration};

use common::TestServer;
use leasehold_testkit::{
    client_process,
    scenarios::ProcessScenario,
    servers::{PostgresServer, RedisServer},
};

const TTL: Duration = Duration::from_secs(2);
/// A live waiter behind dead ones. Without passing them over, it would take the time of their places.
const GRANTED_WITHIN: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let tests =
        [tests_on::<OnSqlite>("sqlite"), tests_on::<OnRedis>("redis"), tests_on::<OnPostgres>("postgres")];
    let named: Vec<(String, fn())> = tests.into_iter().flatten().collect();
    let tests: Vec<(&str, fn())> = named.iter().map(|(name, run)| (name.as_str(), *run)).collect();
    client_process::main_with_tests("http://", &tests)
}

fn tests_on<S: TestStore>(store: &str) -> Vec<(String, fn())> {
    let tests: [(&str, fn()); 5] = [
        ("a_killed_holder_is_replaced_after_its_ttl_with_a_higher_token", killed::<S>),
        ("a_holder_stopped_past_its_ttl_learns_of_the_loss", stopped_past_its_ttl::<S>),
        ("a_holder_stopped_for_less_than_its_ttl_keeps_lease_and_token", stopped_for_a_while::<S>),
        ("killed_waiters_are_passed_over", killed_waiters::<S>),
        ("a_stopped_waiter_loses_a_turn_and_not_its_place", stopped_waiter::<S>),
    ];
    tests.into_iter().map(|(name, run)| (format!("{store}::{name}"), run)).collect()
}

/// A store that a server is started on. Each test starts one: the scenarios use the same names.
trait TestStore: 'static {
    /// Keeps the store alive, and its URL.
    type Running;
    fn start() -> (Self::Running, String);
}

struct OnSqlite;
struct OnRedis;
struct OnPostgres;

impl TestStore for OnSqlite {
    type Running = tempfile::TempDir;
    fn start() -> (Self::Running, String) {
        let (directory, path) = common::sqlite();
        (directory, format!("sqlite:{}", path.display()))
    }
}

impl TestStore for OnRedis {
    type Running = RedisServer;
    fn start() -> (Self::Running, String) {
        let redis = RedisServer::start();
        let url = redis.url();
        (redis, url)
    }
}

impl TestStore for OnPostgres {
    type Running = PostgresServer;
    fn start() -> (Self::Running, String) {
        let postgres = PostgresServer::with(&["fsync=off"]);
        let url = postgres.url();
        (postgres, url)
    }
}

/// Runs a scenario on a new server.
fn with_server<S: TestStore>(ttl: Duration, run: impl Fn(ProcessScenario<'_>)) {
    let (_running, url) = S::start();
    let server = TestServer::start(common::open_store(url));
    let program = std::env::current_exe().expect("this program has a path");
    run(ProcessScenario { program: Path::new(&program), url: &server.url(), ttl });
}

fn killed<S: TestStore>() {
    with_server::<S>(TTL, |scenario| scenario.killed_holder_is_replaced());
}

fn stopped_past_its_ttl<S: TestStore>() {
    with_server::<S>(TTL, |scenario| {
        let mut replaced = scenario.holder_stopped_past_its_ttl();
        replaced.late_release();
        replaced.release_next();
    });
}

fn stopped_for_a_while<S: TestStore>() {
    let ttl = TTL * 3; // much longer than the stop, also on a loaded machine
    with_server::<S>(ttl, |scenario| scenario.holder_stopped_briefly(Duration::from_millis(500), |_| {}));
}

fn killed_waiters<S: TestStore>() {
    with_server::<S>(TTL, |scenario| {
        let took = scenario.killed_waiters_are_passed_over();
        assert!(took < GRANTED_WITHIN, "it took {took:?}");
    });
}

fn stopped_waiter<S: TestStore>() {
    with_server::<S>(TTL, |scenario| scenario.stopped_waiter_loses_a_turn());
}

//! Waiters in processes of their own that are killed or stopped: they do not hold up the waiters behind them.
//!
//! This program is also the client process.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

use std::{process::ExitCode, time::Duration};

use leasehold_testkit::{
    client_process,
    scenarios::ProcessScenario,
    servers::{PgBouncer, PostgresServer},
};

/// The ttl of a lease that no holder loses on a loaded machine.
const LONG: Duration = Duration::from_secs(12);
/// Places last for six seconds and are renewed every two. The last of a hundred dead ones would expire after this time.
const HUNDRED_EXPIRED: Duration = Duration::from_secs(5);
/// A single dead place would expire after this time.
const ONE_EXPIRED: Duration = Duration::from_secs(4);

fn main() -> ExitCode {
    client_process::main_with_tests(
        "postgres://",
        &[
            ("a_hundred_killed_waiters_cost_nothing", killed),
            ("a_hundred_killed_waiters_are_passed_over_behind_a_pool", killed_behind_a_pool),
            ("a_killed_holder_and_killed_waiters_cost_the_ttl_of_the_lease", killed_with_the_holder),
            ("a_stopped_waiter_loses_a_turn_and_not_its_place", stopped),
            ("a_stopped_waiter_behind_a_pool_loses_a_turn_and_not_its_place", stopped_behind_a_pool),
        ],
    )
}

fn with_scenario<T>(url: &str, ttl: Duration, run: impl FnOnce(ProcessScenario<'_>) -> T) -> T {
    let program = std::env::current_exe().expect("a program has a path");
    run(ProcessScenario { program: &program, url, ttl })
}

fn killed() {
    let server = PostgresServer::start();
    let took = with_scenario(&server.url(), LONG, |scenario| scenario.killed_waiters_are_passed_over());
    assert!(took < HUNDRED_EXPIRED, "{took:?}");
}

fn killed_behind_a_pool() {
    let server = PostgresServer::start();
    let pool = PgBouncer::start(&server, 8);
    let url = format!("{}?timeout=2s", pool.url());
    let took = with_scenario(&url, LONG, |scenario| scenario.killed_waiters_are_passed_over());
    assert!(took < HUNDRED_EXPIRED, "{took:?}");
}

fn killed_with_the_holder() {
    const TTL: Duration = Duration::from_secs(2);
    let server = PostgresServer::start();
    let took = with_scenario(&server.url(), TTL, |scenario| scenario.holder_and_first_waiter_killed());
    assert!(took < ONE_EXPIRED, "{took:?}");
}

fn stopped() {
    let server = PostgresServer::start();
    with_scenario(&server.url(), LONG, |scenario| scenario.stopped_waiter_loses_a_turn());
}

fn stopped_behind_a_pool() {
    let server = PostgresServer::start();
    let pool = PgBouncer::start(&server, 8);
    let url = format!("{}?timeout=2s", pool.url());
    with_scenario(&url, LONG, |scenario| scenario.stopped_waiter_loses_a_turn());
}

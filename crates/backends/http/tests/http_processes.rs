//! Holders and waiters in processes of their own, through a server on a SQLite file: killed, stopped past their ttl, continued.
//!
//! This program is also the client process: it is one when it is started with a URL.

mod common;

use std::{path::Path, process::ExitCode, time::Duration};

use common::TestServer;
use leasehold_testkit::{client_process, scenarios::ProcessScenario};

const TTL: Duration = Duration::from_secs(2);
/// A live waiter behind dead ones. Without passing them over, it would take the time of their places.
const GRANTED_WITHIN: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    client_process::main_with_tests(
        "http://",
        &[
            ("a_killed_holder_is_replaced_after_its_ttl_with_a_higher_token", killed),
            ("a_holder_stopped_past_its_ttl_learns_of_the_loss", stopped_past_its_ttl),
            ("a_holder_stopped_for_less_than_its_ttl_keeps_lease_and_token", stopped_for_a_while),
            ("killed_waiters_are_passed_over", killed_waiters),
            ("a_stopped_waiter_loses_a_turn_and_not_its_place", stopped_waiter),
        ],
    )
}

/// Runs a scenario on a new server.
fn with_server(ttl: Duration, run: impl Fn(ProcessScenario<'_>)) {
    let (_directory, path) = common::sqlite();
    let server = TestServer::start(common::open_store(format!("sqlite:{}", path.display())));
    let program = std::env::current_exe().expect("this program has a path");
    run(ProcessScenario { program: Path::new(&program), url: &server.url(), ttl });
}

fn killed() {
    with_server(TTL, |scenario| scenario.killed_holder_is_replaced());
}

fn stopped_past_its_ttl() {
    with_server(TTL, |scenario| {
        let mut replaced = scenario.holder_stopped_past_its_ttl();
        replaced.late_release();
        replaced.release_next();
    });
}

fn stopped_for_a_while() {
    let ttl = TTL * 3; // much longer than the stop, also on a loaded machine
    with_server(ttl, |scenario| scenario.holder_stopped_briefly(Duration::from_millis(500), |_| {}));
}

fn killed_waiters() {
    with_server(TTL, |scenario| {
        let took = scenario.killed_waiters_are_passed_over();
        assert!(took < GRANTED_WITHIN, "it took {took:?}");
    });
}

fn stopped_waiter() {
    with_server(TTL, |scenario| scenario.stopped_waiter_loses_a_turn());
}

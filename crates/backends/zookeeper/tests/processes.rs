//! Holders in processes of their own, on a real ZooKeeper: killed, stopped past their session timeout,
//! continued.
//!
//! This program is also the client process: it is one when it is started with a URL.

use std::{path::Path, process::ExitCode, time::Duration};

use leasehold_testkit::{client_process, scenarios::ProcessScenario, servers::ZooKeeperServer};

/// A session keeps the lease alive, so the ttl does not matter here.
const TTL: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    client_process::main_with_tests(
        "zookeeper://",
        &[
            ("a_killed_holder_is_replaced_after_its_session_with_a_higher_token", killed),
            ("a_holder_stopped_past_its_session_learns_of_the_loss", stopped_past_its_session),
            ("a_holder_stopped_for_less_than_its_session_keeps_lease_and_token", stopped_for_a_while),
        ],
    )
}

/// Runs a scenario on a new server. `url` changes the URL of the server.
fn with_server(url: impl Fn(String) -> String, run: impl Fn(ProcessScenario<'_>)) {
    let server = ZooKeeperServer::start();
    let program = std::env::current_exe().expect("this program has a path");
    run(ProcessScenario { program: Path::new(&program), url: &url(server.url()), ttl: TTL });
}

fn killed() {
    with_server(|url| url, |scenario| scenario.killed_holder_is_replaced());
}

fn stopped_past_its_session() {
    with_server(
        |url| url,
        |scenario| {
            let mut replaced = scenario.holder_stopped_past_its_ttl();
            // The reply may be an error of the broken connection, or `AlreadyGone`.
            replaced.late_release();
            replaced.release_next();
        },
    );
}

fn stopped_for_a_while() {
    // A session that lasts much longer than the stop, also on a loaded machine.
    let longer = |url: String| url.replace("session_timeout=2s", "session_timeout=4s");
    with_server(longer, |scenario| scenario.holder_stopped_briefly(Duration::from_millis(500), |_| {}));
}

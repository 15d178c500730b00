//! Holders in processes of their own, on a real etcd: stopped for a while, stopped past their ttl, killed. And
//! waiters that are killed or stopped.
//!
//! This program is also the client process: it is one when it is started with a URL.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

use std::{path::PathBuf, process::ExitCode, time::Duration};

use leasehold_testkit::{client_process, scenarios::ProcessScenario, servers::EtcdCluster};

fn main() -> ExitCode {
    client_process::main_with_tests(
        "etcd://",
        &[
            ("a_holder_stopped_for_a_while_keeps_lease_and_token", stopped_for_a_while),
            ("a_holder_stopped_past_its_ttl_learns_of_the_loss", stopped_past_its_ttl),
            ("a_killed_holder_is_replaced_after_its_ttl_with_a_higher_token", killed),
            ("a_hundred_killed_waiters_are_removed", killed_waiters),
            ("a_killed_holder_and_a_killed_waiter_cost_the_ttl_of_the_lease", killed_with_the_holder),
            ("a_stopped_waiter_is_removed_and_comes_back_at_the_end", stopped_waiter),
        ],
    )
}

/// A cluster of one member, and this program.
struct Setup {
    /// It ends with this.
    _cluster: EtcdCluster,
    url: String,
    program: PathBuf,
}

impl Setup {
    fn start() -> Setup {
        let cluster = EtcdCluster::start(1);
        let program = std::env::current_exe().expect("this program has a path");
        Setup { url: cluster.url(), _cluster: cluster, program }
    }

    fn scenario(&self, ttl_secs: u64) -> ProcessScenario<'_> {
        ProcessScenario { program: &self.program, url: &self.url, ttl: Duration::from_secs(ttl_secs) }
    }
}

fn stopped_for_a_while() {
    Setup::start().scenario(30).holder_stopped_briefly(Duration::from_secs(5), |_| {});
}

fn stopped_past_its_ttl() {
    let setup = Setup::start();
    let mut replaced = setup.scenario(2).holder_stopped_past_its_ttl();
    assert_eq!(replaced.late_release(), "AlreadyGone");
}

fn killed() {
    Setup::start().scenario(2).killed_holder_is_replaced();
}

/// The place of a killed waiter lasts for six seconds, and its etcd lease for seven. It was renewed every two
/// seconds, so it would expire after this time at the earliest.
const FIRST_PLACE_EXPIRES: Duration = Duration::from_secs(5);

fn killed_waiters() {
    let took = Setup::start().scenario(60).killed_waiters_are_passed_over();
    assert!(took < FIRST_PLACE_EXPIRES, "{took:?}");
}

fn killed_with_the_holder() {
    const TTL: u64 = 2;
    let took = Setup::start().scenario(TTL).holder_and_first_waiter_killed();
    // The etcd lease of the holder is a second longer, and etcd looks for expired ones twice a second.
    assert!(took < Duration::from_secs(TTL) + FIRST_PLACE_EXPIRES, "{took:?}");
}

fn stopped_waiter() {
    Setup::start().scenario(60).stopped_waiter_is_removed();
}

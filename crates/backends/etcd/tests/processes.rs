//! Holders in processes of their own, on a real etcd: stopped for a while, stopped past their ttl, killed.
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
            ("a_killed_waiter_delays_the_queue_by_seconds", killed_waiter),
        ],
    )
}

/// A cluster of one member, and this program.
struct Setup {
    cluster: EtcdCluster,
    url: String,
    program: PathBuf,
}

impl Setup {
    fn start() -> Setup {
        let cluster = EtcdCluster::start(1);
        let program = std::env::current_exe().expect("this program has a path");
        Setup { url: cluster.url(), cluster, program }
    }

    fn scenario(&self, ttl_secs: u64) -> ProcessScenario<'_> {
        ProcessScenario { program: &self.program, url: &self.url, ttl: Duration::from_secs(ttl_secs) }
    }

    fn await_contenders(&self, count: usize) {
        let until = std::time::Instant::now() + Duration::from_secs(30);
        while self.cluster.keys("leasehold/v1/lock/").len() != count {
            assert!(std::time::Instant::now() < until, "expected {count} contenders");
            std::thread::sleep(Duration::from_millis(50));
        }
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

fn killed_waiter() {
    let setup = Setup::start();
    let scenario = setup.scenario(60);
    let mut holder = scenario.start();
    let token = holder.granted();
    let dead = scenario.start();
    setup.await_contenders(2);
    dead.kill();
    let next = scenario.start();
    setup.await_contenders(3);
    holder.send("release");
    assert_eq!(holder.expect_line("released"), "Now");
    // The place of the killed waiter expires long before the ttl of its claim.
    assert!(next.granted() > token);
}

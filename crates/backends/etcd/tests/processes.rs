//! Holders and waiters that are real processes, on a real etcd: suspended, suspended for longer than their
//! ttl, killed.
//!
//! This program is also the holder: started with a URL, it runs as the client process of the testkit.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

use std::{process::ExitCode, time::Duration};

use leasehold_testkit::{ClientProcess, client_process, servers::EtcdCluster};

fn main() -> ExitCode {
    client_process::main_with_tests(
        "etcd://",
        &[
            ("a_holder_suspended_for_less_than_its_ttl_keeps_its_lease_and_token", suspended_within_ttl),
            (
                "a_holder_suspended_past_its_ttl_learns_of_the_loss_before_any_check_succeeds",
                suspended_past_ttl,
            ),
            ("after_a_killed_holder_the_next_one_gets_a_higher_token", killed_holder),
            ("a_killed_waiter_delays_the_next_one_by_seconds_only", killed_waiter),
        ],
    )
}

fn start(cluster: &EtcdCluster, ttl: u64) -> ClientProcess {
    let program = std::env::current_exe().expect("this program");
    ClientProcess::start(&program, &cluster.url(), "report/42", Duration::from_secs(ttl))
}

fn await_contenders(cluster: &EtcdCluster, count: usize) {
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while cluster.keys("leasehold/v1/lock/").len() != count {
        assert!(std::time::Instant::now() < until, "expected {count} contenders");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn suspended_within_ttl() {
    let cluster = EtcdCluster::start(1);
    let mut holder = start(&cluster, 30);
    let token = holder.granted();
    let waiting = start(&cluster, 30);
    holder.signal("STOP");
    std::thread::sleep(Duration::from_secs(5));
    holder.signal("CONT");
    holder.tell("check");
    assert_eq!(holder.hears(""), "ok");
    assert_eq!(waiting.says_within(Duration::from_millis(100)), None, "no other claim was granted");
    holder.tell("release");
    assert_eq!(holder.hears("released"), "Now");
    assert!(waiting.granted() > token);
}

fn suspended_past_ttl() {
    let cluster = EtcdCluster::start(1);
    let mut suspended = start(&cluster, 2);
    let token = suspended.granted();
    suspended.signal("STOP");
    let mut next = start(&cluster, 10);
    assert!(next.granted() > token, "a late write of the suspended holder has a token below the fence");
    suspended.signal("CONT");
    suspended.tell("check");
    let (first, second) = (suspended.hears(""), suspended.hears(""));
    assert!([first.as_str(), second.as_str()].contains(&"over"), "{first}, {second}");
    assert!(first != "ok" && second != "ok", "{first}, {second}");
    suspended.tell("release");
    assert_eq!(suspended.hears("released"), "AlreadyGone");
    next.tell("check");
    assert_eq!(next.hears(""), "ok", "the late release does not end the new lease");
}

fn killed_holder() {
    let cluster = EtcdCluster::start(1);
    let first = start(&cluster, 2);
    let token = first.granted();
    let second = start(&cluster, 2);
    first.kill();
    assert!(second.granted() > token);
}

fn killed_waiter() {
    let cluster = EtcdCluster::start(1);
    let mut holder = start(&cluster, 60);
    let token = holder.granted();
    let dead = start(&cluster, 60);
    await_contenders(&cluster, 2);
    dead.kill();
    let next = start(&cluster, 60);
    await_contenders(&cluster, 3);
    holder.tell("release");
    assert_eq!(holder.hears("released"), "Now");
    // The place of the dead waiter expires long before the ttl of its claim.
    assert!(next.granted() > token);
}

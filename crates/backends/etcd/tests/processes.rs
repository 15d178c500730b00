//! Holders that are real processes, on a real etcd: stopped for a while, stopped past their ttl, killed.
//!
//! This program is also the holder: started with a URL, it is the taker of the testkit.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

use std::{process::ExitCode, time::Duration};

use leasehold_testkit::{ClientProcess, client_process, servers::EtcdCluster};

fn main() -> ExitCode {
    client_process::main_with_tests(
        "etcd://",
        &[
            ("a_holder_stopped_for_a_while_keeps_lease_and_token", stopped_for_a_while),
            ("a_holder_stopped_past_its_ttl_is_told_before_any_check_says_ok", stopped_past_its_ttl),
            ("a_killed_holder_is_followed_after_its_ttl_by_a_higher_token", killed),
            ("a_killed_waiter_costs_seconds", killed_waiter),
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
        assert!(std::time::Instant::now() < until, "{count} contenders were due");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn stopped_for_a_while() {
    let cluster = EtcdCluster::start(1);
    let mut holder = start(&cluster, 30);
    let token = holder.granted();
    let waiting = start(&cluster, 30);
    holder.signal("STOP");
    std::thread::sleep(Duration::from_secs(5));
    holder.signal("CONT");
    holder.tell("check");
    assert_eq!(holder.hears(""), "ok");
    assert_eq!(waiting.says_within(Duration::from_millis(100)), None, "nobody else was granted");
    holder.tell("release");
    assert_eq!(holder.hears("released"), "Now");
    assert!(waiting.granted() > token);
}

fn stopped_past_its_ttl() {
    let cluster = EtcdCluster::start(1);
    let mut stopped = start(&cluster, 2);
    let token = stopped.granted();
    stopped.signal("STOP");
    let mut next = start(&cluster, 10);
    assert!(next.granted() > token, "its late write is below the fence");
    stopped.signal("CONT");
    stopped.tell("check");
    let (first, second) = (stopped.hears(""), stopped.hears(""));
    assert!([first.as_str(), second.as_str()].contains(&"over"), "{first}, {second}");
    assert!(first != "ok" && second != "ok", "{first}, {second}");
    stopped.tell("release");
    assert_eq!(stopped.hears("released"), "AlreadyGone");
    next.tell("check");
    assert_eq!(next.hears(""), "ok", "the late request harmed nobody");
}

fn killed() {
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
    // Its place runs out long before the ttl that it asked for.
    assert!(next.granted() > token);
}

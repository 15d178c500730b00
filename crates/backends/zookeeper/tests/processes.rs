//! Holders that are real processes: they are killed, stopped for longer than their session, and resumed.
//!
//! This program is also the holder: started with a URL, it runs the client process of the testkit.

use std::{process::ExitCode, time::Duration};

use leasehold_testkit::{ClientProcess, client_process, servers::ZooKeeperServer};

const TTL: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    client_process::main_with_tests(
        "zookeeper://",
        &[
            ("after_a_holder_is_killed_the_next_one_gets_a_higher_token", killed),
            (
                "a_holder_stopped_past_its_session_learns_of_the_loss_before_any_check_passes",
                stopped_past_its_session,
            ),
            ("a_holder_stopped_for_less_than_its_session_keeps_lease_and_token", stopped_for_a_while),
        ],
    )
}

fn start(url: &str) -> ClientProcess {
    let program = std::env::current_exe().expect("this program has a path");
    ClientProcess::start(&program, url, "report/42", TTL)
}

fn killed() {
    let server = ZooKeeperServer::start();
    let first = start(&server.url());
    let token = first.granted();
    let second = start(&server.url());
    first.kill();
    assert!(second.granted() > token);
}

fn stopped_past_its_session() {
    let server = ZooKeeperServer::start();
    let mut stopped = start(&server.url());
    let token = stopped.granted();
    stopped.signal("STOP");
    let mut next = start(&server.url());
    let higher = next.granted();
    assert!(higher > token, "a fence refuses the late writes of the stopped holder");
    stopped.signal("CONT");
    stopped.tell("check");
    let (first, second) = (stopped.hears(""), stopped.hears(""));
    assert!([first.as_str(), second.as_str()].contains(&"over"), "{first}, {second}");
    assert!(first != "ok" && second != "ok", "{first}, {second}");
    // Its release comes late and must not end the lease of the next holder.
    stopped.tell("release");
    assert_ne!(stopped.hears("released"), "Now");
    next.tell("check");
    assert_eq!(next.hears(""), "ok");
    next.tell("release");
    assert_eq!(next.hears("released"), "Now");
}

fn stopped_for_a_while() {
    let server = ZooKeeperServer::start();
    // A session timeout that is much longer than the stop, so that a loaded machine does not end the session.
    let url = server.url().replace("session_timeout=2s", "session_timeout=4s");
    let mut holder = start(&url);
    let token = holder.granted();
    let waiting = start(&server.url());
    holder.signal("STOP");
    std::thread::sleep(Duration::from_millis(500));
    holder.signal("CONT");
    holder.tell("check");
    assert_eq!(holder.hears(""), "ok");
    assert_eq!(
        waiting.says_within(Duration::from_millis(100)),
        None,
        "no other process was granted the lease"
    );
    holder.tell("release");
    assert_eq!(holder.hears("released"), "Now");
    assert!(waiting.granted() > token);
}

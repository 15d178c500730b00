//! Holders that are real processes: killed, stopped past their session, resumed.
//!
//! This program is also the holder: started with a URL, it is the taker of the testkit.

use std::{process::ExitCode, time::Duration};

use leasehold_testkit::{ClientProcess, client_process, servers::ZooKeeperServer};

const TTL: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    client_process::main_with_tests(
        "zookeeper://",
        &[
            ("a_killed_holder_is_followed_after_its_session_by_a_higher_token", killed),
            ("a_holder_stopped_past_its_session_is_told_before_any_check_says_ok", stopped_past_its_session),
            ("a_holder_stopped_for_less_than_its_session_keeps_lease_and_token", stopped_for_a_while),
        ],
    )
}

fn start(url: &str) -> ClientProcess {
    let program = std::env::current_exe().expect("this program");
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
    assert!(higher > token, "its late write is below the fence");
    stopped.signal("CONT");
    stopped.tell("check");
    let (first, second) = (stopped.hears(""), stopped.hears(""));
    assert!([first.as_str(), second.as_str()].contains(&"over"), "{first}, {second}");
    assert!(first != "ok" && second != "ok", "{first}, {second}");
    // Its farewell comes late, and harms nobody.
    stopped.tell("release");
    assert_ne!(stopped.hears("released"), "Now");
    next.tell("check");
    assert_eq!(next.hears(""), "ok");
    next.tell("release");
    assert_eq!(next.hears("released"), "Now");
}

fn stopped_for_a_while() {
    let server = ZooKeeperServer::start();
    // A session that outlasts the stop by far, on a loaded machine too.
    let url = server.url().replace("session_timeout=2s", "session_timeout=4s");
    let mut holder = start(&url);
    let token = holder.granted();
    let waiting = start(&server.url());
    holder.signal("STOP");
    std::thread::sleep(Duration::from_millis(500));
    holder.signal("CONT");
    holder.tell("check");
    assert_eq!(holder.hears(""), "ok");
    assert_eq!(waiting.says_within(Duration::from_millis(100)), None, "nobody else was granted");
    holder.tell("release");
    assert_eq!(holder.hears("released"), "Now");
    assert!(waiting.granted() > token);
}

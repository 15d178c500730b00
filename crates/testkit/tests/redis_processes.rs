//! Holders that are real processes, on a real Redis: stopped for a while, stopped past their ttl, killed.

use std::{path::Path, time::Duration};

use leasehold_testkit::{ClientProcess, servers::RedisServer};

fn client_process(server: &RedisServer, ttl: Duration) -> ClientProcess {
    ClientProcess::start(
        Path::new(env!("CARGO_BIN_EXE_leasehold-client-process")),
        &server.url(),
        "report/42",
        ttl,
    )
}

#[test]
fn a_holder_stopped_for_five_seconds_at_the_default_ttl_keeps_lease_and_token() {
    let server = RedisServer::start();
    let ttl = Duration::from_secs(30);
    let mut holder = client_process(&server, ttl);
    let token = holder.granted();
    let waiting = client_process(&server, ttl);
    holder.signal("STOP");
    std::thread::sleep(Duration::from_secs(5));
    holder.signal("CONT");
    holder.tell("check");
    assert_eq!(holder.hears(""), "ok");
    assert_eq!(waiting.says_within(Duration::from_millis(100)), None, "nobody else was granted");
    assert_eq!(server.command(&["GET", "lock:v1:{report/42}:fence"]), token.to_string());
    holder.tell("release");
    assert_eq!(holder.hears("released"), "Now");
    assert!(waiting.granted() > token);
}

#[test]
fn a_holder_stopped_past_its_ttl_is_told_before_any_check_says_ok() {
    let server = RedisServer::start();
    let ttl = Duration::from_secs(2);
    let mut stopped = client_process(&server, ttl);
    let token = stopped.granted();
    stopped.signal("STOP");
    let next = client_process(&server, ttl);
    let higher = next.granted();
    assert!(higher > token, "its late write is below the fence");
    stopped.signal("CONT");
    stopped.tell("check");
    let (first, second) = (stopped.hears(""), stopped.hears(""));
    assert!([first.as_str(), second.as_str()].contains(&"over"), "{first}, {second}");
    assert!(first != "ok" && second != "ok", "{first}, {second}");
    assert!(server.command(&["GET", "lock:v1:{report/42}:owner"]).contains(&higher.to_string()));
}

#[test]
fn a_killed_holder_is_followed_after_its_ttl_by_a_higher_token() {
    let server = RedisServer::start();
    let first = client_process(&server, Duration::from_secs(2));
    let token = first.granted();
    let second = client_process(&server, Duration::from_secs(2));
    first.kill();
    assert!(second.granted() > token);
}

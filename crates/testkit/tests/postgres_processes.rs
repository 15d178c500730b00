//! Holders that are real processes, on a real PostgreSQL: stopped past their ttl, killed.

use std::{path::Path, time::Duration};

use leasehold_testkit::{ClientProcess, servers::PostgresServer};

fn client_process(server: &PostgresServer, ttl: Duration) -> ClientProcess {
    ClientProcess::start(
        Path::new(env!("CARGO_BIN_EXE_leasehold-client-process")),
        &server.url(),
        "report/42",
        ttl,
    )
}

#[test]
fn a_holder_stopped_past_its_ttl_is_told_before_any_check_says_ok_and_its_late_release_harms_nobody() {
    let server = PostgresServer::start();
    let ttl = Duration::from_secs(2);
    let mut stopped = client_process(&server, ttl);
    let token = stopped.granted();
    stopped.signal("STOP");
    let mut next = client_process(&server, ttl);
    let higher = next.granted();
    assert!(higher > token, "its late write is below the fence");
    stopped.signal("CONT");
    stopped.tell("check");
    let (first, second) = (stopped.hears(""), stopped.hears(""));
    assert!([first.as_str(), second.as_str()].contains(&"over"), "{first}, {second}");
    assert!(first != "ok" && second != "ok", "{first}, {second}");
    stopped.tell("release");
    assert_eq!(stopped.hears("released"), "AlreadyGone");
    next.tell("check");
    assert_eq!(next.hears(""), "ok");
    assert_eq!(server.sql("SELECT token FROM leasehold.seat"), higher.to_string());
}

#[test]
fn a_killed_holder_is_followed_after_its_ttl_by_a_higher_token() {
    let server = PostgresServer::start();
    let first = client_process(&server, Duration::from_secs(2));
    let token = first.granted();
    let second = client_process(&server, Duration::from_secs(2));
    first.kill();
    assert!(second.granted() > token);
}

//! Holders that are real processes: killed, stopped past their session, resumed.

use std::time::Duration;

use leasehold_testkit::{Taker, servers::ZooKeeperServer, taking};

const TTL: Duration = Duration::from_secs(30);

/// The part of the other process. As a test of its own it has nothing to do.
#[tokio::test]
async fn the_other_process() {
    taking::take_if_asked().await;
}

fn taker(server: &ZooKeeperServer) -> Taker {
    Taker::start_again("the_other_process", &server.url(), "report/42", TTL)
}

#[test]
fn a_killed_holder_is_followed_after_its_session_by_a_higher_token() {
    let server = ZooKeeperServer::start();
    let first = taker(&server);
    let token = first.granted();
    let second = taker(&server);
    first.kill();
    assert!(second.granted() > token);
}

#[test]
fn a_holder_stopped_past_its_session_is_told_before_any_check_says_ok() {
    let server = ZooKeeperServer::start();
    let mut stopped = taker(&server);
    let token = stopped.granted();
    stopped.signal("STOP");
    let mut next = taker(&server);
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

#[test]
fn a_holder_stopped_for_less_than_its_session_keeps_lease_and_token() {
    let server = ZooKeeperServer::start();
    // A session that outlasts the stop by far, on a loaded machine too.
    let url = server.url().replace("session_timeout=2s", "session_timeout=4s");
    let mut holder = Taker::start_again("the_other_process", &url, "report/42", TTL);
    let token = holder.granted();
    let waiting = taker(&server);
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

//! Holders in processes of their own, on a real Redis: stopped for a while, stopped past their ttl, killed.

use std::{path::Path, time::Duration};

use leasehold_testkit::{scenarios::ProcessScenario, servers::RedisServer};

const TTL: Duration = Duration::from_secs(2);
const DEFAULT_TTL: Duration = Duration::from_secs(30);

fn scenario(url: &str, ttl: Duration) -> ProcessScenario<'_> {
    ProcessScenario { program: Path::new(env!("CARGO_BIN_EXE_leasehold-client-process")), url, ttl }
}

#[test]
fn a_holder_stopped_for_five_seconds_at_the_default_ttl_keeps_lease_and_token() {
    let server = RedisServer::start();
    scenario(&server.url(), DEFAULT_TTL).holder_stopped_briefly(Duration::from_secs(5), |token| {
        assert_eq!(server.command(&["GET", "lock:v1:{report/42}:fence"]), token.to_string());
    });
}

#[test]
fn a_holder_stopped_past_its_ttl_learns_of_the_loss_and_its_late_release_does_no_harm() {
    let server = RedisServer::start();
    let mut replaced = scenario(&server.url(), TTL).holder_stopped_past_its_ttl();
    let owner = || server.command(&["GET", "lock:v1:{report/42}:owner"]);
    assert!(owner().contains(&replaced.next_token.to_string()));
    assert_eq!(replaced.late_release(), "AlreadyGone");
    assert!(owner().contains(&replaced.next_token.to_string()));
}

#[test]
fn a_killed_holder_is_replaced_after_its_ttl_with_a_higher_token() {
    let server = RedisServer::start();
    scenario(&server.url(), TTL).killed_holder_is_replaced();
}

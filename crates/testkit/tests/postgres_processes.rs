//! Holders in processes of their own, on a real PostgreSQL: stopped past their ttl, killed.

use std::{path::Path, time::Duration};

use leasehold_testkit::{scenarios::ProcessScenario, servers::PostgresServer};

const TTL: Duration = Duration::from_secs(2);

fn scenario(url: &str) -> ProcessScenario<'_> {
    ProcessScenario { program: Path::new(env!("CARGO_BIN_EXE_leasehold-client-process")), url, ttl: TTL }
}

#[test]
fn a_holder_stopped_past_its_ttl_learns_of_the_loss_and_its_late_release_does_no_harm() {
    let server = PostgresServer::start();
    let mut replaced = scenario(&server.url()).holder_stopped_past_its_ttl();
    assert_eq!(replaced.late_release(), "AlreadyGone");
    assert_eq!(server.sql("SELECT token FROM leasehold.seat"), replaced.next_token.to_string());
}

#[test]
fn a_killed_holder_is_replaced_after_its_ttl_with_a_higher_token() {
    let server = PostgresServer::start();
    scenario(&server.url()).killed_holder_is_replaced();
}

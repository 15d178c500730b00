//! The answers of the HTTP handler in `examples/http_handlers.rs`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../../../examples/http_handlers.rs"]
mod example;

use std::{sync::Arc, time::Duration};

use leasehold::{Client, Memory, OperatorAction, OperatorCommand, Query};

#[tokio::test]
async fn a_free_report_is_exported_and_a_busy_one_is_a_conflict_with_a_time_to_come_again() {
    let backend = Arc::new(Memory::new());
    let app = example::app(Client::new(backend.clone()));
    assert_eq!(example::send(&app, "42").await.unwrap(), (200, None));
    let other = Client::new(backend);
    let held = other.lease("report", "42").ttl(Duration::from_secs(4)).acquire().await.unwrap();
    let (status, after) = example::send(&app, "42").await.unwrap();
    assert_eq!(status, 409);
    assert!(after.is_some_and(|seconds| (1..=4).contains(&seconds)), "{after:?}");
    assert_eq!(example::send(&app, "43").await.unwrap().0, 200, "another report is free");
    held.release().await.unwrap();
    assert_eq!(example::send(&app, "42").await.unwrap().0, 200, "and a handler leaves nothing held");
}

#[tokio::test]
async fn a_paused_report_is_locked_until_the_pause_ends() {
    let leases = Client::new(Arc::new(Memory::new()));
    let app = example::app(leases.clone());
    let report = leases.lease("report", "42").resource().unwrap().clone();
    let pause = OperatorAction::Pause { lasting: Duration::from_secs(3600) };
    leases.order(&OperatorCommand::new(report.clone(), pause, "anna", "INC-512")).await.unwrap();
    assert_eq!(example::send(&app, "42").await.unwrap(), (423, Some(10)), "at most ten seconds");
    let queue = leases.inspect(&Query::One(report)).await.unwrap().into_snapshots();
    assert!(queue.iter().all(|it| it.queue_length == 0), "it does not wait");
}

//! Claims that wait.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{LONG, SHORT};
use crate::{
    driver::PATIENCE,
    world::{World, until},
};

/// A claim waits in the queue and is granted when its turn comes, with a higher token.
pub(super) async fn waits_its_turn(mut world: World) {
    let rival = world.rival();
    let before = rival.try_acquire("report/42").await.granted();
    let waiting = world.begin("mine", "report/42", LONG, PATIENCE).await;
    rival.await_queue("report/42", 1).await;
    assert!(world.driver.answered(waiting).is_none(), "it must wait");
    rival.release("report/42").await;
    let answer = world.driver.answer(waiting).await;
    let number = |token: &str| token.parse::<u64>().expect("a token is a number");
    let token = number(answer.ok()["token"].as_str().expect("a token is text"));
    assert!(token > number(before.token()));
    world.check("mine").await.ok();
}

/// The time that a claim has waited does not count against its lease: it is still held, and only lost a ttl later.
///
/// The lease is shorter than the wait, so a client that counts from when it sent the request believes that it is over. If it gives its grant
/// back, the next in the queue has it.
pub(super) async fn waits_longer_than_one_request(mut world: World) {
    let rival = world.rival();
    rival.try_acquire("report/42").await.granted();
    let started = Instant::now();
    let waiting = world.begin("mine", "report/42", SHORT, PATIENCE).await;
    rival.await_queue("report/42", 1).await;
    let next = world.rival().acquire("report/42");
    rival.await_queue("report/42", 2).await;
    until(started, SHORT * 2).await;
    rival.release("report/42").await;
    world.driver.answer(waiting).await.ok();
    world.check("mine").await.ok();
    assert!(world.driver.events("lost", "mine").is_empty());
    until(started, SHORT * 2 + SHORT * 3 / 2).await;
    world.check("mine").await.ok();
    assert!(!next.is_finished(), "the next in the queue has it: {:?}", next.await);
    world.release("mine").await.ok();
    next.await.expect("it waits").granted();
}

/// When the time to wait is over, the caller is told so, and who holds the lease; nothing of the claim is left.
pub(super) async fn time_to_wait_is_over(mut world: World) {
    let rival = world.rival();
    let held = rival.try_acquire("report/42").await.granted();
    let started = Instant::now();
    let waiting = world.begin("mine", "report/42", LONG, Duration::from_millis(1500)).await;
    let answer = world.driver.answer(waiting).await;
    assert_eq!(answer.error("timed_out")["holders"][0]["token"], held.token());
    assert!(answer.at.duration_since(started) >= Duration::from_millis(1400), "it must wait");
    rival.await_queue("report/42", 0).await;
    assert!(rival.still_holds("report/42").await);
}

/// A caller that cancels is told so at once, and its place in the queue is gone: nothing is granted to it later.
pub(super) async fn cancelled_while_waiting(mut world: World) {
    let rival = world.rival();
    rival.try_acquire("report/42").await.granted();
    let waiting = world.begin("mine", "report/42", LONG, Duration::from_secs(60)).await;
    rival.await_queue("report/42", 1).await;
    let releases = rival.requests("/v1/release").await;
    let cancelled = Instant::now();
    world.driver.ask(json!({"do": "cancel", "of": waiting})).await.ok();
    let answer = world.driver.answer(waiting).await;
    answer.error("cancelled");
    assert!(answer.at.duration_since(cancelled) < PATIENCE / 3, "it must not wait for the server");
    // It gives its place up: a place that is not given up ends by itself some seconds later.
    rival.await_metric("leasehold_http_requests_total{route=\"/v1/release\"", |now| now > releases).await;
    assert_eq!(rival.look("report/42").await["queue_length"], 0);
    rival.release("report/42").await;
    world.rival().try_acquire("report/42").await.granted();
    // The client can wait for the same lease again.
    let waiting = world.begin("again", "report/43", LONG, PATIENCE).await;
    world.driver.answer(waiting).await.ok();
}

//! Leases that are lost.

use std::time::{Duration, Instant};

use leasehold_testkit::proxy::Direction;
use serde_json::json;

use super::LONG;
use crate::world::{World, acquire, millis, until, with};

/// A ttl with two seconds between the stop and the end, for the stories that compare the clocks of two processes.
const TTL: Duration = Duration::from_secs(12);

/// The client is cut off from the server. It tells its program by the clock, before anybody else can be granted.
pub(super) async fn told_when_cut_off(mut world: World) {
    let started = Instant::now();
    world.try_acquire("mine", "report/42", TTL).await.ok();
    let rival = world.rival().acquire("report/42");
    until(started, TTL / 2).await;
    world.check("mine").await.ok();
    world.driver.remark("cut off");
    world.proxy().black_hole();
    let lost = world.driver.event("lost", "mine").await;
    assert_eq!(lost.value["why"], "expired");
    let granted = rival.await.expect("the rival waits").granted();
    assert!(
        lost.at < granted.at,
        "the rival was granted {:?} before the loss was told",
        lost.at - granted.at
    );
    world.check("mine").await.error("lost");
    // For good: the connection comes back, and the lease does not.
    world.proxy().heal();
    world.check("mine").await.error("lost");
    world.release("mine").await.ok();
    assert_eq!(world.driver.events("lost", "mine").len(), 1);
}

/// The client is cut off while it holds several leases. It tells its program once, before anybody else can be granted any of them.
pub(super) async fn told_once_of_several(mut world: World) {
    let resources = ["box/a", "box/b", "box/c"];
    let command = json!({
        "do": "acquire_all", "client": "c", "lease": "all", "resources": resources, "ttl_ms": millis(TTL), "wait_ms": 0,
    });
    world.driver.ask(command).await.ok();
    let rivals = resources.map(|resource| world.rival().acquire(resource));
    world.proxy().black_hole();
    let lost = world.driver.event("lost", "all").await;
    assert_eq!(lost.value["why"], "expired");
    for rival in rivals {
        let granted = rival.await.expect("the rival waits").granted();
        assert!(
            lost.at < granted.at,
            "the loss was told {:?} after the rival was granted",
            lost.at - granted.at
        );
    }
    world.check("all").await.error("lost");
    world.proxy().heal();
    world.check("all").await.error("lost");
    world.release("all").await.ok();
    assert_eq!(world.driver.events("lost", "all").len(), 1);
}

/// Requests arrive and are carried out, and no answer comes back: the program is told in the same way.
pub(super) async fn told_when_answers_are_lost(mut world: World) {
    world.try_acquire("mine", "report/42", TTL).await.ok();
    world.proxy().hold(Direction::Replies);
    let held = Instant::now();
    let lost = world.driver.event("lost", "mine").await;
    assert_eq!(lost.value["why"], "expired");
    // What no answer confirms does not count.
    assert!(lost.at.duration_since(held) < TTL, "told after {:?}", lost.at.duration_since(held));
    // The server has renewed it meanwhile, so the rival may have to wait for one more ttl.
    world.rival().acquire("report/42").await.expect("the rival waits").granted();
}

/// An operator evicts the holder. The client learns of it with its next renewal, and tells its program.
pub(super) async fn told_when_evicted(mut world: World) {
    // Its next renewal comes long before it would be told by the clock.
    let answer = world.try_acquire("mine", "report/42", Duration::from_secs(15)).await;
    let token = answer.ok()["token"].clone();
    let operator = world.tokens().operator.clone();
    let ops = crate::rival::Rival::new(world.port, Some(operator));
    let order = json!({"resource": "report/42", "action": "evict-now", "token": token, "why": "the story"});
    assert_eq!(ops.post("/v1/orders", order).await.status, 200);
    let lost = world.driver.event("lost", "mine").await;
    assert_eq!(lost.value["why"], "evicted");
    world.check("mine").await.error("lost");
    let again = world.try_acquire("again", "report/42", LONG).await;
    assert_ne!(again.ok()["token"], token);
}

/// A body that works is stopped when its lease is lost, before anybody else is granted, and the caller sees the loss.
pub(super) async fn the_body_is_stopped(mut world: World) {
    let command = with(with(acquire("s", "report/42", TTL, Duration::ZERO), "do", "scope"), "body", "work");
    let scope = world.driver.send(command).await;
    world.driver.event("entered", "s").await;
    let rival = world.rival().acquire("report/42");
    world.proxy().black_hole();
    let stopped = world.driver.event("stopped", "s").await;
    let granted = rival.await.expect("the rival waits").granted();
    assert!(stopped.at < granted.at, "the body worked on for {:?}", stopped.at - granted.at);
    world.driver.answer(scope).await.error("lost");
}

/// A scope whose body fails while the server is cut off ends soon, and with the error of the body.
pub(super) async fn leaving_is_quick_when_cut_off(mut world: World) {
    let command =
        with(with(acquire("s", "report/42", LONG, Duration::ZERO), "do", "scope"), "body", "work_then_raise");
    let scope = world.driver.send(command).await;
    world.driver.event("entered", "s").await;
    world.proxy().black_hole();
    let cut = Instant::now();
    world.driver.ask(json!({"do": "finish", "lease": "s"})).await.ok();
    let answer = world.driver.answer(scope).await;
    answer.error("body");
    assert!(answer.at.duration_since(cut) < Duration::from_secs(15), "a release has its own, short limit");
}

//! What happens to the process of the client.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{LONG, SHORT};
use crate::world::{World, millis, until};

/// The process is stopped for longer than its ttl. When it goes on, the first check fails: nothing is done under a lease that
/// another one holds. Its late renewals and its release do not disturb the new holder.
pub(super) async fn stopped_past_its_ttl(mut world: World) {
    let answer = world.try_acquire("mine", "report/42", SHORT).await;
    let old = answer.ok()["token"].as_str().expect("a token is text").parse::<u64>().expect("a number");
    let rival = world.rival();
    let waiting = rival.acquire("report/42");
    world.driver.stop();
    // It is there when the process goes on, before any timer fires.
    let check = world.driver.send(json!({"do": "check", "lease": "mine"})).await;
    let granted = waiting.await.expect("the rival waits").granted();
    assert!(granted.token().parse::<u64>().expect("a number") > old);
    world.driver.go_on();
    world.driver.answer(check).await.error("lost");
    world.driver.event("lost", "mine").await;
    world.release("mine").await.ok();
    assert!(rival.still_holds("report/42").await);
    // The client works on.
    world.try_acquire("other", "report/43", LONG).await.ok();
}

/// A child that is forked while a lease is held does not hold it, and its leaving does not release the lease of the parent.
pub(super) async fn a_forked_child_holds_nothing(mut world: World) {
    let started = Instant::now();
    let token = world.try_acquire("mine", "report/42", SHORT).await.ok()["token"].clone();
    let answer = world.driver.ask(json!({"do": "fork", "lease": "mine"})).await;
    assert_eq!(answer.ok()["child"]["error"]["kind"], "lost", "{:?}", answer.ok());
    assert_eq!(answer.ok()["child"]["error"]["why"], "forked", "{:?}", answer.ok());
    world.check("mine").await.ok();
    until(started, SHORT * 2).await;
    world.check("mine").await.ok();
    let rival = world.rival();
    assert_eq!(rival.holders("report/42").await, [token.as_str().expect("a token is text")]);
    world.release("mine").await.ok();
    rival.try_acquire("report/42").await.granted();
}

/// The thread of the event loop is busy for longer than the ttl. Then a check tells the truth: if another one was granted
/// meanwhile, the lease is lost.
pub(super) async fn the_event_loop_is_blocked(mut world: World) {
    world.try_acquire("mine", "report/42", SHORT).await.ok();
    let rival = world.rival();
    let waiting = rival.acquire("report/42");
    let block = json!({"do": "block", "lease": "mine", "for_ms": millis(SHORT * 2)});
    let answer = world.driver.ask(block).await;
    if answer.kind().is_some() {
        answer.error("lost");
        world.driver.event("lost", "mine").await;
        waiting.await.expect("the rival waits").granted();
    } else {
        // Something besides the loop has renewed it.
        let checked = world.check("mine").await;
        checked.ok();
        world.release("mine").await.ok();
        let granted = waiting.await.expect("the rival waits").granted();
        let early = checked.at.saturating_duration_since(granted.at);
        assert_eq!(early, Duration::ZERO, "the check passed when the rival held it");
    }
}

/// The calendar clock is the second watch: when it says that the lease is over, the program is told, even if the other
/// clock stood still (as it does on some systems while they sleep). A step back changes nothing.
pub(super) async fn the_wall_clock_jumps(mut world: World) {
    world.try_acquire("mine", "report/42", LONG).await.ok();
    world.clock().set_ahead(-3600);
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.check("mine").await.ok();
    assert!(world.driver.events("lost", "mine").is_empty());
    world.clock().set_ahead(0);
    world.try_acquire("other", "report/43", LONG).await.ok();
    // Cut off: a renewal would give it new times by the new clock.
    world.proxy().black_hole();
    world.clock().set_ahead(60);
    world.check("other").await.error("lost");
    let lost = world.driver.event("lost", "other").await;
    assert_eq!(lost.value["why"], "wall_clock");
}

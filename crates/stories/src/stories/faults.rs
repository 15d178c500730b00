//! Faults of servers and of the network.

use std::time::{Duration, Instant};

use leasehold_testkit::proxy::{Direction, Misdelivery};
use serde_json::json;

use super::{LONG, SHORT};
use crate::{
    driver::PATIENCE,
    server::Server,
    world::{World, until},
};

/// The server is killed, and another one takes its place, over the same store: leases go on as if nothing had happened.
pub(super) async fn the_server_is_replaced(mut world: World) {
    let started = Instant::now();
    let ttl = SHORT * 2;
    let token = world.try_acquire("mine", "report/42", ttl).await.ok()["token"].clone();
    world.replace_server().await;
    until(started, ttl * 2).await;
    world.check("mine").await.ok();
    let refused = world.rival().try_acquire("report/42").await.contended();
    assert_eq!(refused.body["holders"][0]["token"], token);
    world.release("mine").await.ok();
    world.rival().try_acquire("report/42").await.granted();
}

/// No server answers for a third of the ttl: the lease outlives that, because it is renewed early and often.
pub(super) async fn the_server_is_away_for_a_while(mut world: World) {
    let ttl = SHORT * 3;
    let started = Instant::now();
    world.try_acquire("mine", "report/42", ttl).await.ok();
    world.kill_server().await;
    let answer = world.try_acquire("other", "report/43", LONG).await;
    // Refused connections: nothing was written.
    assert_eq!(answer.error("unavailable")["effect"], "none");
    until(started, ttl / 3 + Duration::from_millis(500)).await;
    world.start_server().await;
    until(started, ttl * 2).await;
    world.check("mine").await.ok();
    assert!(world.driver.events("lost", "mine").is_empty());
}

/// A claim that waits outlives its server: it asks again, with the same owner token, and is granted.
pub(super) async fn a_waiter_outlives_its_server(mut world: World) {
    let rival = world.rival();
    rival.try_acquire("report/42").await.granted();
    let waiting = world.begin("mine", "report/42", LONG, PATIENCE).await;
    rival.await_queue("report/42", 1).await;
    world.replace_server().await;
    rival.release("report/42").await;
    world.driver.answer(waiting).await.ok();
    world.check("mine").await.ok();
    assert_eq!(rival.holders("report/42").await.len(), 1);
}

/// A server that drains gives its waiters back early, and renews until its end. The next one goes on.
pub(super) async fn the_server_drains(mut world: World) {
    let ttl = SHORT * 2;
    let started = Instant::now();
    world.try_acquire("held", "report/41", ttl).await.ok();
    let rival = world.rival();
    rival.try_acquire("report/42").await.granted();
    let waiting = world.begin("mine", "report/42", LONG, PATIENCE).await;
    rival.await_queue("report/42", 1).await;
    world.driver.remark("the server drains");
    let server = world.server.take().expect("it runs");
    server.drain();
    server.ended().await;
    world.start_server().await;
    rival.release("report/42").await;
    world.driver.answer(waiting).await.ok();
    until(started, ttl * 2).await;
    world.check("held").await.ok();
    world.check("mine").await.ok();
}

/// Connections are reset, again and again: requests that may be repeated are, and nothing is lost.
pub(super) async fn connections_are_cut(mut world: World) {
    let ttl = SHORT * 2;
    let started = Instant::now();
    world.try_acquire("mine", "report/42", ttl).await.ok();
    for number in 0..8 {
        world.proxy().reset();
        // A wait, because a try may say that it does not know.
        let waiting = world.begin(&format!("l{number}"), &format!("cut/{number}"), ttl, PATIENCE).await;
        world.driver.answer(waiting).await.ok();
        until(started, ttl / 4 * number).await;
    }
    world.proxy().reset();
    world.check("mine").await.ok();
    world.check("l0").await.ok();
    let rival = world.rival();
    rival.try_acquire("report/42").await.contended();
    world.release("mine").await.ok();
    rival.try_acquire("report/42").await.granted();
}

/// The server grants, and the answer is lost with its connection. The client asks again with the same owner token, and finds
/// its own grant: one holder, not two, and no wait for its own ghost.
pub(super) async fn the_answer_to_a_claim_is_lost(mut world: World) {
    world.proxy().lose_replies(1);
    let started = Instant::now();
    let waiting = world.begin("mine", "report/42", LONG, PATIENCE).await;
    let answer = world.driver.answer(waiting).await;
    let token = answer.ok()["token"].as_str().expect("a token is text");
    assert!(answer.at.duration_since(started) < LONG / 2, "it must not wait for its own ghost");
    assert_eq!(world.rival().holders("report/42").await, [token]);
    world.check("mine").await.ok();
}

/// An answer that names another claim is never a grant.
pub(super) async fn the_answer_is_of_another_claim(mut world: World) {
    let rival = world.rival();
    rival.try_acquire("report/2").await.granted();
    // The first answer of the connection is a grant; it comes once more instead of the refusal of the second claim.
    world.try_acquire("one", "report/1", LONG).await.ok();
    world.proxy().misdeliver(Misdelivery::Stale, 1);
    let answer = world.try_acquire("two", "report/2", LONG).await;
    assert!(answer.kind().is_some(), "the lease belongs to the rival: {:?}", answer.ok());
    world.proxy().heal();
    assert!(rival.still_holds("report/2").await);
    world.check("one").await.ok();
    // And the same claim of another connection: nothing is held that the server does not know.
    world.proxy().cut_after(Direction::Replies, 100);
    let answer = world.try_acquire("three", "report/3", LONG).await;
    if answer.kind().is_none() {
        assert_eq!(rival.holders("report/3").await.len(), 1);
    }
}

/// A server of another store answers at the same address. Its grants are never believed.
pub(super) async fn another_store_answers(mut world: World) {
    world.try_acquire("mine", "report/42", SHORT).await.ok();
    world.kill_server().await;
    let mut options = world.options.clone();
    options.store = format!("sqlite:{}", world.path("other.db").display());
    world.server = Some(Server::start_on(&options, world.port).await);
    world.driver.remark("a server of another store runs");
    world.try_acquire("other", "report/43", LONG).await.error("unavailable");
    let lost = world.driver.event("lost", "mine").await;
    assert_eq!(lost.value["why"], "expired", "what another store says of the lease means nothing");
    // A client that begins now does not know the first store.
    let fresh = json!({"do": "connect", "client": "new", "url": world.url()});
    world.driver.ask(fresh).await.ok();
    let command = crate::world::acquire("new", "report/44", LONG, Duration::ZERO);
    world.driver.ask(crate::world::with(command, "client", "new")).await.ok();
}

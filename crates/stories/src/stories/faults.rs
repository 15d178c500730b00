//! Faults of servers and of the network.

use std::time::{Duration, Instant};

use leasehold_testkit::proxy::{Direction, Misdelivery};
use serde_json::json;

use super::LONG;
use crate::{
    driver::{Answer, PATIENCE},
    server::Server,
    world::{World, acquire, until, with},
};

/// A ttl that leaves a slow machine the time to start another server.
const TTL: Duration = Duration::from_secs(12);

/// That the client says: no answer, and the request may have been executed.
#[track_caller]
fn assert_unknown(answer: &Answer) {
    let error = answer.error("unavailable");
    assert_eq!(error["effect"], "unknown", "{error}");
}

/// The server is killed, and another one takes its place, over the same store: leases go on as if nothing had happened.
pub(super) async fn the_server_is_replaced(mut world: World) {
    let started = Instant::now();
    let token = world.try_acquire("mine", "report/42", TTL).await.ok()["token"].clone();
    world.replace_server().await;
    until(started, TTL * 2).await;
    world.check("mine").await.ok();
    let refused = world.rival().try_acquire("report/42").await.contended();
    assert_eq!(refused.body["holders"][0]["token"], token);
    world.release("mine").await.ok();
    world.rival().try_acquire("report/42").await.granted();
}

/// No server answers for a third of the ttl: the lease outlives that, because it is renewed early and often.
pub(super) async fn the_server_is_away_for_a_while(mut world: World) {
    let started = Instant::now();
    world.try_acquire("mine", "report/42", TTL).await.ok();
    // It has no connection yet: on one that is cut, nobody can know what has arrived.
    world.connect("fresh", None).await;
    world.kill_server().await;
    let command = with(acquire("other", "report/43", LONG, Duration::ZERO), "client", "fresh");
    let answer = world.driver.ask(command).await;
    // Refused connections: nothing was written.
    assert_eq!(answer.error("unavailable")["effect"], "none");
    until(started, TTL / 3 + Duration::from_millis(500)).await;
    world.start_server().await;
    until(started, TTL * 2).await;
    world.check("mine").await.ok();
    assert!(world.driver.events("lost", "mine").is_empty());
}

/// A claim that waits outlives its server: it asks again, with the same owner token, and is granted.
pub(super) async fn a_waiter_outlives_its_server(mut world: World) {
    let rival = world.rival();
    rival.try_acquire("report/42").await.granted();
    let waiting = world.begin("mine", "report/42", LONG, PATIENCE * 2).await;
    rival.await_queue("report/42", 1).await;
    let joined = Instant::now();
    world.replace_server().await;
    rival.assert_waits_since("report/42", joined).await;
    rival.release("report/42").await;
    world.driver.answer(waiting).await.ok();
    world.check("mine").await.ok();
    assert_eq!(rival.holders("report/42").await.len(), 1);
}

/// A server that drains gives its waiters back early, refuses new claims without an effect, and renews until its end. The next one goes
/// on.
pub(super) async fn the_server_drains(mut world: World) {
    let started = Instant::now();
    world.try_acquire("held", "report/41", TTL).await.ok();
    // Renewed every second or so.
    world.try_acquire("often", "report/40", Duration::from_secs(3)).await.ok();
    let rival = world.rival();
    rival.try_acquire("report/42").await.granted();
    let waiting = world.begin("mine", "report/42", LONG, PATIENCE * 2).await;
    rival.await_metric("leasehold_http_waiting", |waiting| waiting == 1).await;
    // The server does not end while a request is half sent, for ten seconds at most.
    let unfinished = rival.begin_request().await;
    world.driver.remark("the server drains");
    let server = world.server.take().expect("it runs");
    server.drain();
    rival.await_metric("leasehold_http_draining", |draining| draining == 1).await;
    rival.await_metric("leasehold_http_waiting", |waiting| waiting == 0).await;
    let answer = world.try_acquire("other", "report/43", LONG).await;
    assert_eq!(answer.error("unavailable")["effect"], "none");
    let renewals = rival.requests("/v1/renew").await;
    rival.await_metric("leasehold_http_requests_total{route=\"/v1/renew\"", |now| now > renewals).await;
    drop(unfinished);
    server.ended().await;
    world.start_server().await;
    rival.await_metric("leasehold_http_waiting", |waiting| waiting == 1).await;
    let seen = rival.look("report/42").await;
    assert_eq!(seen["queue_length"], 1, "with the same owner token there is one place: {seen}");
    rival.release("report/42").await;
    world.driver.answer(waiting).await.ok();
    until(started, TTL * 2).await;
    world.check("held").await.ok();
    world.check("mine").await.ok();
}

/// Connections are reset, again and again: requests that may be repeated are, and nothing is lost. A claim that waits keeps its place.
pub(super) async fn connections_are_cut(mut world: World) {
    let started = Instant::now();
    let rival = world.rival();
    rival.try_acquire("report/41").await.granted();
    let queued = world.begin("queued", "report/41", TTL, PATIENCE * 2).await;
    rival.await_queue("report/41", 1).await;
    let joined = Instant::now();
    world.try_acquire("mine", "report/42", TTL).await.ok();
    for number in 0..8 {
        // The request of the claim that waits is open when it is cut.
        rival.await_metric("leasehold_http_waiting", |waiting| waiting == 1).await;
        world.proxy().reset();
        // A wait, because a try may say that it does not know.
        let waiting = world.begin(&format!("l{number}"), &format!("cut/{number}"), TTL, PATIENCE).await;
        world.driver.answer(waiting).await.ok();
        until(started, TTL / 6 * number).await;
    }
    world.proxy().reset();
    world.check("mine").await.ok();
    world.check("l0").await.ok();
    rival.assert_waits_since("report/41", joined).await;
    rival.release("report/41").await;
    world.driver.answer(queued).await.ok();
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

/// The server grants, the answer is lost, and no server can be reached after that. The last attempt had no effect, and the first one
/// has: so the claim may have an effect. When a server can be reached again, the client gives the grant back.
pub(super) async fn the_server_is_gone_after_the_claim(mut world: World) {
    world.proxy().hold(Direction::Replies);
    let claim = world.begin("mine", "report/42", LONG, Duration::ZERO).await;
    let rival = world.rival();
    rival.await_holders("report/42", 1).await;
    world.driver.remark("the proxy is gone");
    let port = world.end_proxy();
    assert_unknown(&world.driver.answer(claim).await);
    let another = Server::start_on(&world.options, port).await;
    world.driver.remark("another server runs at its address");
    let reachable = Instant::now();
    rival.await_holders("report/42", 0).await;
    assert!(reachable.elapsed() < LONG / 2, "it was not given back, and ended by itself");
    drop(another);
}

/// An answer that names another claim is never a grant.
pub(super) async fn the_answer_is_of_another_claim(mut world: World) {
    let rival = world.rival();
    rival.try_acquire("report/2").await.granted();
    // The first answer of the connection is a grant; it comes once more instead of the refusal of the second claim.
    world.try_acquire("one", "report/1", LONG).await.ok();
    world.proxy().misdeliver(Misdelivery::Stale, 1);
    let answer = world.try_acquire("two", "report/2", LONG).await;
    assert_eq!(world.proxy().misdelivered(), 1, "the second claim used another connection");
    // It may have asked again.
    if answer.kind() != Some("busy") {
        assert_unknown(&answer);
    }
    world.proxy().heal();
    assert!(rival.still_holds("report/2").await);
    world.check("one").await.ok();
    // And the same claim of another connection: nothing is held that the server does not know.
    world.proxy().cut_after(Direction::Replies, 100);
    let answer = world.try_acquire("three", "report/3", LONG).await;
    if answer.kind().is_none() {
        assert_eq!(rival.holders("report/3").await.len(), 1);
    } else {
        assert_unknown(&answer);
        rival.await_holders("report/3", 0).await;
    }
}

/// A server of another store answers at the same address. Its grants are never believed.
pub(super) async fn another_store_answers(mut world: World) {
    world.try_acquire("mine", "report/42", TTL).await.ok();
    world.kill_server().await;
    let mut options = world.options.clone();
    options.store = format!("sqlite:{}", world.path("other.db").display());
    world.server = Some(Server::start_on(&options, world.port).await);
    world.driver.remark("a server of another store runs");
    assert_unknown(&world.try_acquire("other", "report/43", LONG).await);
    // The client gives back what it does not believe to have.
    world.rival().await_holders("report/43", 0).await;
    let lost = world.driver.event("lost", "mine").await;
    assert_eq!(lost.value["why"], "expired", "what another store says of the lease means nothing");
    // A client that begins now does not know the first store.
    let fresh = json!({"do": "connect", "client": "new", "url": world.url()});
    world.driver.ask(fresh).await.ok();
    let command = with(acquire("new", "report/44", LONG, Duration::ZERO), "client", "new");
    world.driver.ask(command).await.ok();
}

//! Leases that several may hold, and elections.

use std::time::Duration;

use serde_json::{Value, json};

use super::{LONG, SHORT};
use crate::{
    driver::{Answer, PATIENCE},
    world::{World, acquire, with},
};

async fn shared(world: &mut World, lease: &str, resource: &str, share: Value) -> Answer {
    world.driver.ask(with(acquire(lease, resource, LONG, Duration::ZERO), "share", share)).await
}

/// A semaphore of two: two hold it, the third is told who. A shared lease has a number, and neither token nor pass.
pub(super) async fn semaphore(mut world: World) {
    let one = json!({"weight": 1, "capacity": 2});
    for lease in ["one", "two"] {
        let answer = shared(&mut world, lease, "db/main", one.clone()).await;
        let grant = answer.ok();
        assert!(
            grant["number"].is_string() && grant["token"].is_null() && grant["pass"].is_null(),
            "{grant}"
        );
    }
    let busy = shared(&mut world, "three", "db/main", one.clone()).await;
    assert_eq!(busy.error("busy")["holders"].as_array().map(Vec::len), Some(2));
    world.release("one").await.ok();
    shared(&mut world, "three", "db/main", one).await.ok();
    world.release("two").await.ok();
    world.release("three").await.ok();
    shared(&mut world, "both", "db/main", json!({"weight": 2, "capacity": 2})).await.ok();
    world.check("both").await.ok();
}

/// Another capacity than that of the holders is the caller's mistake, and says which one is in use.
pub(super) async fn another_capacity_is_invalid(mut world: World) {
    shared(&mut world, "one", "db/main", json!({"weight": 1, "capacity": 2})).await.ok();
    let answer = shared(&mut world, "two", "db/main", json!({"weight": 1, "capacity": 3})).await;
    let error = answer.error("invalid");
    assert!(error["message"].as_str().is_some_and(|text| text.contains('2')), "{error}");
}

/// Many read, or one writes.
pub(super) async fn readers_and_a_writer(mut world: World) {
    for lease in ["r1", "r2"] {
        shared(&mut world, lease, "doc/1", json!("read")).await.ok();
    }
    shared(&mut world, "w", "doc/1", json!("write")).await.error("busy");
    let command = with(acquire("w", "doc/1", LONG, PATIENCE), "share", "write");
    let waiting = world.driver.send(command).await;
    world.rival().await_queue("doc/1", 1).await;
    world.release("r1").await.ok();
    world.release("r2").await.ok();
    world.driver.answer(waiting).await.ok();
    shared(&mut world, "r3", "doc/1", json!("read")).await.error("busy");
    world.release("w").await.ok();
    shared(&mut world, "r3", "doc/1", json!("read")).await.ok();
}

/// An observer sees the leader and its value, each change of it, and that nobody leads.
pub(super) async fn election_with_an_observer(mut world: World) {
    let observe = json!({"do": "observe", "client": "c", "observer": "o", "resource": "scheduler/eu"});
    world.driver.ask(observe).await.ok();
    world.driver.leader("o", None).await;
    let candidate = |lease: &str, wait| with(acquire(lease, "scheduler/eu", SHORT, wait), "note", lease);
    let token = world.driver.ask(candidate("a", Duration::ZERO)).await.ok()["token"].clone();
    let seen = world.driver.leader("o", Some("a")).await;
    assert_eq!(seen.value["token"], token);
    let next = world.driver.send(candidate("b", PATIENCE)).await;
    world.rival().await_queue("scheduler/eu", 1).await;
    world.driver.ask(json!({"do": "note", "lease": "a", "note": "a:8080"})).await.ok();
    world.driver.leader("o", Some("a:8080")).await;
    world.release("a").await.ok();
    let led = world.driver.answer(next).await;
    let seen = world.driver.leader("o", Some("b")).await;
    assert_eq!(seen.value["token"], led.ok()["token"]);
}

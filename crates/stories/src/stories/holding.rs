//! Leases that are granted, refused, and renewed.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{LONG, SHORT};
use crate::world::{World, acquire, millis, until, with};

/// A free lease is granted at once, with a token and a pass; others see who holds it; a release frees it at once.
pub(super) async fn granted(mut world: World) {
    let command = acquire("mine", "report/4 2", LONG, Duration::ZERO);
    let command = with(with(command, "note", "step 1"), "label", "the story");
    let answer = world.driver.ask(command).await;
    let grant = answer.ok();
    let token = grant["token"].as_str().expect("a token is text");
    let pass = grant["pass"].as_str().expect("a pass is text");
    let words: Vec<&str> = pass.splitn(3, ' ').collect();
    assert_eq!((words[0], words[1].len(), words[2]), (token, 32, "report/4 2"), "{pass}");

    let rival = world.rival();
    let seen = rival.look("report/4%202").await;
    let holder = &seen["holders"][0];
    assert_eq!((&holder["token"], &holder["note"]), (&json!(token), &json!("step 1")));
    assert_eq!(holder["holder"]["pid"], json!(world.driver.pid()));
    assert_eq!(holder["holder"]["label"], "the story");

    world.driver.ask(json!({"do": "note", "lease": "mine", "note": "step 2"})).await.ok();
    assert_eq!(rival.look("report/4%202").await["holders"][0]["note"], "step 2");

    world.check("mine").await.ok();
    world.release("mine").await.ok();
    rival.try_acquire("report/4 2").await.granted();
    world.check("mine").await.error("lost");
}

/// A try of a lease that another holds fails at once, and says who holds it and when to ask again.
pub(super) async fn busy(mut world: World) {
    let rival = world.rival();
    let held = rival.try_acquire("report/42").await.granted();
    let answer = world.try_acquire("mine", "report/42", LONG).await;
    let error = answer.error("busy");
    let holder = &error["holders"][0];
    assert_eq!(holder["token"], held.token());
    assert_eq!((&holder["host"], &holder["pid"]), (&json!("rival"), &json!(1)));
    assert_eq!(holder["label"], "the rival");
    let retry = error["retry_after_ms"].as_u64().expect("a number");
    assert!((1..=30_000).contains(&retry), "{retry}");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("report/42")), "{error}");
    assert!(rival.still_holds("report/42").await);
    rival.await_queue("report/42", 0).await;
}

/// The client renews by itself: three ttls later the same grant is held.
pub(super) async fn renewed_past_its_ttl(mut world: World) {
    let started = Instant::now();
    let answer = world.try_acquire("mine", "report/42", SHORT).await;
    let token = answer.ok()["token"].clone();
    until(started, SHORT * 3).await;
    world.check("mine").await.ok();
    let refused = world.rival().try_acquire("report/42").await.contended();
    assert_eq!(refused.body["holders"][0]["token"], token);
    assert!(world.driver.events("lost", "mine").is_empty());
}

/// A hundred leases are renewed by a few requests, not by a hundred each time.
pub(super) async fn many_are_renewed_together(mut world: World) {
    const LEASES: usize = 100;
    let ttl = SHORT;
    for number in 0..LEASES {
        world.try_acquire(&format!("l{number}"), &format!("batch/{number}"), ttl).await.ok();
    }
    let started = Instant::now();
    let rival = world.rival();
    // Those before were made while the leases were acquired, one after the other.
    let before = rival.requests("/v1/renew").await;
    until(started, ttl * 2).await;
    let renewals = rival.requests("/v1/renew").await - before;
    for number in [0, LEASES / 2, LEASES - 1] {
        world.check(&format!("l{number}")).await.ok();
    }
    // At least five times a lease, so five hundred if each had a request of its own.
    assert!((1..=LEASES as u64).contains(&renewals), "{renewals} requests to renew {LEASES} leases");
    let held = rival.get("/v1/resources?prefix=batch/&limit=1000").await;
    assert_eq!(held["resources"].as_array().map(Vec::len), Some(LEASES));
}

/// Several leases are acquired in the byte order of their keys, so that two programs cannot block each other.
pub(super) async fn several_at_once(mut world: World) {
    let resources = json!(["box/b", "box/a c", "box/B", "acme:box/z", "box/a"]);
    let command = json!({
        "do": "acquire_all", "client": "c", "lease": "all", "resources": resources, "ttl_ms": millis(SHORT), "wait_ms": 20_000,
    });
    let started = Instant::now();
    let answer = world.driver.ask(command).await;
    let order: Vec<&Value> =
        answer.ok()["leases"].as_array().expect("a list").iter().map(|lease| &lease["resource"]).collect();
    assert_eq!(order, ["acme:box/z", "box/B", "box/a", "box/a c", "box/b"]);
    let tokens: Vec<&str> = answer.ok()["leases"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|lease| lease["token"].as_str())
        .collect();
    assert_eq!(tokens.len(), 5, "each has a token");
    until(started, SHORT * 2).await;
    world.check("all").await.ok();
    let rival = world.rival();
    for resource in ["box/B", "box/b"] {
        rival.try_acquire(resource).await.contended();
    }
    world.release("all").await.ok();
    for resource in ["box/B", "box/b"] {
        rival.try_acquire(resource).await.granted();
    }
}

/// If one of several leases cannot be had, none of the others is kept.
pub(super) async fn several_or_none(mut world: World) {
    let rival = world.rival();
    rival.try_acquire("box/b").await.granted();
    let command = json!({
        "do": "acquire_all", "client": "c", "lease": "all", "resources": ["box/b", "box/a"], "ttl_ms": 30_000, "wait_ms": 500,
    });
    let answer = world.driver.ask(command).await;
    let kind = answer.kind().expect("it fails");
    assert!(["busy", "timed_out"].contains(&kind), "{kind}");
    assert_eq!(answer.error(kind)["holders"][0]["label"], "the rival");
    rival.await_holders("box/a", 0).await;
    rival.await_queue("box/b", 0).await;
}

/// The error of the program's own body is what the caller sees, and the lease is released.
pub(super) async fn an_error_of_the_body_comes_out(mut world: World) {
    let scope = with(with(acquire("s", "report/42", LONG, Duration::ZERO), "do", "scope"), "body", "raise");
    world.driver.ask(scope).await.error("body");
    world.rival().try_acquire("report/42").await.granted();
    let scope = with(with(acquire("t", "report/43", LONG, Duration::ZERO), "do", "scope"), "body", "return");
    world.driver.ask(scope).await.ok();
    world.rival().try_acquire("report/43").await.granted();
}

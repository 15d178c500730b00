//! `leasehold leaks`: leases and locks that will not be released.
#![allow(clippy::unwrap_used, reason = "tests")]

mod operator_support;

use std::{sync::Arc, time::Duration};

use leasehold::{
    BackendExt as _, Claim, Holder, OwnerToken, ReleaseRequest, RenewRequest, Renewal, Resource, Share,
};
use operator_support::TestStore;
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);

fn found(store: &TestStore, words: &[&str]) -> Vec<Value> {
    store.json(&[&["leaks"], words].concat())["findings"].as_array().unwrap().clone()
}

#[test]
fn a_holder_whose_process_is_gone_is_found() {
    let store = TestStore::new();
    let _lives = store.hold(&["--ttl", "30s", "report/lives"]);
    let mut killed = store.hold(&["--ttl", "30s", "report/dead", "--label", "nightly"]);
    assert_eq!(store.call(&["leaks"]).code, 0);
    killed.kill();
    let answer = store.call(&["leaks"]);
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.out.contains("report/dead") && answer.out.contains("its process is gone"), "{answer:?}");
    let found = found(&store, &[]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0]["leak"], &found[0]["name"]), (&json!("process_gone"), &json!("report/dead")));
    assert_eq!((&found[0]["token"], &found[0]["holder"]["label"]), (&json!(killed.token), &json!("nightly")));
    assert_eq!(store.call(&["leaks", "import"]).code, 0);
}

#[test]
fn a_holder_over_time_is_found() {
    let store = TestStore::new();
    store.dead_holder("report", "42", MINUTE, "nightly");
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(store.call(&["leaks"]).code, 0);
    let found = found(&store, &["--over", "100ms"]);
    assert_eq!((&found[0]["leak"], &found[0]["name"]), (&json!("over_time"), &json!("report/42")));
    assert!(found[0]["lasting_ms"].as_u64().unwrap() >= 100);
}

#[test]
fn a_pattern_needs_a_store_that_other_libraries_can_use() {
    let store = TestStore::new();
    store.call(&["leaks", "--pattern", "lock:*"]).fails(78, &["--pattern", "Redis"]);
    let error = store.json_error(&["leaks", "--pattern", "lock:*"]);
    assert_eq!(error["kind"], "unsupported");
}

/// A waiter that keeps its place in the queue and never asks: the waiters behind it are never granted.
#[test]
fn a_first_waiter_that_does_not_ask_is_found() {
    let store = TestStore::new();
    let resource: Resource = "report/42".parse().unwrap();
    let holder = Arc::new(Holder::new("elsewhere", 7, "stuck"));
    let claim = |byte| {
        let owner = OwnerToken::from_bytes([byte; 16]);
        Claim::new(resource.clone(), owner, Share::WHOLE, MINUTE, Arc::clone(&holder)).queued()
    };
    let (holds, waits) = (claim(1), claim(2));
    let found = store.with_client("", async |_| {
        let backend = leasehold::open(&store.url()).await.unwrap();
        backend.acquire_one(&holds).await.unwrap();
        backend.acquire_one(&waits).await.unwrap();
        backend.release_one(&ReleaseRequest::new(holds.reference())).await.unwrap();
        let (done, mut found) = tokio::sync::oneshot::channel();
        let mut command = store.command(&["leaks", "report/", "--json"]);
        std::thread::spawn(move || done.send(command.output().unwrap().stdout));
        loop {
            let held = [RenewRequest::new(waits.reference(), Claim::PLACE_TTL)];
            let kept = backend.renew(&held).await.remove(0);
            assert!(matches!(kept, Ok(Renewal::Queued { .. })), "{kept:?}");
            match tokio::time::timeout(Duration::from_millis(300), &mut found).await {
                Ok(found) => break serde_json::from_slice::<Value>(&found.unwrap()).unwrap(),
                Err(_) => continue,
            }
        }
    });
    let found = found["findings"].as_array().unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0]["leak"], &found[0]["holder"]["label"]), (&json!("dead_head"), &json!("stuck")));
}

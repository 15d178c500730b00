//! Tokens, names and operators.

use std::time::Duration;

use serde_json::json;

use super::LONG;
use crate::world::{World, acquire, with};

/// A wrong token, and no token, are refused as such, and not repeated until the time is over.
pub(super) async fn a_wrong_token_is_denied(mut world: World) {
    let wrong = "lh_0123456789abcdef_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    for (name, token) in [("wrong", Some(wrong)), ("none", None)] {
        world.connect(name, token).await;
        let command = with(acquire("l", "report/42", LONG, Duration::from_secs(60)), "client", name);
        world.driver.ask(command).await.error("denied");
    }
    world.try_acquire("mine", "report/42", LONG).await.ok();
    // A client gives no orders.
    let order = json!({"do": "order", "client": "c", "resource": "report/42", "action": "evict", "any": true, "why": "no"});
    world.driver.ask(order).await.error("denied");
}

/// A name that is none is refused before anything is sent, or by the server: as the caller's mistake.
pub(super) async fn a_wrong_name_is_invalid(mut world: World) {
    for name in ["report", "Report/1", "report/", "/1", "a b/1", "report/\u{7}"] {
        world.try_acquire("l", name, LONG).await.error("invalid");
    }
    for name in ["report/ü", "report/a/b c%20", "acme:report/1"] {
        world.try_acquire(name, name, LONG).await.ok();
    }
}

/// Operators list resources, see the overview, and give orders.
pub(super) async fn operators_list_and_order(mut world: World) {
    let operator = world.tokens().operator.clone();
    world.connect("ops", Some(&operator)).await;
    for id in ["b", "a", "c"] {
        world.try_acquire(id, &format!("job/{id}"), LONG).await.ok();
    }
    let names = world.driver.ask(json!({"do": "names", "client": "ops", "prefix": "job/"})).await;
    assert_eq!(names.ok()["names"], json!(["job/a", "job/b", "job/c"]));
    let overview = world.driver.ask(json!({"do": "overview", "client": "ops"})).await;
    assert_eq!((&overview.ok()["held"], &overview.ok()["waiting"]), (&json!(3), &json!(0)));

    let order = |more: &[(&str, serde_json::Value)]| {
        let command = json!({"do": "order", "client": "ops", "resource": "job/a", "why": "the story"});
        more.iter().fold(command, |command, (field, value)| with(command, field, value.clone()))
    };
    // An order to evict says which grant it means.
    world.driver.ask(order(&[("action", json!("evict-now"))])).await.error("invalid");
    world.driver.ask(order(&[("action", json!("evict-now")), ("any", json!(true))])).await.ok();
    world.rival().try_acquire("job/a").await.granted();
    world.driver.ask(order(&[("action", json!("pause")), ("lasting_ms", json!(60_000))])).await.ok();
    let seen = world.rival().look("job/a").await;
    assert!(seen["paused_for_ms"].is_u64(), "{seen}");
}

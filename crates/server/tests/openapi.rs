//! `/openapi.json`: it is current, and it has what the server serves, no less and no more.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use leasehold_api::{OPENAPI, ProblemKind, openapi};
use leasehold_server::Server;
use serde_json::{Value, json};
use support::{OTHER, OWNER, TestServer, waiting};

fn document() -> Value {
    serde_json::from_slice(OPENAPI).unwrap()
}

#[test]
fn the_file_is_what_the_types_say() {
    let file = std::str::from_utf8(OPENAPI).unwrap();
    assert!(file == openapi::text(), "crates/api/openapi.json is old: run `cargo xtask openapi`");
}

/// The methods of each path, with those that OpenAPI 3.1 cannot express.
fn described() -> BTreeMap<String, BTreeSet<String>> {
    let document = document();
    let methods = |item: &Value| {
        let item = item.as_object().unwrap();
        let own = item.keys().filter(|key| !key.starts_with("x-")).map(|key| key.to_uppercase());
        let other = item.get("x-additional-operations").and_then(Value::as_object);
        own.chain(other.into_iter().flat_map(|other| other.keys().cloned())).collect()
    };
    document["paths"].as_object().unwrap().iter().map(|(path, item)| (path.clone(), methods(item))).collect()
}

#[test]
fn every_route_and_method_is_described_and_nothing_else() {
    let served: BTreeMap<String, BTreeSet<String>> = Server::routes()
        .into_iter()
        .map(|route| (route.path.to_owned(), route.methods.into_iter().map(str::to_owned).collect()))
        .collect();
    assert_eq!(described(), served, "describe each route in crates/api/src/openapi/operations.rs");
}

#[test]
fn roles_and_security_are_those_of_the_router() {
    let document = document();
    for route in Server::routes() {
        let item = document["paths"][route.path].as_object().unwrap();
        for (method, operation) in item.iter().filter(|(key, _)| !key.starts_with("x-")) {
            let role = route.role.map_or(Value::Null, |role| json!(role.as_str()));
            assert_eq!(operation["x-role"], role, "{method} {}", route.path);
            let is_open = operation["security"].as_array().unwrap().is_empty();
            assert_eq!(is_open, route.role.is_none(), "{method} {}", route.path);
        }
    }
}

#[test]
fn every_kind_of_problem_is_described_and_nothing_else() {
    let document = document();
    let known: BTreeSet<&str> = ProblemKind::ALL.iter().map(|kind| kind.as_str()).collect();
    let all = document["components"]["schemas"]["Problem"]["properties"]["kind"]["enum"].as_array().unwrap();
    assert_eq!(all.iter().map(|kind| kind.as_str().unwrap()).collect::<BTreeSet<_>>(), known);
    let mut answered = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            for (status, response) in operation["responses"].as_object().into_iter().flatten() {
                let schema = &response["content"]["application/problem+json"]["schema"];
                for kind in schema["properties"]["kind"]["enum"].as_array().into_iter().flatten() {
                    let kind = ProblemKind::named(kind.as_str().unwrap()).unwrap();
                    assert_eq!(kind.status().to_string(), *status, "{path}");
                    answered.insert(kind.as_str());
                }
            }
        }
    }
    // The first two are the answers to what is no operation; the last one is for fences, which the server is not.
    let elsewhere = BTreeSet::from(["not_found", "method_not_allowed", "stale_token"]);
    assert_eq!(known.difference(&answered).copied().collect::<BTreeSet<_>>(), elsewhere);
}

/// All references lead somewhere, and all schemas are used.
#[test]
fn references_lead_somewhere() {
    fn collect(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| collect(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let (document, mut found) = (document(), BTreeSet::new());
    collect(&document, &mut found);
    for reference in &found {
        assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
    }
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        assert!(found.contains(&format!("#/components/schemas/{name}")), "{name} is not used");
    }
}

#[tokio::test]
async fn it_is_served_to_everyone_as_it_is() {
    let server = TestServer::start().await;
    let answer = server.get("/openapi.json").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    assert_eq!(answer.text.as_bytes(), OPENAPI);
    // A route that is there, with a method that it does not take.
    for (path, allow) in [
        ("/openapi.json", "GET, HEAD"),
        ("/healthz", "GET, HEAD"),
        ("/v1/info", "GET"),
        ("/v1/resources", "GET"),
    ] {
        let refused = server.post(path, json!({})).await;
        assert_eq!(refused.problem(), (405, "method_not_allowed"), "{path}");
        assert_eq!(refused.header("allow"), allow, "{path}");
    }
    assert_eq!(server.get("/v1/acquire").await.header("allow"), "POST");
    assert_eq!(server.get("/v1/terraform").await.header("allow"), "POST, DELETE, LOCK, UNLOCK");
}

/// The examples of the document are requests that the server understands.
#[tokio::test]
async fn the_examples_are_valid_requests() {
    let server = TestServer::start().await;
    let document = document();
    // This server has no tokens to log in with.
    let paths = document["paths"].as_object().unwrap().iter().filter(|(path, _)| *path != "/v1/login");
    for (path, item) in paths {
        let body = &item["post"]["requestBody"]["content"]["application/json"]["examples"];
        for (name, example) in body.as_object().into_iter().flatten() {
            let mut body = example["value"].clone();
            if !body["wait_ms"].is_null() {
                body["wait_ms"] = json!(1);
            }
            let path = if path == "/v1/terraform" { "/v1/terraform?resource=tf/prod" } else { path.as_str() };
            let answer = server.post(path, body).await;
            let documented = item["post"]["responses"][answer.status.to_string()].is_object();
            assert!(documented && ![400, 415, 422].contains(&answer.status), "{path} {name}: {answer:?}");
        }
    }
}

/// A body that is an array, and a part of one: the types would take it, with the fields in their order.
#[tokio::test]
async fn arrays_are_not_objects() {
    let server = TestServer::start().await;
    let claim = json!(["report/1", null, OWNER, 30000]);
    for (path, body) in [
        ("/v1/renew", claim.clone()),
        ("/v1/renew", json!({"leases": [claim]})),
        ("/v1/release", json!(["report/1", null, OWNER])),
        ("/v1/acquire", json!({"resource": "report/1", "owner": OWNER, "ttl_ms": 1, "share": [1, 5]})),
        ("/v1/acquire", json!({"resource": "report/1", "owner": OWNER, "ttl_ms": 1, "succeeds": [OTHER]})),
        ("/v1/wait", json!({"claims": [["report/1", null, OWNER, ""]], "wait_ms": 0})),
        ("/v1/wait", json!([[], 0])),
        ("/v1/terraform?resource=tf/1", json!(["id", "", "", "", "", null, ""])),
    ] {
        let refused = server.post(path, body.clone()).await;
        assert_eq!(refused.problem(), (422, "invalid"), "{path} {body}");
    }
    assert_eq!(server.post("/v1/acquire", waiting("report/1", OWNER, 0)).await.status, 200);
}

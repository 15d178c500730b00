//! Locks of Terraform and OpenTofu, with the requests that their `http` backend sends.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http_body_util::Full;
use hyper::Request;
use leasehold::{Memory, System};
use leasehold_server::{Access, NewToken, TokenFile};
use serde_json::{Value, json};
use support::{Answer, OWNER, TestServer, config};

const PROD: &str = "/v1/terraform?resource=tf/prod";
const ID: &str = "4a2b6f0e-93f4-9b7c-0d0e-6f6a3a1f9c11";
const OTHER_ID: &str = "9d1e7c52-0000-4a6b-8d0e-1f6a3a1f9c22";

/// What Terraform sends.
fn info(id: &str) -> Value {
    json!({
        "ID": id, "Operation": "OperationTypeApply", "Info": "", "Who": "ada@build-7", "Version": "1.9.8",
        "Created": "2026-11-18T02:00:00.123456789Z", "Path": "",
    })
}

async fn send(server: &TestServer, method: &str, path: &str, body: impl ToString) -> Answer {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    server.connect().await.send(request.body(Full::from(body.to_string())).unwrap()).await.unwrap()
}

#[tokio::test]
async fn a_state_is_locked_and_unlocked() {
    let server = TestServer::start().await;
    for (lock, unlock, id) in [("LOCK", "UNLOCK", ID), ("POST", "DELETE", OTHER_ID)] {
        let locked = send(&server, lock, PROD, info(id)).await;
        assert_eq!(locked.status, 200, "{locked:?}");
        let four_hours = 4 * 3_600_000;
        let remaining = locked.body["remaining_ms"].as_u64().unwrap();
        assert!(remaining <= four_hours && remaining > four_hours - 600_000);
        let again = send(&server, lock, PROD, info(id)).await;
        assert_eq!(
            (again.status, &again.body["token"]),
            (200, &locked.body["token"]),
            "sent again, it is the same"
        );

        let busy = send(&server, lock, PROD, info("another")).await;
        assert_eq!((busy.status, busy.header("content-type")), (423, "application/json"));
        assert_eq!(busy.body, info(id), "the whole body is the holder's LockInfo");
        assert!(busy.header("retry-after").parse::<u64>().unwrap() > 0);

        let seen = server.get("/v1/resource?name=tf/prod").await;
        let holder = &seen.body["holders"][0];
        assert_eq!(
            holder["holder"],
            json!({"host": "build-7", "pid": 0, "label": "terraform OperationTypeApply"})
        );
        assert_eq!(seen.body["queue_length"], json!(0));

        let unlocked = send(&server, unlock, PROD, info(id)).await;
        assert_eq!((unlocked.status, &unlocked.body["verdict"]), (200, &json!("released")));
        let unlocked = send(&server, unlock, PROD, info(id)).await;
        assert_eq!((unlocked.status, &unlocked.body["verdict"]), (200, &json!("already_gone")), "sent again");
    }
}

#[tokio::test]
async fn a_lock_that_arrives_after_its_unlock_is_refused() {
    let server = TestServer::start().await;
    assert_eq!(send(&server, "LOCK", PROD, info(ID)).await.status, 200);
    assert_eq!(send(&server, "UNLOCK", PROD, info(ID)).await.status, 200);
    let late = send(&server, "LOCK", PROD, info(ID)).await;
    assert_eq!((late.problem(), &late.body["why"]), ((410, "lost"), &json!("buried")));
    // An unlock may even come first.
    assert_eq!(send(&server, "UNLOCK", PROD, info("early")).await.status, 200);
    assert_eq!(send(&server, "LOCK", PROD, info("early")).await.problem(), (410, "lost"));
    assert_eq!(send(&server, "LOCK", PROD, info(OTHER_ID)).await.status, 200, "others may");
}

#[tokio::test]
async fn force_unlock_needs_the_id_and_nothing_else() {
    let server = TestServer::start().await;
    let token = send(&server, "LOCK", PROD, info(ID)).await.body["token"].as_str().unwrap().to_owned();
    let wrong = send(&server, "UNLOCK", PROD, json!({"ID": OTHER_ID})).await;
    assert_eq!(wrong.problem(), (410, "lost"));
    assert!(wrong.text.contains("0@build-7"), "{}", wrong.text);
    // Terraform's force-unlock sends an empty body, with and without a content type.
    let bare = Request::builder().method("UNLOCK").uri(PROD).body(Full::default()).unwrap();
    let bare = server.connect().await.send(bare).await.unwrap();
    for refused in [send(&server, "UNLOCK", PROD, "").await, bare, send(&server, "UNLOCK", PROD, "{}").await]
    {
        assert_eq!(refused.problem(), (428, "token_required"));
        let command = format!("leasehold evict 'tf/prod' --token {token} --now --two-may-run --reason WHY");
        assert!(refused.body["hint"].as_str().unwrap().contains(&command), "{}", refused.text);
    }
    assert_eq!(send(&server, "UNLOCK", PROD, json!({"ID": ID})).await.status, 200);
    assert_eq!(send(&server, "LOCK", PROD, info("the next one")).await.status, 200);
}

#[tokio::test]
async fn a_holder_that_is_not_terraform_is_described() {
    let server = TestServer::start().await;
    assert_eq!(server.acquire("tf/prod", OWNER).await.status, 200);
    let busy = send(&server, "LOCK", PROD, info(ID)).await;
    assert_eq!(busy.status, 423);
    assert_eq!((&busy.body["ID"], &busy.body["Path"]), (&json!(""), &json!("tf/prod")));
    assert!(busy.body["Info"].as_str().unwrap().contains("held by"), "{}", busy.text);
    assert!(busy.body["Created"].as_str().unwrap().ends_with('Z'), "a time that Terraform reads");
    assert!(!busy.text.contains(OWNER));
}

#[tokio::test]
async fn long_infos_are_cut_and_bad_ones_refused() {
    let server = TestServer::start().await;
    let with = |field: &str, value: Value| {
        let mut info = info(ID);
        info[field] = value;
        info
    };
    for (body, expected) in [
        ("{".to_owned(), (400, "malformed")),
        (String::new(), (400, "malformed")),
        ("[]".to_owned(), (422, "invalid")),
        ("{}".to_owned(), (422, "invalid")),
        (with("ID", json!("")).to_string(), (422, "invalid")),
        (with("ID", json!(7)).to_string(), (422, "invalid")),
        (with("ID", json!("x".repeat(257))).to_string(), (422, "invalid")),
        (with("Who", json!("x".repeat(10_000))).to_string(), (422, "limit")),
    ] {
        assert_eq!(send(&server, "LOCK", PROD, &body).await.problem(), expected, "{body:.80}");
    }
    for query in
        ["", "?resource=", "?resource=nothing", "?resource=tf/prod&ttl=1", "?resource=tf/prod&lock=1"]
    {
        let refused = send(&server, "LOCK", &format!("/v1/terraform{query}"), info(ID)).await;
        assert_eq!(refused.problem(), (422, "invalid"), "{query}");
    }
    // Every character takes more bytes as JSON than as text, or has several bytes.
    for (name, huge) in [("control", "\u{1}".repeat(300_000)), ("quote", "ä\"".repeat(100_000))] {
        let path = format!("/v1/terraform?resource=tf/{name}");
        assert_eq!(send(&server, "LOCK", &path, with("Info", json!(huge))).await.status, 200);
        let busy = send(&server, "LOCK", &path, info(OTHER_ID)).await;
        assert_eq!((busy.status, &busy.body["ID"]), (423, &json!(ID)));
        let kept = busy.body["Info"].as_str().unwrap();
        assert!(huge.starts_with(kept) && !kept.is_empty() && busy.text.len() <= 4096);
    }
    // A time that Terraform could not read would make it refuse the whole text.
    let path = "/v1/terraform?resource=tf/new&ttl=90s";
    assert_eq!(send(&server, "LOCK", path, with("Created", json!("yesterday"))).await.status, 200);
    assert!(send(&server, "LOCK", path, info(OTHER_ID)).await.body.get("Created").is_none());
}

#[tokio::test]
async fn the_token_is_the_password_and_its_caps_hold() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let new = NewToken::fresh(&System::current());
    let entry = format!(
        "[[token]]\nid = \"{}\"\nsha256 = \"{}\"\nsubject = \"ci\"\nroles = [\"client\"]\nkinds = [\"tf\"]\nttl_ms_max = 3600000\n",
        new.id, new.sha256
    );
    std::fs::write(&path, entry).unwrap();
    let mut config = config();
    config.access = Access::Tokens(TokenFile::open(&path, Arc::new(System::current())).unwrap());
    let server = TestServer::with(Arc::new(Memory::new()), config).await;
    let send = async |path: &str, header: Option<(&str, &str)>| {
        let basic = format!("Basic {}", STANDARD.encode(format!("terraform:{}", new.token)));
        let mut request =
            Request::builder().method("LOCK").uri(path).header("content-type", "application/json");
        request = request.header("authorization", basic);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let request = request.body(Full::from(info(ID).to_string())).unwrap();
        server.connect().await.send(request).await.unwrap()
    };
    // Four hours are above the cap of the token. They are not shortened: nobody would know.
    let long = send(PROD, None).await;
    assert_eq!(long.problem(), (422, "limit"));
    assert!(long.text.contains("4h") && long.text.contains("1h"), "{}", long.text);
    let path = format!("{PROD}&ttl=1h");
    assert_eq!(send(&path, None).await.status, 200);
    let mut seen = Request::builder().uri("/v1/resource?name=tf/prod");
    seen = seen.header("authorization", format!("Bearer {}", new.token));
    let seen = server.connect().await.send(seen.body(Full::default()).unwrap()).await.unwrap();
    assert_eq!(
        seen.body["holders"][0]["holder"]["subject"],
        json!("ci"),
        "the name in `Who` is only claimed: {seen:?}"
    );
    assert_eq!(send("/v1/terraform?resource=report/1&ttl=1h", None).await.problem(), (403, "denied"));
    let from_a_page = send(&path, Some(("sec-fetch-site", "cross-site"))).await;
    assert_eq!(from_a_page.problem(), (403, "denied"));
    let bare = server.post(&path, info(OTHER_ID)).await;
    assert_eq!(bare.problem(), (401, "unauthenticated"));
}

#[tokio::test]
async fn a_lock_ends_by_itself() {
    let server = TestServer::start().await;
    let path = format!("{PROD}&ttl=300ms");
    assert_eq!(send(&server, "LOCK", &path, info(ID)).await.status, 200);
    let free = async {
        while send(&server, "LOCK", PROD, info(OTHER_ID)).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(support::PATIENCE, free).await.expect("the lock ends");
    let unlock = send(&server, "UNLOCK", &path, info(ID)).await;
    assert_eq!(unlock.problem(), (410, "lost"), "two may have changed the state: Terraform must say so");
    let info = server.get("/v1/resource?name=tf/prod").await;
    assert_eq!(info.body["holder_count"], json!(1), "the other lock stays");
}

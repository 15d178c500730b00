//! `/v1/login` and `/v1/logout`: a browser keeps a person's token as a cookie.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{fs, sync::Arc};

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use leasehold::{Memory, System};
use leasehold_server::{Access, NewToken, TokenFile};
use serde_json::{Value, json};
use support::{Answer, TestServer, config, post};

struct Guarded {
    server: TestServer,
    operator: String,
    viewer: String,
    _directory: tempfile::TempDir,
}

async fn start() -> Guarded {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let [operator, viewer] = [NewToken::fresh(&System::current()), NewToken::fresh(&System::current())];
    let entry = |token: &NewToken, role: &str| {
        let NewToken { id, sha256, .. } = token;
        format!(
            "[[token]]\nid = \"{id}\"\nsha256 = \"{sha256}\"\nsubject = \"{role}\"\nroles = [\"{role}\"]\n"
        )
    };
    fs::write(&path, entry(&operator, "operator") + &entry(&viewer, "viewer")).unwrap();
    let mut config = config();
    config.hosts = vec!["leases.example.org".to_owned()];
    config.access = Access::Tokens(TokenFile::open(&path, Arc::new(System::current())).unwrap());
    let server = TestServer::with(Arc::new(Memory::new()), config).await;
    Guarded { server, operator: operator.token, viewer: viewer.token, _directory: directory }
}

impl Guarded {
    async fn send(&self, mut request: Request<Full<Bytes>>, headers: &[(&'static str, &str)]) -> Answer {
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        self.server.connect().await.send(request).await.unwrap()
    }

    async fn log_in(&self, token: &str, headers: &[(&'static str, &str)]) -> Answer {
        self.send(post("/v1/login", &json!({"token": token})), headers).await
    }

    async fn info(&self, headers: &[(&'static str, &str)]) -> Answer {
        self.send(Request::builder().uri("/v1/info").body(Full::default()).unwrap(), headers).await
    }
}

/// What a browser sends back: the part of `Set-Cookie` before its attributes.
fn cookie(answer: &Answer) -> String {
    answer.header("set-cookie").split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_browser_logs_in_acts_and_logs_out() {
    let guarded = start().await;
    assert_eq!(guarded.info(&[]).await.problem(), (401, "unauthenticated"));
    let own = [("origin", "http://localhost"), ("sec-fetch-site", "same-origin")];
    let reply = guarded.log_in(&guarded.operator, &own).await;
    let caller =
        json!({"subject": "operator", "roles": ["viewer", "operator"], "namespaces": null, "kinds": null});
    assert_eq!((reply.status, &reply.body), (200, &json!({"caller": caller})));
    let attributes = reply.header("set-cookie");
    for part in ["leasehold=", "; Path=/", "; HttpOnly", "; SameSite=Strict"] {
        assert!(attributes.contains(part), "{attributes}");
    }
    let cookie = cookie(&reply);
    assert_eq!(guarded.info(&[("cookie", &cookie)]).await.body["caller"], caller);
    let order = json!({"resource": "report/1", "action": "pause", "lasting_ms": 60_000, "why": "disk"});
    let order = |headers: Vec<(&'static str, &'static str)>| {
        let (cookie, order) = (cookie.clone(), post("/v1/orders", &order));
        let guarded = &guarded;
        async move {
            let headers: Vec<_> = headers.into_iter().chain([("cookie", &*cookie.leak())]).collect();
            guarded.send(order, &headers).await
        }
    };
    assert_eq!(order(own.to_vec()).await.status, 200);
    assert_eq!(order(vec![("origin", "http://localhost:8080")]).await.problem(), (403, "denied"));
    assert_eq!(order(vec![("sec-fetch-site", "cross-site")]).await.problem(), (403, "denied"));
    let log_out = Request::post("/v1/logout").body(Full::default()).unwrap();
    let gone = guarded.send(log_out, &own).await;
    assert_eq!((gone.status, gone.text.as_str(), gone.header("content-type")), (204, "", ""));
    assert!(
        gone.header("set-cookie").starts_with("leasehold=; ")
            && gone.header("set-cookie").contains("Max-Age=0")
    );
}

#[tokio::test]
async fn behind_https_only_the_cookie_that_no_other_host_can_plant_counts() {
    let guarded = start().await;
    let public = ("host", "leases.example.org");
    let reply = guarded.log_in(&guarded.viewer, &[public]).await;
    let text = reply.header("set-cookie");
    assert!(text.starts_with("__Host-leasehold=lh_") && text.contains("; Secure"), "{text}");
    assert!(!text.contains("Domain"), "{text}");
    let (cookie, planted) = (cookie(&reply), format!("leasehold={}", guarded.viewer));
    assert_eq!(guarded.info(&[public, ("cookie", &cookie)]).await.status, 200);
    assert_eq!(guarded.info(&[public, ("cookie", &planted)]).await.status, 401);
    assert_eq!(guarded.info(&[("cookie", &planted)]).await.status, 200, "on loopback");
}

#[tokio::test]
async fn a_header_wins_over_the_cookie_and_a_revoked_cookie_is_401() {
    let guarded = start().await;
    let cookie = format!("leasehold={}", guarded.operator);
    let bearer = format!("Bearer {}", guarded.viewer);
    let info = guarded.info(&[("cookie", &cookie), ("authorization", &bearer)]).await;
    assert_eq!(info.body["caller"]["subject"], json!("viewer"));
    let other_page = [("cookie", cookie.as_str()), ("sec-fetch-site", "cross-site")];
    assert_eq!(guarded.info(&other_page).await.problem(), (403, "denied"));
    for wrong in ["leasehold=", "leasehold=lh_0", "leasehold=lh_0a1b2c3d_x"] {
        assert_eq!(guarded.info(&[("cookie", wrong)]).await.problem(), (401, "unauthenticated"), "{wrong}");
    }
}

#[tokio::test]
async fn a_wrong_log_in_is_refused_and_not_repeated() {
    let guarded = start().await;
    let secret = &guarded.operator[..guarded.operator.len() - 1];
    let refused = guarded.log_in(secret, &[]).await;
    assert_eq!((refused.problem(), refused.header("set-cookie")), ((401, "unauthenticated"), ""));
    assert!(!refused.text.contains(secret));
    let huge = "x".repeat(100_000);
    assert_eq!(guarded.log_in(&huge, &[]).await.problem(), (401, "unauthenticated"));
    for body in
        [json!(secret), json!({"token": 1}), json!({}), json!({"token": secret, secret: 1}), json!([secret])]
    {
        let refused = guarded.send(post("/v1/login", &body), &[]).await;
        assert_eq!(refused.problem(), (422, "invalid"));
        assert!(!refused.text.contains(secret), "{}", refused.text);
    }
    for page in [
        ("origin", "https://evil.example"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        let refused = guarded.log_in(&guarded.operator, &[page]).await;
        assert_eq!((refused.problem(), refused.header("set-cookie")), ((403, "denied"), ""), "{page:?}");
    }
}

#[tokio::test]
async fn a_server_without_tokens_has_nothing_to_log_in_with() {
    let server = TestServer::start().await;
    let refused = server.post("/v1/login", json!({"token": "lh_0a1b2c3d_0"})).await;
    assert_eq!(refused.problem(), (422, "invalid"));
    assert_eq!(server.post("/v1/logout", Value::Object(serde_json::Map::new())).await.status, 204);
    assert_eq!(server.post("/v1/logout", json!({"token": "x"})).await.problem(), (422, "invalid"));
    assert_eq!(server.get("/v1/info").await.status, 200);
}

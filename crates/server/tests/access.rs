//! Tokens: who may do what, where.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{fmt::Write as _, fs, path::PathBuf, sync::Arc};

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use leasehold::{Memory, System};
use leasehold_server::{Access, NewToken, TokenFile};
use serde_json::{Value, json};
use support::{Answer, Connection, OTHER, OWNER, PATIENCE, TestServer, config, post, waiting};

/// A tokens file, a server that uses it, and the tokens by name.
struct Guarded {
    server: TestServer,
    path: PathBuf,
    text: String,
    _directory: tempfile::TempDir,
}

impl Guarded {
    /// Adds a token to the text of the file.
    fn entry(text: &mut String, lines: &str) -> String {
        let new = NewToken::fresh(&System::current());
        writeln!(text, "[[token]]\nid = \"{}\"\nsha256 = \"{}\"\n{lines}", new.id, new.sha256).unwrap();
        new.token
    }

    async fn start(text: String) -> Guarded {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        fs::write(&path, &text).unwrap();
        let mut config = config();
        config.access = Access::Tokens(TokenFile::open(&path, Arc::new(System::current())).unwrap());
        let server = TestServer::with(Arc::new(Memory::new()), config).await;
        Guarded { server, path, text, _directory: directory }
    }

    /// Replaces the file by renaming, as `leasehold token` does.
    fn replace(&self, text: &str) {
        let next = self.path.with_extension("next");
        fs::write(&next, text).unwrap();
        fs::rename(next, &self.path).unwrap();
    }

    async fn send(&self, token: &str, mut request: Request<Full<Bytes>>) -> Answer {
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        self.server.connect().await.send(request).await.unwrap()
    }

    async fn post(&self, token: &str, path: &str, body: &Value) -> Answer {
        self.send(token, post(path, body)).await
    }

    async fn get(&self, token: &str, path: &str) -> Answer {
        self.send(token, Request::builder().uri(path).body(Full::default()).unwrap()).await
    }
}

fn lease(resource: &str, owner: &str) -> Value {
    json!({"resource": resource, "owner": owner, "ttl_ms": 30000})
}

#[tokio::test]
async fn a_caller_is_told_what_it_may_do_and_is_named_in_the_audit_trail() {
    let mut text = String::new();
    let role = |text: &mut String, name: &str| {
        let lines = format!(
            "subject = \"{name}\"\nroles = [\"{name}\"]\nnamespaces = [\"acme\"]\nkinds = [\"report\"]"
        );
        Guarded::entry(text, &lines)
    };
    let (viewer, client, operator) =
        (role(&mut text, "viewer"), role(&mut text, "client"), role(&mut text, "operator"));
    let guarded = Guarded::start(text).await;
    let info = guarded.get(&client, "/v1/info").await;
    let expected = json!({"subject": "client", "roles": ["viewer", "client"], "namespaces": ["acme"], "kinds": ["report"]});
    assert_eq!(info.body["caller"], expected);
    // In a list, each entry has its own answer.
    let list = json!({"claims": [lease("acme:report/2", OWNER), lease("other:report/2", OWNER)]});
    let answer = guarded.post(&client, "/v1/acquire", &list).await;
    assert_eq!(
        (&answer.body["claims"][0]["status"], &answer.body["claims"][1]["status"]),
        (&json!(200), &json!(403))
    );
    // The subject is in the audit trail, whatever the body says.
    let order =
        json!({"resource": "acme:report/1", "action": "resume", "why": "over", "by": "somebody else"});
    assert_eq!(guarded.post(&operator, "/v1/orders", &order).await.status, 200);
    let audit = guarded.get(&viewer, "/v1/audit").await;
    assert_eq!(audit.body["records"][0]["by"], json!("operator"));
}

#[tokio::test]
async fn wrong_tokens_are_401_and_are_not_repeated() {
    let mut text = String::new();
    let good = Guarded::entry(&mut text, "subject = \"a\"\nroles = [\"client\"]");
    let expired = Guarded::entry(
        &mut text,
        "subject = \"b\"\nroles = [\"client\"]\nexpires = \"2020-01-01T00:00:00Z\"",
    );
    let guarded = Guarded::start(text).await;
    assert_eq!(guarded.get(&good, "/v1/info").await.status, 200);
    let huge = "x".repeat(10_000);
    for wrong in
        [expired.as_str(), &good[..good.len() - 1], &good[..20], "lh_00000000_", "", "nonsense", &huge]
    {
        let refused = guarded.get(wrong, "/v1/info").await;
        assert_eq!(refused.problem(), (401, "unauthenticated"), "{wrong:.30}");
        assert!(wrong.is_empty() || !refused.text.contains(wrong));
    }
    assert_eq!(guarded.server.get("/v1/info").await.problem(), (401, "unauthenticated"));
    assert_eq!(
        guarded.server.get("/v1/info").await.header("www-authenticate"),
        "",
        "browsers must not ask for a password"
    );
    assert_eq!(guarded.server.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn basic_has_the_token_as_password_and_is_ambient() {
    let mut text = String::new();
    let token = Guarded::entry(&mut text, "subject = \"a\"\nroles = [\"client\"]");
    let guarded = Guarded::start(text).await;
    use base64::Engine as _;
    let basic = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("any:{token}")));
    let send = async |cross_site: bool| {
        let mut request = Request::builder().uri("/v1/info").header("authorization", &basic);
        if cross_site {
            request = request.header("sec-fetch-site", "cross-site");
        }
        guarded.server.connect().await.send(request.body(Full::default()).unwrap()).await.unwrap()
    };
    assert_eq!(send(false).await.status, 200);
    assert_eq!(send(true).await.problem(), (403, "denied"));
    // A bearer token is never sent by a browser on its own.
    let request = Request::builder().uri("/v1/info").header("sec-fetch-site", "cross-site");
    assert_eq!(guarded.send(&token, request.body(Full::default()).unwrap()).await.status, 200);
}

#[tokio::test]
async fn a_revoked_token_ends_its_long_polls_and_a_bad_file_changes_nothing() {
    let (mut text, mut kept) = (String::new(), String::new());
    let stays = Guarded::entry(&mut kept, "subject = \"b\"\nroles = [\"client\"]");
    text.push_str(&kept);
    let revoked = Guarded::entry(&mut text, "subject = \"a\"\nroles = [\"client\"]");
    let guarded = Guarded::start(text).await;
    assert_eq!(guarded.post(&stays, "/v1/acquire", &lease("report/1", OWNER)).await.status, 200);
    let mut connection = Connection::http1(guarded.server.address).await;
    let mut request = post("/v1/acquire", &waiting("report/1", OTHER, 60_000));
    request.headers_mut().insert("authorization", format!("Bearer {revoked}").parse().unwrap());
    let poll = tokio::spawn(async move { connection.send(request).await.unwrap() });
    guarded.until_queued(&stays).await;

    guarded.replace(&format!("{}\nthis is no toml", guarded.text));
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(guarded.get(&revoked, "/v1/info").await.status, 200, "the tokens from before stay in force");

    guarded.replace(&kept);
    let ended = tokio::time::timeout(PATIENCE, poll).await.expect("the poll ends").unwrap();
    assert_eq!(ended.problem(), (401, "unauthenticated"));
    assert_eq!(guarded.get(&revoked, "/v1/info").await.problem(), (401, "unauthenticated"));
    assert_eq!(guarded.get(&stays, "/v1/info").await.status, 200);
}

impl Guarded {
    async fn until_queued(&self, token: &str) {
        let queued = async {
            while self.get(token, "/v1/resource?name=report/1").await.body["queue_length"] != json!(1) {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, queued).await.unwrap();
    }
}

#[tokio::test]
async fn caps_on_ttl_waiters_and_rate() {
    let mut text = String::new();
    let token = Guarded::entry(
        &mut text,
        "subject = \"a\"\nroles = [\"client\"]\nttl_ms_max = 5000\nwaiters_max = 0",
    );
    let slow = Guarded::entry(&mut text, "subject = \"b\"\nroles = [\"client\"]\nrequests_per_second = 2");
    let guarded = Guarded::start(text).await;
    let granted = guarded.post(&token, "/v1/acquire", &lease("report/1", OWNER)).await;
    assert_eq!((granted.status, &granted.body["ttl_ms"]), (200, &json!(5000)));
    let kept = guarded.post(&token, "/v1/renew", &lease("report/1", OWNER)).await;
    assert_eq!((kept.status, &kept.body["ttl_ms"]), (200, &json!(5000)));
    let wait = guarded.post(&token, "/v1/acquire", &waiting("report/1", OTHER, 1000)).await;
    assert_eq!(wait.problem(), (429, "throttled"));
    let release = json!({"resource": "report/1", "owner": OWNER, "keep_for_ms": 5001});
    assert_eq!(guarded.post(&token, "/v1/release", &release).await.problem(), (422, "invalid"));

    let mut statuses = Vec::new();
    for _ in 0..30 {
        statuses.push(guarded.get(&slow, "/v1/info").await.status);
    }
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
    // Renewals have a budget of their own.
    assert_eq!(guarded.post(&slow, "/v1/renew", &lease("report/9", OWNER)).await.status, 410);
    assert_eq!(guarded.get(&token, "/v1/info").await.status, 200, "others are not throttled");
}

#[tokio::test]
async fn pages_and_cursors_show_only_what_the_caller_may_see() {
    let mut text = String::new();
    let all = Guarded::entry(&mut text, "subject = \"all\"\nroles = [\"client\", \"operator\"]");
    let acme =
        Guarded::entry(&mut text, "subject = \"acme\"\nroles = [\"viewer\"]\nnamespaces = [\"acme\", \"-\"]");
    let guarded = Guarded::start(text).await;
    let names = ["acme:a/1", "acme:b/1", "other:a/1", "other:a/2", "other:a/3", "plain/1", "zebra:a/1"];
    for name in names {
        assert_eq!(guarded.post(&all, "/v1/acquire", &lease(name, OWNER)).await.status, 200);
        let order = json!({"resource": name, "action": "pause", "lasting_ms": 60000, "why": "test"});
        assert_eq!(guarded.post(&all, "/v1/orders", &order).await.status, 200);
    }
    // More than a hundred pages of one resource each, before those that the caller may see.
    for number in 0..150 {
        let name = format!("aardvark:a/{number}");
        assert_eq!(guarded.post(&all, "/v1/acquire", &lease(&name, OWNER)).await.status, 200);
    }
    let (mut seen, mut after) = (Vec::new(), String::new());
    for _ in 0..10 {
        let page = guarded.get(&acme, &format!("/v1/resources?limit=1{after}")).await;
        assert!(!page.text.contains("other:") && !page.text.contains("zebra:"), "{}", page.text);
        seen.extend(
            page.body["resources"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["key"].as_str().unwrap().to_owned()),
        );
        match page.body["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ["acme:a/1", "acme:b/1", "plain/1"]);
    // A forged cursor and a foreign prefix show nothing more.
    for path in ["/v1/resources?after=other:a/1", "/v1/resources?prefix=other:", "/v1/audit?prefix=other:"] {
        let page = guarded.get(&acme, path).await;
        assert_eq!(page.status, 200);
        assert!(!page.text.contains("other:") && !page.text.contains("zebra:"), "{path}: {}", page.text);
    }
    let (mut audited, mut after) = (0, String::new());
    for _ in 0..20 {
        let page = guarded.get(&acme, &format!("/v1/audit?limit=1{after}")).await;
        assert!(!page.text.contains("other:") && !page.text.contains("zebra:"), "{}", page.text);
        audited += page.body["records"].as_array().unwrap().len();
        match page.body["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(audited, 3);
    assert_eq!(
        guarded.get(&acme, "/v1/audit?key=acme:a/1").await.body["records"].as_array().unwrap().len(),
        1
    );
    assert_eq!(guarded.get(&acme, "/v1/audit?key=other:a/1").await.problem().0, 403);
    let everything = guarded.get(&all, "/v1/resources").await;
    assert_eq!(everything.body["resources"].as_array().unwrap().len(), names.len() + 150);
    assert_eq!(guarded.get(&all, "/v1/leaks").await.status, 200);
}

#[tokio::test]
async fn the_subject_of_the_token_is_shown_beside_what_the_caller_says() {
    let mut text = String::new();
    let token = Guarded::entry(&mut text, "subject = \"ci\"\nroles = [\"client\"]");
    let guarded = Guarded::start(text).await;
    let mut claim = lease("report/1", OWNER);
    claim["host"] = json!("web-1~admin");
    claim["pid"] = json!(7);
    claim["label"] = json!("nightly");
    assert_eq!(guarded.post(&token, "/v1/acquire", &claim).await.status, 200);
    let seen = guarded.get(&token, "/v1/resource?name=report/1").await;
    let holder = json!({"host": "web-1-admin", "pid": 7, "label": "nightly", "subject": "ci"});
    assert_eq!(seen.body["holders"][0]["holder"], holder, "{seen:?}");
    // A caller cannot choose its subject.
    claim["subject"] = json!("admin");
    assert_eq!(guarded.post(&token, "/v1/acquire", &claim).await.problem(), (422, "invalid"));
}

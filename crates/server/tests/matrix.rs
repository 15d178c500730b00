//! Every role on every route, with resources of its own and of others; and on every route callers, hosts and pages that are refused.
//!
//! The routes come from the router. One that has no line in `form` fails here.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use leasehold::{Memory, System};
use leasehold_server::{Access, NewToken, Role, RouteInfo, Server, TokenFile};
use serde_json::{Value, json};
use support::{Answer, OWNER, PATIENCE, TestServer, config};

const OWN: &str = "acme:report/1";
const FOREIGN: [&str; 4] = ["report/1", "other:report/1", "acme:order/1", "acme2:report/1"];

/// How a request of a route is about resources.
enum Form {
    /// It names one.
    One(Request<Full<Bytes>>),
    /// It lists those that the caller may see.
    List(Request<Full<Bytes>>),
    /// It shows nothing of resources.
    None(Request<Full<Bytes>>),
    /// It shows everything, so it is only for callers that may see everything.
    Everything(Request<Full<Bytes>>),
}

/// The request of a route, about this resource.
fn form(method: &str, path: &str, resource: &str) -> Form {
    let request = |body: Value| {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        request.body(Full::from(body.to_string())).unwrap()
    };
    let query = |query: String, body: Value| {
        let request = Request::builder().method(method).uri(format!("{path}?{query}"));
        request.header("content-type", "application/json").body(Full::from(body.to_string())).unwrap()
    };
    let claim = json!({"resource": resource, "owner": OWNER, "ttl_ms": 30000});
    match path {
        "/v1/acquire" | "/v1/renew" => Form::One(request(claim)),
        "/v1/release" => Form::One(request(json!({"resource": resource, "owner": OWNER}))),
        "/v1/wait" => {
            let claims = json!([{"resource": resource, "owner": OWNER, "cursor": ""}]);
            Form::One(request(json!({"claims": claims, "wait_ms": 0})))
        }
        "/v1/resource" | "/v1/timeline" => Form::One(query(format!("name={resource}"), Value::Null)),
        "/v1/orders" => {
            let order = json!({"resource": resource, "action": "pause", "lasting_ms": 1, "why": "test"});
            Form::One(request(order))
        }
        "/v1/terraform" => Form::One(query(format!("resource={resource}"), json!({"ID": "an-id"}))),
        "/v1/resources" | "/v1/audit" | "/v1/overview" => Form::List(request(Value::Null)),
        "/v1/leaks" => Form::Everything(request(Value::Null)),
        // `events.rs` reads the stream; `incidents.rs`, `jobs.rs` and `store.rs` look for what the others show.
        "/v1/events" | "/v1/deadlocks" | "/v1/jobs" | "/v1/store" | "/v1/info" | "/metrics" | "/healthz"
        | "/readyz" | "/openapi.json" => Form::None(request(Value::Null)),
        "/v1/login" | "/v1/logout" => Form::None(request(json!({"token": "lh_00000000_0"}))),
        other => panic!("{method} {other} has no line in this test: say how it is about resources"),
    }
}

fn request(method: &str, path: &str, resource: &str) -> Request<Full<Bytes>> {
    match form(method, path, resource) {
        Form::One(request) | Form::List(request) | Form::None(request) | Form::Everything(request) => request,
    }
}

fn routes() -> Vec<(RouteInfo, &'static str)> {
    let methods =
        |route: RouteInfo| route.methods.clone().into_iter().map(move |method| (route.clone(), method));
    Server::routes().into_iter().flat_map(methods).collect()
}

/// Nobody has proved anything before a log-in, so no role is needed; but hosts and pages are checked. `login.rs` has the rest.
fn is_log_in(route: &RouteInfo) -> bool {
    matches!(route.path, "/v1/login" | "/v1/logout")
}

/// A server with tokens, by name.
struct Guarded {
    server: TestServer,
    tokens: BTreeMap<String, String>,
    _directory: tempfile::TempDir,
}

impl Guarded {
    async fn start(entries: &[(&str, String)]) -> Guarded {
        let (mut text, mut tokens) = (String::new(), BTreeMap::new());
        for (name, lines) in entries {
            let new = NewToken::fresh(&System::current());
            let (id, sha256) = (&new.id, &new.sha256);
            writeln!(text, "[[token]]\nid = \"{id}\"\nsha256 = \"{sha256}\"\nsubject = \"{name}\"\n{lines}")
                .unwrap();
            tokens.insert((*name).to_owned(), new.token);
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        std::fs::write(&path, text).unwrap();
        let mut config = config();
        config.access = Access::Tokens(TokenFile::open(&path, Arc::new(System::current())).unwrap());
        let server = TestServer::with(Arc::new(Memory::new()), config).await;
        Guarded { server, tokens, _directory: directory }
    }

    /// The status of the answer, and the kind of its problem. The body of a reply is left unread.
    async fn ask(&self, authorization: Option<&str>, mut request: Request<Full<Bytes>>) -> (u16, String) {
        if let Some(value) = authorization {
            request.headers_mut().insert("authorization", value.parse().unwrap());
        }
        let response = self.server.connect().await.start(request).await.unwrap();
        if response.status().as_u16() < 400 {
            return (response.status().as_u16(), String::new());
        }
        let answer = Answer::of(response).await;
        (answer.status, answer.body["kind"].as_str().unwrap_or_default().to_owned())
    }

    fn bearer(&self, name: &str) -> String {
        format!("Bearer {}", self.tokens[name])
    }
}

fn role_lines(role: Role, scoped: bool) -> String {
    let scope = if scoped { "namespaces = [\"acme\"]\nkinds = [\"report\"]\n" } else { "" };
    format!("roles = [\"{}\"]\n{scope}", role.as_str())
}

fn includes(role: Role, needed: Option<Role>) -> bool {
    needed.is_none_or(|needed| needed == role || needed == Role::Viewer)
}

fn denied() -> (u16, String) {
    (403, "denied".to_owned())
}

#[tokio::test]
async fn every_role_on_every_route_with_its_own_and_foreign_resources() {
    for role in Role::ALL {
        let entries = [("scoped", role_lines(role, true)), ("all", role_lines(role, false))];
        let guarded = Guarded::start(&entries).await;
        let (scoped, all) = (guarded.bearer("scoped"), guarded.bearer("all"));
        for (route, method) in routes().into_iter().filter(|(route, _)| !is_log_in(route)) {
            let what = format!("{} {method} {}", role.as_str(), route.path);
            let allowed = includes(role, route.role);
            let own = guarded.ask(Some(&scoped), request(method, route.path, OWN)).await;
            match form(method, route.path, OWN) {
                Form::Everything(_) => assert_eq!(own, denied(), "{what}"),
                // 410: it renews what is not there.
                _ if allowed => assert!(own.0 < 300 || own.0 == 410, "{what}: {own:?}"),
                _ => assert_eq!(own, denied(), "{what}"),
            }
            for foreign in FOREIGN {
                let seen = guarded.ask(Some(&scoped), request(method, route.path, foreign)).await;
                if matches!(form(method, route.path, foreign), Form::One(_)) || !allowed {
                    assert_eq!(seen, denied(), "{what} {foreign}");
                }
                let seen = guarded.ask(Some(&all), request(method, route.path, foreign)).await;
                assert_eq!(seen == denied(), !allowed, "{what} {foreign}: {seen:?}");
            }
        }
    }
}

#[tokio::test]
async fn lists_show_nothing_foreign_to_any_role() {
    let mut entries = vec![("everything", "roles = [\"client\", \"operator\"]\n".to_owned())];
    entries.extend(Role::ALL.map(|role| (role.as_str(), role_lines(role, true))));
    let guarded = Guarded::start(&entries).await;
    let everything = guarded.bearer("everything");
    for resource in [OWN].iter().chain(&FOREIGN) {
        for path in ["/v1/acquire", "/v1/orders"] {
            let answer = guarded.ask(Some(&everything), request("POST", path, resource)).await;
            assert_eq!(answer.0, 200, "{path} {resource}");
        }
    }
    for (route, method) in routes() {
        let Form::List(request) = form(method, route.path, OWN) else { continue };
        for role in Role::ALL {
            let mut request = request.clone();
            request.headers_mut().insert("authorization", guarded.bearer(role.as_str()).parse().unwrap());
            // The overview is sampled: what was done just now comes a little later.
            let shown = async {
                loop {
                    let answer = guarded.server.connect().await.send(request.clone()).await.unwrap();
                    if answer.status != 200 || answer.text.contains(OWN) {
                        return answer;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            let answer =
                tokio::time::timeout(PATIENCE, shown).await.expect("what the caller may see is shown");
            let what = format!("{} {}: {}", role.as_str(), route.path, answer.text);
            assert_eq!(answer.status, 200, "{what}");
            let names = FOREIGN.map(|foreign| format!("\"{foreign}\""));
            assert!(!names.iter().any(|foreign| answer.text.contains(foreign)), "{what}");
        }
    }
}

#[tokio::test]
async fn wrong_credentials_are_401_on_every_route_that_is_not_open() {
    let entries = [
        ("good", "roles = [\"client\", \"operator\"]\n".to_owned()),
        ("expired", "roles = [\"client\", \"operator\"]\nexpires = \"2020-01-01T00:00:00Z\"\n".to_owned()),
    ];
    let guarded = Guarded::start(&entries).await;
    let good = &guarded.tokens["good"];
    let (shorter, longer) = (&good[..good.len() - 1], format!("{good}0"));
    let of_nobody = NewToken::fresh(&System::current()).token;
    // The id of one token, with the secret of another.
    let mixed = format!("{}{}", &good[..12], &of_nobody[12..]);
    let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
    let wrong = [
        guarded.bearer("expired"),
        format!("Bearer {shorter}"),
        format!("Bearer {longer}"),
        format!("Bearer {of_nobody}"),
        format!("Bearer {mixed}"),
        format!("Bearer {}", "x".repeat(30_000)),
        format!("Bearer {}", good.to_uppercase()),
        "Bearer".to_owned(),
        "Bearer ".to_owned(),
        good.clone(),
        format!("Digest {good}"),
        basic(good),
        basic(&format!("{good}:")),
        basic(&format!("any:{shorter}")),
        "Basic !!!".to_owned(),
    ];
    for (route, method) in routes().into_iter().filter(|(route, _)| !is_log_in(route)) {
        let what = format!("{method} {}", route.path);
        let send = async |authorization: Option<&str>| {
            guarded.ask(authorization, request(method, route.path, OWN)).await
        };
        if route.role.is_none() {
            assert_eq!(send(Some(&wrong[0])).await.0, 200, "{what}");
            continue;
        }
        for authorization in wrong.iter().map(|text| Some(text.as_str())).chain([None]) {
            let refused = send(authorization).await;
            assert_eq!(refused, (401, "unauthenticated".to_owned()), "{what} {authorization:.30?}");
        }
        assert_ne!(send(Some(&guarded.bearer("good"))).await.0, 401, "{what}");
    }
}

#[tokio::test]
async fn foreign_hosts_and_pages_are_refused_on_every_route_that_is_not_open() {
    let guarded = Guarded::start(&[("all", "roles = [\"client\", \"operator\"]\n".to_owned())]).await;
    let basic = format!("Basic {}", STANDARD.encode(format!("any:{}", guarded.tokens["all"])));
    for (route, method) in routes() {
        let what = format!("{method} {}", route.path);
        let send = async |name: &'static str, value: &'static str| {
            let mut request = request(method, route.path, OWN);
            request.headers_mut().insert(name, value.parse().unwrap());
            guarded.ask(Some(&basic), request).await
        };
        let is_open = route.role.is_none() && !is_log_in(&route);
        let forged = send("host", "evil.example:7420").await;
        assert_eq!(forged.0, if is_open { 200 } else { 421 }, "{what}");
        for (name, value) in [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "nonsense"),
            ("origin", "https://evil.example"),
            ("origin", "null"),
        ] {
            let refused = send(name, value).await;
            assert_eq!(refused.0, if is_open { 200 } else { 403 }, "{what} {name}: {value}");
        }
        assert!(![403, 421].contains(&send("sec-fetch-site", "none").await.0), "{what}");
    }
}

/// Only JSON is read: a page can send a form or plain text to another site without asking first.
#[tokio::test]
async fn only_json_is_read_on_every_route_with_a_body() {
    let server = TestServer::start().await;
    for (route, method) in routes() {
        if matches!(method, "GET" | "HEAD") {
            continue;
        }
        for content_type in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
            let mut request = request(method, route.path, OWN);
            request.headers_mut().insert("content-type", content_type.parse().unwrap());
            let refused = server.connect().await.send(request).await.unwrap();
            assert_eq!(refused.problem(), (415, "not_json"), "{method} {} {content_type}", route.path);
        }
    }
}

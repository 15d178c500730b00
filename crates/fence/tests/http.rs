//! The layer on an axum router, and the headers that a client sends.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Extension, Router, body::Body, routing};
use common::{pass, pass_for};
use http::{Request, Response, StatusCode};
use leasehold_core::{Error, ErrorKind, Pass, Resource, Result, async_trait};
use leasehold_fence::http::{FenceLayer, Marks, SqliteMarks, Verdict, percent_decode, show};
use rusqlite::Connection;
use tokio::sync::Notify;
use tower::ServiceExt as _;

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

type Names = fn(&http::request::Parts) -> Result<Option<Resource>>;

fn names(request: &http::request::Parts) -> Result<Option<Resource>> {
    let id = request.uri.path().strip_prefix("/reports/");
    id.map(|id| Resource::new("report", &percent_decode(id)?)).transpose()
}

/// A service that answers with the admitted pass.
fn app(marks: impl Marks) -> Router {
    let shown = async |pass: Option<Extension<Pass>>| {
        pass.map_or("no pass".to_owned(), |Extension(pass)| pass.to_string())
    };
    Router::new().fallback(routing::any(shown)).layer(FenceLayer::new(marks, names))
}

fn in_memory() -> Router {
    app(SqliteMarks::new(Connection::open_in_memory().unwrap()).unwrap())
}

fn put(path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let request =
        headers.iter().fold(Request::put(path), |request, (name, value)| request.header(*name, *value));
    request.body(Body::empty()).unwrap()
}

fn shown(method: &str, pass: &Pass) -> Request<Body> {
    let mut request = Request::builder().method(method).uri("/reports/42").body(Body::empty()).unwrap();
    show(request.headers_mut(), pass);
    request
}

async fn read_response(response: Response<Body>) -> (u16, String, String) {
    let kind = response.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
    let status = response.status().as_u16();
    let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
    (status, kind.unwrap_or_default(), String::from_utf8(body.to_vec()).unwrap())
}

async fn send(app: &Router, request: Request<Body>) -> (u16, String) {
    let (status, kind, body) = read_response(app.clone().oneshot(request).await.unwrap()).await;
    if status >= 400 {
        assert_eq!(kind, "application/problem+json", "{body}");
        let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(problem["status"], status);
        assert!(problem["type"].as_str().unwrap().starts_with("urn:leasehold:problem:"));
    }
    (status, body)
}

#[test]
fn a_stale_token_is_answered_with_412_and_both_numbers() {
    run(async {
        let app = in_memory();
        let (a, b) = (pass(33, 1), pass(34, 2));
        assert_eq!(send(&app, shown("PUT", &a)).await, (200, a.to_string()));
        assert_eq!(send(&app, shown("DELETE", &b)).await.0, 200);
        let (status, body) = send(&app, shown("PUT", &a)).await;
        let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(status, 412);
        assert_eq!((&problem["presented"], &problem["highest"]), (&"33".into(), &"34".into()), "{body}");
        assert!(problem["detail"].as_str().unwrap().contains("do not try again"), "{body}");
        assert_eq!(send(&app, shown("PUT", &b)).await.0, 200, "the same owner, again");
        assert_eq!(send(&app, shown("PUT", &pass(34, 3))).await.0, 412, "the same number, another owner");
        assert_eq!(send(&app, put("/elsewhere", &[])).await, (200, "no pass".into()), "not fenced");
    });
}

/// Headers, the expected status, and a word of the body.
type Case<'a> = (&'a [(&'a str, &'a str)], u16, &'a str);

#[test]
fn an_invalid_pass_is_refused_with_the_reason() {
    let hash = "0123456789abcdef0123456789abcdef";
    let cases: &[Case<'_>] = &[
        (&[], 428, "Fencing-Token"),
        (&[("Fencing-Owner", hash)], 428, "Fencing-Token"),
        (&[("Fencing-Token", "")], 400, "in digits"),
        (&[("Fencing-Token", "0")], 400, "in digits"),
        (&[("Fencing-Token", "034")], 400, "in digits"),
        (&[("Fencing-Token", "+34")], 400, "in digits"),
        (&[("Fencing-Token", "34, 35")], 400, "in digits"),
        (&[("Fencing-Token", "9007199254740992")], 400, "in digits"),
        (&[("Fencing-Token", "34"), ("Fencing-Token", "35")], 400, "more than once"),
        (&[("Fencing-Token", "34"), ("Fencing-Token", "34")], 400, "more than once"),
        (&[("Fencing-Token", "34"), ("Fencing-Owner", "me")], 400, "32 lower-case hex digits"),
        (&[("Fencing-Token", "34"), ("Fencing-Owner", hash), ("Fencing-Owner", hash)], 400, "more than once"),
        (&[("Fencing-Token", "34"), ("Fencing-Resource", "report/43")], 400, "another resource"),
        (&[("Fencing-Token", "34"), ("Fencing-Owner", "é")], 400, "visible ASCII"),
        (&[("Fencing-Token", "34"), ("Fencing-Resource", "report/42")], 200, "34 - report/42"),
    ];
    run(async {
        let app = in_memory();
        for (headers, status, why) in cases {
            let (answered, body) = send(&app, put("/reports/42", headers)).await;
            assert!(answered == *status && body.contains(why), "{headers:?}: {answered} {body}");
        }
        let (status, body) =
            send(&app, put(&format!("/reports/{}", "x".repeat(300)), &[("Fencing-Token", "1")])).await;
        assert!(status == 400 && body.contains("1 to 256"), "an invalid name is refused: {body}");
    });
}

#[test]
fn the_function_that_names_the_resource_decodes_the_path() {
    run(async {
        let app = in_memory();
        let token = |number| [("Fencing-Token", number)];
        assert_eq!(send(&app, put("/reports/42", &token("34"))).await.0, 200);
        assert_eq!(send(&app, put("/reports/%34%32", &token("33"))).await.0, 412, "the same report");
        let odd = pass_for("report/4 2/é", 34, 1);
        let mut request = put("/reports/4%202/%C3%A9", &[]);
        show(request.headers_mut(), &odd);
        assert_eq!(send(&app, request).await, (200, odd.to_string()), "as the client names it");
        let (status, body) = send(&app, put("/reports/4%2", &token("1"))).await;
        assert!(status == 400 && body.contains("hex digits"), "{body}");
    });
}

#[test]
fn a_read_needs_no_token_and_raises_the_mark_with_one() {
    run(async {
        let app = in_memory();
        let bare = Request::get("/reports/42").body(Body::empty()).unwrap();
        assert_eq!(send(&app, bare).await, (200, "no pass".into()));
        assert_eq!(send(&app, shown("GET", &pass(33, 1))).await.0, 200);
        assert_eq!(send(&app, shown("GET", &pass(34, 2))).await.0, 200);
        assert_eq!(send(&app, shown("PUT", &pass(33, 1))).await.0, 412, "34 has read: what 33 read is old");
        assert_eq!(send(&app, shown("GET", &pass(33, 1))).await.0, 412);
    });
}

#[test]
fn while_the_file_of_marks_is_locked_requests_are_refused_and_then_admitted() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Connection::open(folder.path().join("marks.db")).unwrap();
    let (marks, other) = (open(), open());
    marks.busy_timeout(Duration::from_millis(10)).unwrap();
    run(async {
        let app = app(SqliteMarks::new(marks).unwrap());
        assert_eq!(send(&app, shown("PUT", &pass(34, 1))).await.0, 200);
        other.execute_batch("BEGIN EXCLUSIVE").unwrap();
        assert_eq!(send(&app, shown("PUT", &pass(35, 1))).await.0, 503);
        other.execute_batch("ROLLBACK").unwrap();
        assert_eq!(send(&app, shown("PUT", &pass(36, 1))).await.0, 200);
        assert_eq!(send(&app, shown("PUT", &pass(34, 1))).await.0, 412);
    });
}

#[test]
fn marks_outlive_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let open = || app(SqliteMarks::new(Connection::open(folder.path().join("marks.db")).unwrap()).unwrap());
    run(async {
        assert_eq!(send(&open(), shown("PUT", &pass(34, 2))).await.0, 200);
        assert_eq!(send(&open(), shown("PUT", &pass(33, 1))).await.0, 412);
    });
}

#[derive(Clone)]
struct BrokenMarks(Arc<AtomicBool>);

#[async_trait]
impl Marks for BrokenMarks {
    async fn judge(&self, _: &Pass) -> Result<Verdict> {
        self.0.store(true, Ordering::Relaxed);
        Err(Error::new(ErrorKind::Unavailable, "cannot open /secret/place"))
    }
}

#[test]
fn a_fence_that_cannot_read_its_marks_refuses_requests() {
    run(async {
        let asked = Arc::new(AtomicBool::new(false));
        let app = app(BrokenMarks(Arc::clone(&asked)));
        let response = app.oneshot(shown("PUT", &pass(34, 2))).await.unwrap();
        assert!(asked.load(Ordering::Relaxed) && response.headers().contains_key("retry-after"));
        let (status, _, body) = read_response(response).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(!body.contains("secret"), "{body}");
    });
}

/// 33 is admitted and stalls in its handler, then 34 arrives. Returns the tokens in the order of their effects.
async fn order_of_effects(layer: FenceLayer<Names>) -> Vec<u64> {
    let (inside, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let written = Arc::new(std::sync::Mutex::new(Vec::new()));
    let handler = {
        let (inside, go_on, written) = (inside.clone(), go_on.clone(), written.clone());
        move |Extension(pass): Extension<Pass>| {
            let (inside, go_on, written) = (inside.clone(), go_on.clone(), written.clone());
            async move {
                if pass.token.get() == 33 {
                    inside.notify_one();
                    go_on.notified().await;
                }
                written.lock().unwrap().push(pass.token.get());
            }
        }
    };
    let app = Router::new().fallback(routing::any(handler)).layer(layer);
    let first = app.clone().oneshot(shown("PUT", &pass(33, 1)));
    let second = async {
        inside.notified().await;
        let mut second = Box::pin(app.clone().oneshot(shown("PUT", &pass(34, 2))));
        // 34 proceeds as far as it can while 33 stalls.
        let mut done = false;
        for _ in 0..200 {
            let poll = std::future::poll_fn(|context| {
                std::task::Poll::Ready(second.as_mut().poll(context).is_ready())
            });
            done = done || poll.await;
            tokio::task::yield_now().await;
        }
        go_on.notify_one();
        if !done {
            assert_eq!(second.await.unwrap().status(), 200);
        }
    };
    let (first, ()) = tokio::join!(first, second);
    assert_eq!(first.unwrap().status(), 200);
    written.lock().unwrap().clone()
}

/// Marks in memory, without any delay.
#[derive(Default)]
struct MarksInMemory(std::sync::Mutex<Option<leasehold_fence::rule::Mark>>);

#[async_trait]
impl Marks for MarksInMemory {
    async fn judge(&self, pass: &Pass) -> Result<Verdict> {
        let mut mark = self.0.lock().unwrap();
        let verdict = leasehold_fence::rule::judge(mark.as_ref(), pass);
        if verdict.is_ok() {
            *mark = Some(leasehold_fence::rule::Mark::raised(mark.as_ref(), pass));
        }
        Ok(verdict)
    }
}

#[test]
fn effects_happen_in_the_order_of_admission_unless_the_layer_is_concurrent() {
    run(async {
        let names: Names = names;
        assert_eq!(order_of_effects(FenceLayer::new(MarksInMemory::default(), names)).await, [33, 34]);
        // At the same time, the stale one takes effect last: then the database has to check as well.
        assert_eq!(
            order_of_effects(FenceLayer::new(MarksInMemory::default(), names).concurrent()).await,
            [34, 33]
        );
    });
}

#[test]
fn a_pass_is_sent_as_headers_and_replaces_an_earlier_one() {
    let mut headers = http::HeaderMap::new();
    show(&mut headers, &pass_for("acme:report/4 2 é", 34, 1));
    assert_eq!(headers["fencing-token"], "34");
    assert_eq!(headers["fencing-resource"], "acme:report/4%202%20%C3%A9");
    assert_eq!(headers["fencing-owner"].len(), 32);
    show(&mut headers, &pass(35, 0));
    assert_eq!((headers.len(), &headers["fencing-token"]), (2, &http::HeaderValue::from_static("35")));
}

//! Idempotency keys, on SQLite, PostgreSQL and Redis, and before the handlers of a service.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test is a program of its own")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{Router, body::Body, http::Request, routing::post};
use leasehold::ErrorKind;
use leasehold_fence::postgres::ConnectionManager;
use leasehold_patterns::idempotency::{
    Begun, Fingerprint, IdempotencyLayer, Keys, PostgresKeys, RedisKeys, Run, SqliteKeys, Terms,
};
use leasehold_testkit::servers::{PostgresServer, RedisServer};
use tokio::sync::Notify;
use tokio_postgres::NoTls;
use tower::ServiceExt as _;

const SHORT: Duration = Duration::from_millis(50);

/// The same test on every store.
async fn stores(test: impl AsyncFn(Arc<dyn Keys>)) {
    let directory = tempfile::tempdir().unwrap();
    test(Arc::new(sqlite(&directory).await)).await;
    let redis = RedisServer::start();
    test(Arc::new(in_redis(&redis).await)).await;
    let postgres = PostgresServer::start();
    test(Arc::new(in_postgres(&postgres).await)).await;
}

async fn sqlite(directory: &tempfile::TempDir) -> SqliteKeys {
    SqliteKeys::open(directory.path().join("keys.db")).await.unwrap()
}

async fn in_redis(server: &RedisServer) -> RedisKeys<redis::aio::MultiplexedConnection> {
    let client = redis::Client::open(server.url()).unwrap();
    RedisKeys::new(client.get_multiplexed_async_connection().await.unwrap())
}

async fn in_postgres(server: &PostgresServer) -> PostgresKeys {
    let keys = PostgresKeys::new(ConnectionManager::new(server.url().parse().unwrap(), NoTls));
    keys.create().await.unwrap();
    keys
}

fn payload(text: &str) -> Fingerprint {
    Fingerprint::of([text.as_bytes()])
}

fn run(begun: Begun) -> Run {
    if let Begun::Run(run) = begun { run } else { panic!("{begun:?}") }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_with_a_key_one_runs_and_all_get_its_answer() {
    stores(async |keys| {
        let terms = Terms::default();
        let first = run(keys.begin("k", &payload("pay 10"), &terms).await.unwrap());
        for _ in 0..3 {
            let begun = keys.begin("k", &payload("pay 10"), &terms).await.unwrap();
            assert!(
                matches!(begun, Begun::Running { again_in } if again_in > Duration::from_secs(30)),
                "{begun:?}"
            );
        }
        assert_eq!(keys.begin("k", &payload("pay 99"), &terms).await.unwrap(), Begun::OtherPayload);
        assert!(keys.finish(&first, b"paid", &terms).await.unwrap());
        assert!(!keys.finish(&first, b"twice", &terms).await.unwrap(), "an answer is given once");
        assert_eq!(keys.begin("k", &payload("pay 10"), &terms).await.unwrap(), Begun::Done(b"paid".to_vec()));
        assert_eq!(keys.begin("k", &payload("pay 99"), &terms).await.unwrap(), Begun::OtherPayload);
        run(keys.begin("another", &payload("pay 99"), &terms).await.unwrap());
    })
    .await;
}

/// The first one is not dead, only late: its answer comes after that of whoever took over.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_did_not_come_back_is_taken_over_and_its_late_answer_refused() {
    stores(async |keys| {
        let (short, terms) = (Terms::default().hold(SHORT), Terms::default());
        let late = run(keys.begin("k", &payload("pay 10"), &short).await.unwrap());
        tokio::time::sleep(4 * SHORT).await;
        assert_eq!(
            keys.begin("k", &payload("pay 99"), &terms).await.unwrap(),
            Begun::OtherPayload,
            "{keys:?}"
        );
        let next = run(keys.begin("k", &payload("pay 10"), &terms).await.unwrap());
        assert!(next.token > late.token);
        assert!(!keys.finish(&late, b"late", &terms).await.unwrap(), "{keys:?}");
        assert!(!keys.abandon(&late).await.unwrap());
        assert!(keys.finish(&next, b"in time", &terms).await.unwrap());
        assert_eq!(
            keys.begin("k", &payload("pay 10"), &terms).await.unwrap(),
            Begun::Done(b"in time".to_vec())
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_still_runs_can_say_so() {
    stores(async |keys| {
        let (moment, terms) = (Terms::default().hold(Duration::from_millis(1)), Terms::default());
        let slow = run(keys.begin("k", &payload("pay 10"), &moment).await.unwrap());
        assert!(keys.renew(&slow, &terms).await.unwrap(), "{keys:?}");
        assert!(keys.renew(&slow, &moment).await.unwrap(), "what was promised is not taken back");
        let begun = keys.begin("k", &payload("pay 10"), &terms).await.unwrap();
        assert!(
            matches!(begun, Begun::Running { again_in } if again_in > Duration::from_secs(30)),
            "{begun:?}"
        );
        assert!(keys.finish(&slow, b"paid", &terms).await.unwrap());
        assert!(!keys.renew(&slow, &terms).await.unwrap(), "it has ended");
        let given_up = run(keys.begin("another", &payload("pay 10"), &terms).await.unwrap());
        assert!(keys.abandon(&given_up).await.unwrap());
        let next = run(keys.begin("another", &payload("pay 10"), &terms).await.unwrap());
        assert!(!keys.renew(&given_up, &terms).await.unwrap(), "somebody else runs it now: {keys:?}");
        assert!(keys.renew(&next, &terms).await.unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_had_no_effect_is_given_up_and_what_is_old_forgotten() {
    stores(async |keys| {
        let terms = Terms::default();
        let first = run(keys.begin("k", &payload("pay 10"), &terms).await.unwrap());
        assert!(keys.abandon(&first).await.unwrap());
        let again = run(keys.begin("k", &payload("pay 11"), &terms).await.unwrap());
        assert!(again.token > first.token, "{keys:?}");
        assert!(keys.finish(&again, b"paid", &Terms::default().keep(SHORT)).await.unwrap());
        tokio::time::sleep(4 * SHORT).await;
        run(keys.begin("k", &payload("pay 12"), &terms).await.unwrap());
    })
    .await;
}

/// What is forgotten is gone, without anyone who cleans up.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_is_removed_by_what_is_new() {
    let directory = tempfile::tempdir().unwrap();
    let (redis, postgres) = (RedisServer::start(), PostgresServer::start());
    let stores: [Box<dyn Keys>; 3] = [
        Box::new(sqlite(&directory).await),
        Box::new(in_redis(&redis).await),
        Box::new(in_postgres(&postgres).await),
    ];
    let terms = Terms::default();
    for keys in &stores {
        for number in 0..20 {
            let old = run(keys.begin(&format!("old-{number}"), &payload("x"), &terms).await.unwrap());
            assert!(keys.finish(&old, b"done", &terms.keep(SHORT)).await.unwrap());
        }
        tokio::time::sleep(4 * SHORT).await;
        for number in 0..2 {
            let new = run(keys.begin(&format!("new-{number}"), &payload("x"), &terms).await.unwrap());
            assert!(keys.finish(&new, b"done", &terms).await.unwrap());
        }
    }
    let count = "SELECT count(*) FROM leasehold_keys";
    let file = rusqlite::Connection::open(directory.path().join("keys.db")).unwrap();
    assert_eq!(file.query_row(count, [], |row| row.get::<_, i64>(0)).unwrap(), 2);
    assert_eq!(redis.command(&["KEYS", "*old-*"]).trim(), "");
    let (client, connection) = tokio_postgres::connect(&postgres.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    assert_eq!(client.query_one(count, &[]).await.unwrap().get::<_, i64>(0), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_go_on_when_the_connection_or_the_database_was_lost() {
    let server = PostgresServer::start();
    let keys = in_postgres(&server).await;
    let terms = Terms::default();
    for (key, kill) in [("a", false), ("b", true)] {
        let begun = run(keys.begin(key, &payload("x"), &terms).await.unwrap());
        if kill {
            server.kill();
            assert_eq!(keys.renew(&begun, &terms).await.unwrap_err().kind(), ErrorKind::Unavailable);
            server.run_again();
        } else {
            let others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid()";
            server.sql(&format!("SELECT pg_terminate_backend(pid) {others}"));
        }
        let until = Instant::now() + Duration::from_secs(60);
        // That the connection is over is noticed by a statement, or shortly before.
        while let Err(error) = keys.renew(&begun, &terms).await {
            assert!(error.kind() == ErrorKind::Unavailable && Instant::now() < until, "{error}");
            tokio::time::sleep(SHORT).await;
        }
        assert!(keys.finish(&begun, b"done", &terms).await.unwrap(), "the run is still ours");
        assert!(matches!(keys.begin(key, &payload("x"), &terms).await.unwrap(), Begun::Done(_)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_gets_a_clear_error() {
    stores(async |keys| {
        let terms = Terms::default();
        for key in ["", "a\0b", &"x".repeat(1025)] {
            assert_eq!(keys.begin(key, &payload("x"), &terms).await.unwrap_err().kind(), ErrorKind::Invalid);
        }
        let first = run(keys.begin("it's {hostile} 日本", &payload("x"), &terms).await.unwrap());
        let large = vec![0; (1 << 20) + 1];
        assert_eq!(keys.finish(&first, &large, &terms).await.unwrap_err().kind(), ErrorKind::Limit);
        assert!(keys.finish(&first, &large[1..], &terms).await.unwrap(), "{keys:?}");
    })
    .await;
}

/// A service that counts, and waits if it is told to.
struct Shop {
    app: Router,
    served: Arc<AtomicUsize>,
    open: Arc<Notify>,
    begun: Arc<Notify>,
    _directory: Option<tempfile::TempDir>,
}

async fn shop(change: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer) -> Shop {
    let directory = tempfile::tempdir().unwrap();
    let keys = IdempotencyLayer::new(sqlite(&directory).await);
    Shop { _directory: Some(directory), ..behind(change(keys)) }
}

fn behind(layer: IdempotencyLayer) -> Shop {
    let (served, open, begun) =
        (Arc::<AtomicUsize>::default(), Arc::<Notify>::default(), Arc::<Notify>::default());
    let handler = {
        let (served, open, begun) = (served.clone(), open.clone(), begun.clone());
        async move |body: String| {
            let number = served.fetch_add(1, Ordering::SeqCst);
            if body == "slow" {
                begun.notify_one();
                open.notified().await;
            }
            let body = if body == "large" { "x".repeat(1 << 20) } else { body };
            let status = if body == "broken" { 500 } else { 201 };
            axum::http::Response::builder()
                .status(status)
                .header("location", format!("/payments/{number}"))
                .header("set-cookie", "session=secret")
                .body(Body::from(format!("{body} #{number}")))
                .unwrap()
        }
    };
    let app = Router::new()
        .route("/payments", post(handler.clone()).patch(handler.clone()).get(handler))
        .layer(layer);
    Shop { app, served, open, begun, _directory: None }
}

impl Shop {
    async fn ask(&self, method: &str, key: Option<&str>, body: &str) -> (u16, String, bool) {
        let mut request = Request::builder().method(method).uri("/payments");
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        let response =
            self.app.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
        let replayed = response.headers().contains_key("idempotency-replayed");
        assert_eq!(response.headers().contains_key("retry-after"), response.status() == 409);
        assert!(!replayed || !response.headers().contains_key("set-cookie"), "a cookie is for one client");
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap(), replayed)
    }

    fn served(&self) -> usize {
        self.served.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_is_answered_as_the_first_time() {
    let directory = tempfile::tempdir().unwrap();
    let (redis, postgres) = (RedisServer::start(), PostgresServer::start());
    let layers = [
        IdempotencyLayer::new(sqlite(&directory).await),
        IdempotencyLayer::new(in_redis(&redis).await),
        IdempotencyLayer::new(in_postgres(&postgres).await),
    ];
    for layer in layers {
        answers_as_the_first_time(&behind(layer)).await;
    }
}

async fn answers_as_the_first_time(shop: &Shop) {
    let first = shop.ask("POST", Some("\"k1\""), "pay 10").await;
    assert_eq!(first, (201, "pay 10 #0".to_owned(), false));
    for key in ["\"k1\"", "k1"] {
        assert_eq!(shop.ask("POST", Some(key), "pay 10").await, (201, "pay 10 #0".to_owned(), true));
    }
    assert_eq!(shop.ask("POST", Some("k1"), "pay 99").await.0, 422);
    assert_eq!(shop.ask("POST", Some("k2"), "pay 10").await.1, "pay 10 #1");
    assert_eq!(shop.ask("POST", None, "pay 10").await.1, "pay 10 #2", "without a key it is let through");
    assert_eq!(shop.ask("GET", Some("k1"), "").await.1, " #3", "a GET is idempotent by itself");
    assert_eq!(shop.ask("POST", Some("\"open"), "x").await.0, 400);
    assert_eq!(shop.ask("POST", Some("k3"), &"x".repeat((1 << 20) + 1)).await.0, 413);
    assert_eq!(shop.served(), 4);
}

/// What it did is done, though nobody can be told: it must not be done again when its time is over.
#[tokio::test]
async fn a_request_whose_answer_is_too_large_is_not_carried_out_again() {
    let shop = shop(|layer| layer.terms(Terms::default().hold(SHORT)).retry_failures()).await;
    let (status, said, _) = shop.ask("POST", Some("k"), "large").await;
    assert_eq!(status, 500);
    assert!(said.contains("cannot be stored"), "{said}");
    tokio::time::sleep(4 * SHORT).await;
    assert_eq!(shop.ask("POST", Some("k"), "large").await, (500, said, true));
    assert_eq!(shop.served(), 1);
}

#[tokio::test]
async fn while_the_first_runs_the_others_are_told_so() {
    let shop = Arc::new(shop(IdempotencyLayer::required).await);
    assert_eq!(shop.ask("POST", None, "pay").await.0, 400);
    let slow = tokio::spawn({
        let shop = Arc::clone(&shop);
        async move { shop.ask("POST", Some("k"), "slow").await }
    });
    shop.begun.notified().await;
    let (status, body, _) = shop.ask("POST", Some("k"), "slow").await;
    assert_eq!(status, 409);
    assert!(body.contains("still running"), "{body}");
    shop.open.notify_one();
    assert_eq!(slow.await.unwrap(), (201, "slow #0".to_owned(), false));
    assert_eq!(shop.ask("POST", Some("k"), "slow").await, (201, "slow #0".to_owned(), true));
}

/// Keys that tell when a request has said that it still runs.
#[derive(Debug)]
struct Telling(SqliteKeys, Arc<Notify>);

#[leasehold::async_trait]
impl Keys for Telling {
    async fn begin(&self, key: &str, payload: &Fingerprint, terms: &Terms) -> leasehold::Result<Begun> {
        self.0.begin(key, payload, terms).await
    }

    async fn renew(&self, run: &Run, terms: &Terms) -> leasehold::Result<bool> {
        let renewed = self.0.renew(run, terms).await;
        self.1.notify_one();
        renewed
    }

    async fn finish(&self, run: &Run, answer: &[u8], terms: &Terms) -> leasehold::Result<bool> {
        self.0.finish(run, answer, terms).await
    }

    async fn abandon(&self, run: &Run) -> leasehold::Result<bool> {
        self.0.abandon(run).await
    }
}

#[tokio::test]
async fn a_slow_request_is_not_taken_over() {
    let (directory, renewed) = (tempfile::tempdir().unwrap(), Arc::<Notify>::default());
    let hold = Duration::from_millis(1500);
    let layer = IdempotencyLayer::new(Telling(sqlite(&directory).await, Arc::clone(&renewed)));
    let shop = Arc::new(behind(layer.terms(Terms::default().hold(hold))));
    let started = std::time::Instant::now();
    let slow = tokio::spawn({
        let shop = Arc::clone(&shop);
        async move { shop.ask("POST", Some("k"), "slow").await }
    });
    shop.begun.notified().await;
    while started.elapsed() < hold {
        tokio::time::timeout(40 * hold, renewed.notified()).await.expect("it says that it still runs");
    }
    assert_eq!(shop.ask("POST", Some("k"), "slow").await.0, 409);
    shop.open.notify_one();
    assert_eq!(slow.await.unwrap(), (201, "slow #0".to_owned(), false));
    assert_eq!(shop.ask("POST", Some("k"), "slow").await, (201, "slow #0".to_owned(), true));
    assert_eq!(shop.served(), 1);
}

#[tokio::test]
async fn a_failure_is_stored_unless_told_otherwise_and_keys_belong_to_somebody() {
    let strict = shop(|layer| layer).await;
    assert_eq!(strict.ask("POST", Some("k"), "broken").await, (500, "broken #0".to_owned(), false));
    assert_eq!(strict.ask("POST", Some("k"), "broken").await, (500, "broken #0".to_owned(), true));
    let lenient = shop(IdempotencyLayer::retry_failures).await;
    assert_eq!(lenient.ask("POST", Some("k"), "broken").await.1, "broken #0");
    assert_eq!(lenient.ask("POST", Some("k"), "broken").await, (500, "broken #1".to_owned(), false));
    let owned = shop(|layer| layer.scope(|parts| Some(parts.method.to_string()))).await;
    assert_eq!(owned.ask("POST", Some("k"), "x").await.1, "x #0");
    assert_eq!(owned.ask("POST", Some("k"), "y").await.0, 422);
    assert_eq!(owned.ask("PATCH", Some("k"), "y").await.1, "y #1", "the same key of somebody else");
    assert_eq!(strict.ask("PATCH", Some("k"), "broken").await.0, 422, "everyone's, and for another request");
    let endless = shop(|layer| layer.scope(|_| Some("x".repeat(2000)))).await;
    assert_eq!((endless.ask("POST", Some("k"), "x").await.0, endless.served()), (400, 0));
}

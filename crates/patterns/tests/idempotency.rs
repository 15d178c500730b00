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
    BeginOutcome, Fingerprint, IdempotencyLayer, KeyClaim, KeyLifetimes, Keys, PostgresKeys, RedisKeys,
    SqliteKeys,
};
use leasehold_testkit::servers::{PostgresServer, RedisServer};
use tokio::sync::Notify;
use tokio_postgres::NoTls;
use tower::ServiceExt as _;

const SHORT: Duration = Duration::from_millis(50);

/// Runs the test on every store.
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

fn claimed(outcome: BeginOutcome) -> KeyClaim {
    if let BeginOutcome::Claimed(claim) = outcome { claim } else { panic!("{outcome:?}") }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_requests_with_a_key_one_runs_and_all_get_its_response() {
    stores(async |keys| {
        let lifetimes = KeyLifetimes::default();
        let first = claimed(keys.begin("k", &payload("pay 10"), &lifetimes).await.unwrap());
        for _ in 0..3 {
            let outcome = keys.begin("k", &payload("pay 10"), &lifetimes).await.unwrap();
            assert!(
                matches!(outcome, BeginOutcome::Running { retry_in } if retry_in > Duration::from_secs(30)),
                "{outcome:?}"
            );
        }
        assert_eq!(
            keys.begin("k", &payload("pay 99"), &lifetimes).await.unwrap(),
            BeginOutcome::OtherPayload
        );
        assert!(keys.finish(&first, b"paid", &lifetimes).await.unwrap());
        assert!(!keys.finish(&first, b"twice", &lifetimes).await.unwrap(), "a response is stored once");
        assert_eq!(
            keys.begin("k", &payload("pay 10"), &lifetimes).await.unwrap(),
            BeginOutcome::Done(b"paid".to_vec())
        );
        assert_eq!(
            keys.begin("k", &payload("pay 99"), &lifetimes).await.unwrap(),
            BeginOutcome::OtherPayload
        );
        claimed(keys.begin("another", &payload("pay 99"), &lifetimes).await.unwrap());
    })
    .await;
}

/// The first request is not dead, only late: its response comes after another request took the key over.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_claim_ran_out_is_taken_over_and_its_late_response_refused() {
    stores(async |keys| {
        let (short, lifetimes) = (KeyLifetimes::default().hold(SHORT), KeyLifetimes::default());
        let late = claimed(keys.begin("k", &payload("pay 10"), &short).await.unwrap());
        tokio::time::sleep(4 * SHORT).await;
        assert_eq!(
            keys.begin("k", &payload("pay 99"), &lifetimes).await.unwrap(),
            BeginOutcome::OtherPayload,
            "{keys:?}"
        );
        let next = claimed(keys.begin("k", &payload("pay 10"), &lifetimes).await.unwrap());
        assert!(next.token > late.token);
        assert!(!keys.finish(&late, b"late", &lifetimes).await.unwrap(), "{keys:?}");
        assert!(!keys.abandon(&late).await.unwrap());
        assert!(keys.finish(&next, b"in time", &lifetimes).await.unwrap());
        assert_eq!(
            keys.begin("k", &payload("pay 10"), &lifetimes).await.unwrap(),
            BeginOutcome::Done(b"in time".to_vec())
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_still_runs_can_renew_its_claim() {
    stores(async |keys| {
        let (moment, lifetimes) =
            (KeyLifetimes::default().hold(Duration::from_millis(1)), KeyLifetimes::default());
        let slow = claimed(keys.begin("k", &payload("pay 10"), &moment).await.unwrap());
        assert!(keys.renew(&slow, &lifetimes).await.unwrap(), "{keys:?}");
        assert!(keys.renew(&slow, &moment).await.unwrap(), "a renewal does not make a claim shorter");
        let outcome = keys.begin("k", &payload("pay 10"), &lifetimes).await.unwrap();
        assert!(
            matches!(outcome, BeginOutcome::Running { retry_in } if retry_in > Duration::from_secs(30)),
            "{outcome:?}"
        );
        assert!(keys.finish(&slow, b"paid", &lifetimes).await.unwrap());
        assert!(!keys.renew(&slow, &lifetimes).await.unwrap(), "the request has ended");
        let given_up = claimed(keys.begin("another", &payload("pay 10"), &lifetimes).await.unwrap());
        assert!(keys.abandon(&given_up).await.unwrap());
        let next = claimed(keys.begin("another", &payload("pay 10"), &lifetimes).await.unwrap());
        assert!(
            !keys.renew(&given_up, &lifetimes).await.unwrap(),
            "another request has the key now: {keys:?}"
        );
        assert!(keys.renew(&next, &lifetimes).await.unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_can_be_given_up_and_an_old_response_expires() {
    stores(async |keys| {
        let lifetimes = KeyLifetimes::default();
        let first = claimed(keys.begin("k", &payload("pay 10"), &lifetimes).await.unwrap());
        assert!(keys.abandon(&first).await.unwrap());
        let again = claimed(keys.begin("k", &payload("pay 11"), &lifetimes).await.unwrap());
        assert!(again.token > first.token, "{keys:?}");
        assert!(keys.finish(&again, b"paid", &KeyLifetimes::default().keep(SHORT)).await.unwrap());
        tokio::time::sleep(4 * SHORT).await;
        claimed(keys.begin("k", &payload("pay 12"), &lifetimes).await.unwrap());
    })
    .await;
}

/// No cleanup job is needed.
#[tokio::test(flavor = "multi_thread")]
async fn expired_keys_are_removed_by_new_requests() {
    let directory = tempfile::tempdir().unwrap();
    let (redis, postgres) = (RedisServer::start(), PostgresServer::start());
    let stores: [Box<dyn Keys>; 3] = [
        Box::new(sqlite(&directory).await),
        Box::new(in_redis(&redis).await),
        Box::new(in_postgres(&postgres).await),
    ];
    let lifetimes = KeyLifetimes::default();
    for keys in &stores {
        for number in 0..20 {
            let old = claimed(keys.begin(&format!("old-{number}"), &payload("x"), &lifetimes).await.unwrap());
            assert!(keys.finish(&old, b"done", &lifetimes.keep(SHORT)).await.unwrap());
        }
        tokio::time::sleep(4 * SHORT).await;
        for number in 0..2 {
            let new = claimed(keys.begin(&format!("new-{number}"), &payload("x"), &lifetimes).await.unwrap());
            assert!(keys.finish(&new, b"done", &lifetimes).await.unwrap());
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
async fn keys_work_again_after_a_lost_connection_and_a_restarted_database() {
    let server = PostgresServer::start();
    let keys = in_postgres(&server).await;
    let lifetimes = KeyLifetimes::default();
    for (key, kill) in [("a", false), ("b", true)] {
        let claim = claimed(keys.begin(key, &payload("x"), &lifetimes).await.unwrap());
        if kill {
            server.kill();
            assert_eq!(keys.renew(&claim, &lifetimes).await.unwrap_err().kind(), ErrorKind::Unavailable);
            server.run_again();
        } else {
            let others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid()";
            server.sql(&format!("SELECT pg_terminate_backend(pid) {others}"));
        }
        let until = Instant::now() + Duration::from_secs(60);
        // The first statement may find that the connection is lost.
        while let Err(error) = keys.renew(&claim, &lifetimes).await {
            assert!(error.kind() == ErrorKind::Unavailable && Instant::now() < until, "{error}");
            tokio::time::sleep(SHORT).await;
        }
        assert!(keys.finish(&claim, b"done", &lifetimes).await.unwrap(), "the claim is still valid");
        assert!(matches!(keys.begin(key, &payload("x"), &lifetimes).await.unwrap(), BeginOutcome::Done(_)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_gets_a_clear_error() {
    stores(async |keys| {
        let lifetimes = KeyLifetimes::default();
        for key in ["", "a\0b", &"x".repeat(1025)] {
            assert_eq!(
                keys.begin(key, &payload("x"), &lifetimes).await.unwrap_err().kind(),
                ErrorKind::Invalid
            );
        }
        let first = claimed(keys.begin("it's {hostile} 日本", &payload("x"), &lifetimes).await.unwrap());
        let large = vec![0; (1 << 20) + 1];
        assert_eq!(keys.finish(&first, &large, &lifetimes).await.unwrap_err().kind(), ErrorKind::Limit);
        assert!(keys.finish(&first, &large[1..], &lifetimes).await.unwrap(), "{keys:?}");
    })
    .await;
}

/// A service that counts its requests. The body `slow` makes it wait for `may_finish`.
struct Shop {
    app: Router,
    served: Arc<AtomicUsize>,
    may_finish: Arc<Notify>,
    started: Arc<Notify>,
    _directory: Option<tempfile::TempDir>,
}

/// A service whose keys are in a SQLite file.
async fn shop(change: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer) -> Shop {
    let directory = tempfile::tempdir().unwrap();
    let keys = IdempotencyLayer::new(sqlite(&directory).await);
    Shop { _directory: Some(directory), ..shop_behind(change(keys)) }
}

fn shop_behind(layer: IdempotencyLayer) -> Shop {
    let (served, may_finish, started) =
        (Arc::<AtomicUsize>::default(), Arc::<Notify>::default(), Arc::<Notify>::default());
    let handler = {
        let (served, may_finish, started) = (served.clone(), may_finish.clone(), started.clone());
        async move |body: String| {
            let number = served.fetch_add(1, Ordering::SeqCst);
            if body == "slow" {
                started.notify_one();
                may_finish.notified().await;
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
    Shop { app, served, may_finish, started, _directory: None }
}

impl Shop {
    /// Sends a request; returns the status, the body, and whether the response is a stored one.
    async fn send(&self, method: &str, key: Option<&str>, body: &str) -> (u16, String, bool) {
        let mut request = Request::builder().method(method).uri("/payments");
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        let response =
            self.app.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
        let is_replayed = response.headers().contains_key("idempotency-replayed");
        assert_eq!(response.headers().contains_key("retry-after"), response.status() == 409);
        assert!(!is_replayed || !response.headers().contains_key("set-cookie"), "a cookie is for one client");
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap(), is_replayed)
    }

    fn served(&self) -> usize {
        self.served.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_gets_the_first_response() {
    let directory = tempfile::tempdir().unwrap();
    let (redis, postgres) = (RedisServer::start(), PostgresServer::start());
    let layers = [
        IdempotencyLayer::new(sqlite(&directory).await),
        IdempotencyLayer::new(in_redis(&redis).await),
        IdempotencyLayer::new(in_postgres(&postgres).await),
    ];
    for layer in layers {
        repeats_the_first_response(&shop_behind(layer)).await;
    }
}

async fn repeats_the_first_response(shop: &Shop) {
    let first = shop.send("POST", Some("\"k1\""), "pay 10").await;
    assert_eq!(first, (201, "pay 10 #0".to_owned(), false));
    for key in ["\"k1\"", "k1"] {
        assert_eq!(shop.send("POST", Some(key), "pay 10").await, (201, "pay 10 #0".to_owned(), true));
    }
    assert_eq!(shop.send("POST", Some("k1"), "pay 99").await.0, 422);
    assert_eq!(shop.send("POST", Some("k2"), "pay 10").await.1, "pay 10 #1");
    assert_eq!(
        shop.send("POST", None, "pay 10").await.1,
        "pay 10 #2",
        "a request without a key passes through"
    );
    assert_eq!(shop.send("GET", Some("k1"), "").await.1, " #3", "a GET is idempotent by itself");
    assert_eq!(shop.send("POST", Some("\"open"), "x").await.0, 400);
    assert_eq!(shop.send("POST", Some("k3"), &"x".repeat((1 << 20) + 1)).await.0, 413);
    assert_eq!(shop.served(), 4);
}

/// The effect has happened, although the response cannot be stored: it must not happen again when the claim
/// runs out.
#[tokio::test]
async fn a_request_whose_response_is_too_large_is_not_carried_out_again() {
    let shop = shop(|layer| layer.lifetimes(KeyLifetimes::default().hold(SHORT)).retry_failures()).await;
    let (status, body, _) = shop.send("POST", Some("k"), "large").await;
    assert_eq!(status, 500);
    assert!(body.contains("cannot be stored"), "{body}");
    tokio::time::sleep(4 * SHORT).await;
    assert_eq!(shop.send("POST", Some("k"), "large").await, (500, body, true));
    assert_eq!(shop.served(), 1);
}

#[tokio::test]
async fn while_the_first_request_runs_the_others_get_a_conflict() {
    let shop = Arc::new(shop(IdempotencyLayer::required).await);
    assert_eq!(shop.send("POST", None, "pay").await.0, 400);
    let slow = tokio::spawn({
        let shop = Arc::clone(&shop);
        async move { shop.send("POST", Some("k"), "slow").await }
    });
    shop.started.notified().await;
    let (status, body, _) = shop.send("POST", Some("k"), "slow").await;
    assert_eq!(status, 409);
    assert!(body.contains("still running"), "{body}");
    shop.may_finish.notify_one();
    assert_eq!(slow.await.unwrap(), (201, "slow #0".to_owned(), false));
    assert_eq!(shop.send("POST", Some("k"), "slow").await, (201, "slow #0".to_owned(), true));
}

/// A store that notifies the test of each renewal.
#[derive(Debug)]
struct NotifyingKeys(SqliteKeys, Arc<Notify>);

#[leasehold::async_trait]
impl Keys for NotifyingKeys {
    async fn begin(
        &self,
        key: &str,
        payload: &Fingerprint,
        lifetimes: &KeyLifetimes,
    ) -> leasehold::Result<BeginOutcome> {
        self.0.begin(key, payload, lifetimes).await
    }

    async fn renew(&self, claim: &KeyClaim, lifetimes: &KeyLifetimes) -> leasehold::Result<bool> {
        let renewed = self.0.renew(claim, lifetimes).await;
        self.1.notify_one();
        renewed
    }

    async fn finish(
        &self,
        claim: &KeyClaim,
        response: &[u8],
        lifetimes: &KeyLifetimes,
    ) -> leasehold::Result<bool> {
        self.0.finish(claim, response, lifetimes).await
    }

    async fn abandon(&self, claim: &KeyClaim) -> leasehold::Result<bool> {
        self.0.abandon(claim).await
    }
}

#[tokio::test]
async fn a_slow_request_is_not_taken_over() {
    let (directory, renewed) = (tempfile::tempdir().unwrap(), Arc::<Notify>::default());
    let hold = Duration::from_millis(1500);
    let layer = IdempotencyLayer::new(NotifyingKeys(sqlite(&directory).await, Arc::clone(&renewed)));
    let shop = Arc::new(shop_behind(layer.lifetimes(KeyLifetimes::default().hold(hold))));
    let started = std::time::Instant::now();
    let slow = tokio::spawn({
        let shop = Arc::clone(&shop);
        async move { shop.send("POST", Some("k"), "slow").await }
    });
    shop.started.notified().await;
    while started.elapsed() < hold {
        tokio::time::timeout(40 * hold, renewed.notified()).await.expect("the layer renews the claim");
    }
    assert_eq!(shop.send("POST", Some("k"), "slow").await.0, 409);
    shop.may_finish.notify_one();
    assert_eq!(slow.await.unwrap(), (201, "slow #0".to_owned(), false));
    assert_eq!(shop.send("POST", Some("k"), "slow").await, (201, "slow #0".to_owned(), true));
    assert_eq!(shop.served(), 1);
}

#[tokio::test]
async fn a_failure_is_stored_unless_set_otherwise_and_keys_have_a_scope() {
    let strict = shop(|layer| layer).await;
    assert_eq!(strict.send("POST", Some("k"), "broken").await, (500, "broken #0".to_owned(), false));
    assert_eq!(strict.send("POST", Some("k"), "broken").await, (500, "broken #0".to_owned(), true));
    let lenient = shop(IdempotencyLayer::retry_failures).await;
    assert_eq!(lenient.send("POST", Some("k"), "broken").await.1, "broken #0");
    assert_eq!(lenient.send("POST", Some("k"), "broken").await, (500, "broken #1".to_owned(), false));
    let scoped = shop(|layer| layer.scope(|parts| Some(parts.method.to_string()))).await;
    assert_eq!(scoped.send("POST", Some("k"), "x").await.1, "x #0");
    assert_eq!(scoped.send("POST", Some("k"), "y").await.0, 422);
    assert_eq!(scoped.send("PATCH", Some("k"), "y").await.1, "y #1", "the same key in another scope");
    assert_eq!(
        strict.send("PATCH", Some("k"), "broken").await.0,
        422,
        "one scope for all, and another request"
    );
    let too_long = shop(|layer| layer.scope(|_| Some("x".repeat(2000)))).await;
    assert_eq!((too_long.send("POST", Some("k"), "x").await.0, too_long.served()), (400, 0));
}

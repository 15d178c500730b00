//! A refusal is counted by kind and downstream, and logged without an id or an owner.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::{Arc, Mutex};

use common::{pass_for, stale};
use leasehold_core::OwnerToken;
use leasehold_fence::{
    http::{FenceLayer, SqliteMarks, show},
    postgres,
    redis::Fence,
    sqlite,
};
use leasehold_testkit::servers::{PostgresServer, RedisServer};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use rusqlite::Connection;
use tokio_postgres::NoTls;
use tower::ServiceExt as _;
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;
    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

/// Kind, downstream, and how many refusals.
fn counted(counters: &Snapshotter) -> Vec<(String, String, u64)> {
    let counters = counters.snapshot().into_vec();
    let mut all: Vec<_> = counters
        .iter()
        .filter(|(key, ..)| key.key().name() == "leasehold_fencing_rejected_total")
        .map(|(key, _, _, value)| {
            let label =
                |name: &str| key.key().labels().find(|it| it.key() == name).unwrap().value().to_owned();
            let DebugValue::Counter(count) = value else { panic!("{value:?}") };
            assert_eq!(key.key().labels().count(), 2, "{key:?}");
            (label("kind"), label("downstream"), *count)
        })
        .collect();
    all.sort();
    all
}

const RESOURCE: &str = "payment/ann@example.com";

async fn refused_by_redis(server: &RedisServer) {
    let [a, b] = [(33, 1), (34, 2)].map(|(number, owner)| pass_for(RESOURCE, number, owner));
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let fence = Fence::new();
    fence.set(&b, "k", "B").unwrap().run(&mut connection).await.unwrap();
    let calls = [
        fence.set(&a, "k", "A"),
        fence.hash_set(&a, "k", &[("f", "A")]),
        fence.delete(&a, "k"),
        fence.enter(&a, "k"),
    ];
    for late in calls {
        stale(late.unwrap().run(&mut connection).await);
    }
}

async fn refused_by_postgres(server: &PostgresServer) {
    let [a, b] = [(33, 1), (34, 2)].map(|(number, owner)| pass_for(RESOURCE, number, owner));
    let (mut client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    #[expect(clippy::disallowed_methods, reason = "a test has a runtime")]
    tokio::spawn(connection);
    client.batch_execute("CREATE TABLE payment (id text)").await.unwrap();
    postgres::install(&client, "payment", &"payment/{id}".parse().unwrap()).await.unwrap();
    postgres::enter(&client, &b).await.unwrap();
    stale(postgres::enter(&client, &a).await);
    let transaction = client.transaction().await.unwrap();
    transaction.execute("SELECT set_config('leasehold.pass', $1, true)", &[&a.to_string()]).await.unwrap();
    let late = transaction.execute("INSERT INTO payment VALUES ('ann@example.com')", &[]).await;
    stale(late.map_err(|error| postgres::explain(error, &a)));
}

async fn refused_by_http() {
    let [a, b] = [(33, 1), (34, 2)].map(|(number, owner)| pass_for(RESOURCE, number, owner));
    let marks = SqliteMarks::new(Connection::open_in_memory().unwrap()).unwrap();
    let app = axum::Router::new()
        .fallback(axum::routing::any(async || "done"))
        .layer(FenceLayer::new(marks, |_| RESOURCE.parse().map(Some)));
    for (pass, status) in [(b, 200), (a, 412)] {
        let mut request = http::Request::put("/").body(axum::body::Body::empty()).unwrap();
        show(request.headers_mut(), &pass);
        assert_eq!(app.clone().oneshot(request).await.unwrap().status(), status);
    }
}

#[test]
fn every_downstream_counts_under_its_own_name_and_logs_no_secret() {
    let (recorder, log) = (DebuggingRecorder::new(), Log::default());
    let counters = recorder.snapshotter();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    let (redis, postgres) = (RedisServer::start(), PostgresServer::start());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        tracing::subscriber::with_default(subscriber, || {
            runtime.block_on(async {
                refused_by_redis(&redis).await;
                refused_by_postgres(&postgres).await;
                refused_by_http().await;
            });
        });
    });
    let of = |downstream: &str, count| ("payment".to_owned(), downstream.to_owned(), count);
    assert_eq!(
        counted(&counters),
        [of("http", 1), of("postgres", 2), of("redis", 4)],
        "the marks of HTTP are not counted twice"
    );
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for downstream in ["http", "postgres", "redis"] {
        assert!(text.contains(&format!("downstream=\"{downstream}\"")), "{text}");
    }
    let owner = OwnerToken::from_bytes([1; 16]);
    for secret in ["ann@example.com", &owner.reveal(), &pass_for(RESOURCE, 33, 1).owner.unwrap().to_string()]
    {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}

#[test]
fn a_refusal_is_counted_and_logged_without_secrets() {
    let (recorder, log) = (DebuggingRecorder::new(), Log::default());
    let counted = recorder.snapshotter();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    let mut database = Connection::open_in_memory().unwrap();
    sqlite::setup(&database).unwrap();
    metrics::with_local_recorder(&recorder, || {
        tracing::subscriber::with_default(subscriber, || {
            sqlite::enter(&mut database, &pass_for("payment/ann@example.com", 34, 2)).unwrap();
            for _ in 0..2 {
                let late = sqlite::enter(&mut database, &pass_for("payment/ann@example.com", 33, 1));
                assert_eq!(stale(late), (33, 34));
            }
            for number in 0..300 {
                let resource = format!("kind{number}/1");
                sqlite::enter(&mut database, &pass_for(&resource, 2, 1)).unwrap();
                sqlite::enter(&mut database, &pass_for(&resource, 1, 1)).unwrap_err();
            }
        });
    });
    let counters: Vec<_> = counted.snapshot().into_vec();
    let of = |kind: &str| {
        counters.iter().find_map(|(key, _, _, value)| {
            let labels: Vec<_> = key.key().labels().map(|label| (label.key(), label.value())).collect();
            let wanted = key.key().name() == "leasehold_fencing_rejected_total"
                && labels == [("kind", kind), ("downstream", "sqlite")];
            wanted.then_some(value)
        })
    };
    assert_eq!(of("payment"), Some(&DebugValue::Counter(2)));
    assert!(counters.len() <= 257 && of("other").is_some(), "labels are bounded: {}", counters.len());
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let line = text.lines().next().unwrap();
    for part in [
        "WARN",
        "stale_token_refused",
        "kind=\"payment\"",
        "token=33",
        "highest=34",
        "downstream=\"sqlite\"",
        "id_hash=",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let owner = OwnerToken::from_bytes([1; 16]).reveal();
    assert!(!text.contains("ann@example.com") && !text.contains(&owner), "{line}");
}

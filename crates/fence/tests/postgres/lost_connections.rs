//! Marks whose connection breaks: no request is admitted without the check, and the fence works again by itself.
#![allow(clippy::disallowed_methods, reason = "a test is a program of its own")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{Router, body::Body, routing};
use leasehold_core::{Effect, ErrorKind, Pass, Resource};
use leasehold_fence::{
    http::{FenceLayer, Marks as _, PostgresMarks, Verdict, show},
    postgres::{self, ConnectionManager},
};
use leasehold_testkit::{
    proxy::Proxy,
    servers::{PgBouncer, PostgresServer},
};
use tokio_postgres::{Config, NoTls};
use tower::ServiceExt as _;

use crate::{
    common::{pass, pass_for},
    test_database::{Test, TestDatabase},
};

pub(crate) const TESTS: &[Test] = &[
    ("a_service_goes_on_when_its_session_ends", session_ended),
    ("without_its_database_the_fence_refuses_requests_and_then_goes_on", database_stopped),
    ("many_callers_without_a_database_make_few_connections", many_callers),
    ("callers_with_short_timeouts_get_a_new_connection_after_a_black_hole", black_hole),
    ("a_connection_is_made_although_its_caller_was_cancelled", cancelled_callers),
    ("a_session_that_waits_for_a_lock_does_not_block_other_callers", behind_a_lock),
    ("behind_a_pool_the_replies_to_a_closed_client_reach_no_other_client", behind_a_pool),
    ("a_changed_password_is_read_again", password),
    ("the_error_says_why_the_server_refused_the_connection", refused),
];

/// The time limit of a test step. A test that reaches it has failed.
const TIME_LIMIT: Duration = Duration::from_secs(60);

fn manager(url: &str) -> ConnectionManager {
    ConnectionManager::new(url.parse().unwrap(), NoTls)
}

/// A manager that connects through a proxy.
fn manager_through(proxy: &Proxy, database: &TestDatabase, connect_timeout: Duration) -> ConnectionManager {
    let mut settings = Config::new();
    settings.host("127.0.0.1").port(proxy.port()).user("postgres").dbname(&database.name);
    settings.connect_timeout(connect_timeout);
    ConnectionManager::new(settings, NoTls)
}

/// A service behind a fence, which counts the calls of its handler.
struct Service {
    app: Router,
    handled: Arc<AtomicU32>,
}

impl Service {
    fn new(manager: ConnectionManager) -> Service {
        let handled = Arc::new(AtomicU32::new(0));
        let fence = FenceLayer::new(PostgresMarks::new(manager), |_| Resource::new("report", "42").map(Some));
        let count = Arc::clone(&handled);
        let handler = async move || count.fetch_add(1, Ordering::Relaxed).to_string();
        Service { app: Router::new().fallback(routing::any(handler)).layer(fence), handled }
    }

    async fn put(&self, pass: &Pass) -> u16 {
        let mut request = http::Request::put("/").body(Body::empty()).unwrap();
        show(request.headers_mut(), pass);
        self.app.clone().oneshot(request).await.unwrap().status().as_u16()
    }

    /// The first response that is not 503. A request that is sent before the end of a connection is noticed gets a 503.
    async fn put_until_available(&self, pass: &Pass) -> u16 {
        let until = Instant::now() + TIME_LIMIT;
        loop {
            match self.put(pass).await {
                503 if Instant::now() < until => tokio::time::sleep(Duration::from_millis(20)).await,
                status => return status,
            }
        }
    }

    fn handled(&self) -> u32 {
        self.handled.load(Ordering::Relaxed)
    }
}

fn session_ended(database: &TestDatabase) {
    database.run(async {
        postgres::setup(&database.client().await).await.unwrap();
        let service = Service::new(manager(&database.url()));
        let statuses = [
            service.put(&pass(34, 2)).await,
            service.put(&pass(34, 2)).await,
            service.put(&pass(33, 1)).await,
        ];
        assert_eq!((statuses, service.handled()), ([200, 200, 412], 2));
        for token in 35..38 {
            let name = &database.name;
            let ended = database.server.sql(&format!(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{name}'"
            ));
            assert_eq!(ended, "1", "it has one connection");
            assert_eq!(service.put_until_available(&pass(token, 2)).await, 200);
            assert_eq!(service.put(&pass(34, 2)).await, 412, "the mark is not lost");
        }
        assert_eq!(service.handled(), 5);
    });
}

fn database_stopped(database: &TestDatabase) {
    // Its own server: this test kills it.
    let server = PostgresServer::start();
    database.run(async {
        let manager = manager(&server.url());
        postgres::setup(&**manager.connection().await.unwrap()).await.unwrap();
        let service = Service::new(manager.clone());
        assert_eq!(service.put(&pass(34, 2)).await, 200);
        for token in [35, 36] {
            server.kill();
            let handled = service.handled();
            for _ in 0..50 {
                assert_eq!(
                    service.put(&pass(token, 2)).await,
                    503,
                    "without its marks the fence refuses requests"
                );
            }
            assert_eq!(service.handled(), handled, "the handler was not called");
            let error = PostgresMarks::new(manager.clone()).judge(&pass(token, 2)).await.unwrap_err();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
            assert!(error.to_string().contains("cannot connect to the database"), "{error}");
            server.run_again();
            assert_eq!(service.put_until_available(&pass(token, 2)).await, 200);
            assert_eq!(service.put(&pass(token - 1, 2)).await, 412, "the marks outlive the server process");
        }
    });
}

fn many_callers(database: &TestDatabase) {
    database.run(async {
        postgres::setup(&database.client().await).await.unwrap();
        let proxy = Proxy::start(database.server.port(), 1).await;
        let marks = PostgresMarks::new(manager_through(&proxy, database, Duration::from_millis(500)));
        assert_admitted(&marks, &pass(34, 2)).await;
        // Connections are accepted and get no reply, so an attempt takes until its timeout.
        proxy.reset();
        proxy.black_hole();
        let until = Instant::now() + TIME_LIMIT;
        // The first calls still use the old connection. It is gone when connecting fails, which has no effect.
        while marks.judge(&pass(34, 2)).await.unwrap_err().effect() == Effect::Unknown {
            assert!(Instant::now() < until);
        }
        let (before, began) = (proxy.connections(), Instant::now());
        let calls: Vec<_> = (0..500).map(|_| judging(&marks, 34)).collect();
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert!(began.elapsed() < TIME_LIMIT / 2, "one after the other they would take 250 s");
        // One attempt at a time, and after each a pause of 250 ms.
        let few = |before: u64, began: Instant| {
            let (made, most) = (proxy.connections() - before, 2 + began.elapsed().as_millis() / 250);
            assert!(u128::from(made) <= most, "{made} connections in {:?}", began.elapsed());
        };
        few(before, began);
        // Connections are refused at once: calls do not wait, and there are still few attempts.
        proxy.refuse();
        let (before, began) = (proxy.connections(), Instant::now());
        for _ in 0..500 {
            assert_eq!(marks.judge(&pass(34, 2)).await.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        few(before, began);
        proxy.heal();
        assert_admitted(&marks, &pass(34, 2)).await;
        let before = proxy.connections();
        let calls: Vec<_> = (35..135).map(|token| judging(&marks, token)).collect();
        for call in calls {
            call.await.unwrap().unwrap().ok();
        }
        assert_eq!(proxy.connections(), before, "all calls share one connection");
    });
}

fn judging(marks: &PostgresMarks, token: u64) -> tokio::task::JoinHandle<leasehold_core::Result<Verdict>> {
    let marks = marks.clone();
    tokio::spawn(async move { marks.judge(&pass(token, 2)).await })
}

/// Repeats the call until there is a verdict, and asserts that the pass is admitted.
async fn assert_admitted(marks: &PostgresMarks, pass: &Pass) {
    let until = Instant::now() + TIME_LIMIT;
    loop {
        match marks.judge(pass).await {
            Ok(verdict) => return assert!(verdict.is_ok(), "{verdict:?}"),
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn black_hole(database: &TestDatabase) {
    database.run(async {
        postgres::setup(&database.client().await).await.unwrap();
        let proxy = Proxy::start(database.server.port(), 1).await;
        let marks = PostgresMarks::new(
            manager_through(&proxy, database, Duration::from_millis(500)).timeout(Duration::from_millis(200)),
        );
        assert_admitted(&marks, &pass(34, 2)).await;
        proxy.black_hole();
        let began = Instant::now();
        let error = marks.judge(&pass(34, 2)).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
        assert!(began.elapsed() < TIME_LIMIT / 2, "it does not wait without a limit");
        // From now on callers give up before the timeout.
        let until = Instant::now() + TIME_LIMIT;
        while proxy.connections() == 1 {
            assert!(Instant::now() < until, "the silent connection is kept");
            drop(within_a_moment(marks.judge(&pass(35, 2))).await);
        }
        proxy.heal();
        assert_admitted(&marks, &pass(35, 2)).await;
    });
}

fn cancelled_callers(database: &TestDatabase) {
    database.run(async {
        let proxy = Proxy::start(database.server.port(), 1).await;
        proxy.black_hole();
        let manager = manager_through(&proxy, database, TIME_LIMIT);
        while proxy.connections() == 0 {
            assert!(within_a_moment(manager.connection()).await.is_none());
        }
        proxy.heal();
        manager.connection().await.unwrap();
        assert_eq!(proxy.connections(), 1, "the attempt that the cancelled callers started");
    });
}

/// The result, if it comes within 10 ms. Otherwise the future is dropped.
async fn within_a_moment<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_millis(10), work).await.ok()
}

fn behind_a_lock(database: &TestDatabase) {
    database.run(async {
        let mut client = database.client().await;
        postgres::setup(&client).await.unwrap();
        let transaction = client.transaction().await.unwrap();
        postgres::admit(&transaction, &pass(34, 2)).await.unwrap();
        let marks = PostgresMarks::new(manager(&database.url()).timeout(Duration::from_millis(200)));
        let error = marks.judge(&pass(35, 2)).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
        let until = Instant::now() + TIME_LIMIT;
        assert_admitted(&marks, &pass_for("report/43", 1, 1)).await;
        // The statement that waited was cancelled: it does not raise the mark later.
        let waiting = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND wait_event_type = 'Lock'",
            database.name
        );
        while database.server.sql(&waiting) != "0" {
            assert!(Instant::now() < until, "a session still waits for the lock");
        }
        transaction.commit().await.unwrap();
        assert_admitted(&marks, &pass(34, 2)).await;
    });
}

/// A pool with one connection to the server. A client sends two requests, and its connection breaks after the first reply.
fn behind_a_pool(database: &TestDatabase) {
    let server = PostgresServer::start();
    let pool = PgBouncer::start(&server, 1);
    database.run(async {
        let connect = async || {
            let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
            tokio::spawn(connection);
            client
        };
        let (mut one, mut other) = (connect().await, connect().await);
        postgres::setup(&one).await.unwrap();
        let proxy = Proxy::start(pool.port(), 1).await;
        let by = |port| {
            let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
            PostgresMarks::new(manager(&url).timeout(TIME_LIMIT / 2))
        };
        let (cut, next) = (by(proxy.port()), by(pool.port()));
        for marks in [&cut, &next] {
            assert_admitted(marks, &pass_for("report/c", 50, 1)).await;
        }
        let (a, b) = (one.transaction().await.unwrap(), other.transaction().await.unwrap());
        postgres::admit(&a, &pass_for("report/a", 10, 1)).await.unwrap();
        postgres::admit(&b, &pass_for("report/b", 10, 1)).await.unwrap();
        let judging = |marks: &PostgresMarks, name: &'static str, token| {
            let marks = marks.clone();
            tokio::spawn(async move { marks.judge(&pass_for(name, token, 1)).await })
        };
        let is_waiting = || {
            let until = Instant::now() + TIME_LIMIT;
            while server.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == "0" {
                assert!(Instant::now() < until, "a session waits for a mark");
            }
        };
        let first = judging(&cut, "report/b", 20);
        tokio::time::sleep(Duration::from_millis(100)).await;
        is_waiting();
        let second = judging(&cut, "report/a", 20);
        // Long enough to reach the pool, if it is sent before the first reply.
        tokio::time::sleep(Duration::from_millis(300)).await;
        b.commit().await.unwrap();
        assert!(first.await.unwrap().unwrap().is_ok());
        is_waiting();
        proxy.reset();
        assert!(second.await.unwrap().is_err());
        let stale = judging(&next, "report/c", 49);
        tokio::time::sleep(Duration::from_millis(300)).await;
        a.commit().await.unwrap();
        let verdict = stale.await.unwrap();
        assert!(!matches!(verdict, Ok(Ok(_))), "a stale token was admitted: {verdict:?}");
        assert_admitted(&next, &pass_for("report/c", 51, 1)).await;
    });
}

fn password(database: &TestDatabase) {
    // Its own server: the other tests use no password.
    let server = PostgresServer::start();
    let file = server.folder().join("password");
    let set = |password: &str| {
        server.sql(&format!("ALTER ROLE app PASSWORD '{password}'"));
        std::fs::write(&file, format!("{password}\n")).unwrap();
    };
    server.sql("CREATE ROLE app LOGIN");
    server.require_passwords();
    set("first");
    database.run(async {
        let manager = manager(&server.url().replace("postgres@", "app@")).password_file(&file);
        let end = async || {
            let connection = manager.connection().await.unwrap();
            server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'");
            let until = Instant::now() + TIME_LIMIT;
            while !connection.is_closed() {
                assert!(Instant::now() < until, "it is noticed");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        set("second");
        end().await;
        manager.connection().await.unwrap();
        std::fs::remove_file(&file).unwrap();
        end().await;
        let error = manager.connection().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("password"), "{error}");
    });
}

fn refused(database: &TestDatabase) {
    database.run(async {
        for (url, kind, why) in [
            (database.url() + "_not", ErrorKind::Invalid, "does not exist"),
            (database.url_of("nobody"), ErrorKind::Denied, "nobody"),
            (database.url(), ErrorKind::Unsupported, "no fence yet"),
        ] {
            let marks = PostgresMarks::new(manager(&url));
            let error = marks.judge(&pass(34, 2)).await.unwrap_err();
            assert!(error.kind() == kind && error.to_string().contains(why), "{error:?}");
        }
    });
}

//! Marks whose connection is lost: nothing passes without the check, and it goes on by itself.
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
    site::{Site, Test},
};

pub(crate) const TESTS: &[Test] = &[
    ("a_service_goes_on_when_its_session_is_ended", session_ended),
    ("while_the_database_is_away_nothing_passes_and_then_it_goes_on", away),
    ("a_crowd_that_finds_no_database_makes_few_connections", crowd),
    ("the_impatient_find_a_way_out_of_a_black_hole", black_hole),
    ("a_connection_is_made_although_who_asked_for_it_is_gone", nobody_stayed),
    ("a_session_that_waits_for_a_lock_does_not_keep_the_others", behind_a_lock),
    ("behind_a_pool_the_answers_to_a_client_that_is_gone_are_given_to_nobody_else", behind_a_pool),
    ("a_password_that_changes_is_read_again", password),
    ("who_is_refused_by_the_server_is_told_why", refused),
];

/// Longer than anything takes: a test that gets here has failed.
const PATIENCE: Duration = Duration::from_secs(60);

fn link(url: &str) -> ConnectionManager {
    ConnectionManager::new(url.parse().unwrap(), NoTls)
}

/// By way of a proxy.
fn link_by(proxy: &Proxy, site: &Site, connect_timeout: Duration) -> ConnectionManager {
    let mut settings = Config::new();
    settings.host("127.0.0.1").port(proxy.port()).user("postgres").dbname(&site.database);
    settings.connect_timeout(connect_timeout);
    ConnectionManager::new(settings, NoTls)
}

/// A service behind a fence, and how often its handler ran.
struct Service {
    app: Router,
    handled: Arc<AtomicU32>,
}

impl Service {
    fn new(link: ConnectionManager) -> Service {
        let handled = Arc::new(AtomicU32::new(0));
        let fence = FenceLayer::new(PostgresMarks::new(link), |_| Resource::new("report", "42").map(Some));
        let count = Arc::clone(&handled);
        let handler = async move || count.fetch_add(1, Ordering::Relaxed).to_string();
        Service { app: Router::new().fallback(routing::any(handler)).layer(fence), handled }
    }

    async fn put(&self, pass: &Pass) -> u16 {
        let mut request = http::Request::put("/").body(Body::empty()).unwrap();
        show(request.headers_mut(), pass);
        self.app.clone().oneshot(request).await.unwrap().status().as_u16()
    }

    /// The first answer that is not "closed". One that comes before the end of a connection is noticed may be.
    async fn put_until_open(&self, pass: &Pass) -> u16 {
        let until = Instant::now() + PATIENCE;
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

fn session_ended(site: &Site) {
    site.run(async {
        postgres::setup(&site.client().await).await.unwrap();
        let service = Service::new(link(&site.url()));
        let answers = [
            service.put(&pass(34, 2)).await,
            service.put(&pass(34, 2)).await,
            service.put(&pass(33, 1)).await,
        ];
        assert_eq!((answers, service.handled()), ([200, 200, 412], 2));
        for token in 35..38 {
            let database = &site.database;
            let ended = site.server.sql(&format!(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{database}'"
            ));
            assert_eq!(ended, "1", "it has one connection");
            assert_eq!(service.put_until_open(&pass(token, 2)).await, 200);
            assert_eq!(service.put(&pass(34, 2)).await, 412, "what was seen is not forgotten");
        }
        assert_eq!(service.handled(), 5);
    });
}

fn away(site: &Site) {
    // Its own: the others need theirs.
    let server = PostgresServer::start();
    site.run(async {
        let link = link(&server.url());
        postgres::setup(&**link.connection().await.unwrap()).await.unwrap();
        let service = Service::new(link.clone());
        assert_eq!(service.put(&pass(34, 2)).await, 200);
        for token in [35, 36] {
            server.kill();
            let handled = service.handled();
            for _ in 0..50 {
                assert_eq!(service.put(&pass(token, 2)).await, 503, "without its marks it is closed");
            }
            assert_eq!(service.handled(), handled, "and nobody came through");
            let error = PostgresMarks::new(link.clone()).judge(&pass(token, 2)).await.unwrap_err();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
            assert!(error.to_string().contains("cannot connect to the database"), "{error}");
            server.run_again();
            assert_eq!(service.put_until_open(&pass(token, 2)).await, 200);
            assert_eq!(service.put(&pass(token - 1, 2)).await, 412, "the marks have outlived it");
        }
    });
}

fn crowd(site: &Site) {
    site.run(async {
        postgres::setup(&site.client().await).await.unwrap();
        let proxy = Proxy::start(site.server.port(), 1).await;
        let marks = PostgresMarks::new(link_by(&proxy, site, Duration::from_millis(500)));
        admitted(&marks, &pass(34, 2)).await;
        // Accepted, and then nothing: the attempt lasts as long as it may.
        proxy.reset();
        proxy.black_hole();
        let until = Instant::now() + PATIENCE;
        // Whoever was first found the old connection; that is over when one cannot connect.
        while marks.judge(&pass(34, 2)).await.unwrap_err().effect() == Effect::Unknown {
            assert!(Instant::now() < until);
        }
        let (before, began) = (proxy.connections(), Instant::now());
        let crowd: Vec<_> = (0..500).map(|_| judging(&marks, 34)).collect();
        for one in crowd {
            assert_eq!(one.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert!(began.elapsed() < PATIENCE / 2, "one after the other they would wait 250 s");
        // One at a time, and after each a pause, however long it takes.
        let few = |before: u64, began: Instant| {
            let (made, most) = (proxy.connections() - before, 2 + began.elapsed().as_millis() / 250);
            assert!(u128::from(made) <= most, "{made} connections in {:?}", began.elapsed());
        };
        few(before, began);
        // Refused at once: nobody waits, and there are still few.
        proxy.refuse();
        let (before, began) = (proxy.connections(), Instant::now());
        for _ in 0..500 {
            assert_eq!(marks.judge(&pass(34, 2)).await.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        few(before, began);
        proxy.heal();
        admitted(&marks, &pass(34, 2)).await;
        let before = proxy.connections();
        let crowd: Vec<_> = (35..135).map(|token| judging(&marks, token)).collect();
        for one in crowd {
            one.await.unwrap().unwrap().ok();
        }
        assert_eq!(proxy.connections(), before, "one connection does for all");
    });
}

fn judging(marks: &PostgresMarks, token: u64) -> tokio::task::JoinHandle<leasehold_core::Result<Verdict>> {
    let marks = marks.clone();
    tokio::spawn(async move { marks.judge(&pass(token, 2)).await })
}

/// Admitted, however slow the machine is.
async fn admitted(marks: &PostgresMarks, pass: &Pass) {
    let until = Instant::now() + PATIENCE;
    loop {
        match marks.judge(pass).await {
            Ok(verdict) => return assert!(verdict.is_ok(), "{verdict:?}"),
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn black_hole(site: &Site) {
    site.run(async {
        postgres::setup(&site.client().await).await.unwrap();
        let proxy = Proxy::start(site.server.port(), 1).await;
        let marks = PostgresMarks::new(
            link_by(&proxy, site, Duration::from_millis(500)).timeout(Duration::from_millis(200)),
        );
        admitted(&marks, &pass(34, 2)).await;
        proxy.black_hole();
        let began = Instant::now();
        let error = marks.judge(&pass(34, 2)).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
        assert!(began.elapsed() < PATIENCE / 2, "it does not wait for ever");
        // From now on nobody waits until the timeout.
        let until = Instant::now() + PATIENCE;
        while proxy.connections() == 1 {
            assert!(Instant::now() < until, "the silent connection is kept");
            drop(impatient(marks.judge(&pass(35, 2))).await);
        }
        proxy.heal();
        admitted(&marks, &pass(35, 2)).await;
    });
}

fn nobody_stayed(site: &Site) {
    site.run(async {
        let proxy = Proxy::start(site.server.port(), 1).await;
        proxy.black_hole();
        let link = link_by(&proxy, site, PATIENCE);
        while proxy.connections() == 0 {
            assert!(impatient(link.connection()).await.is_none());
        }
        proxy.heal();
        link.connection().await.unwrap();
        assert_eq!(proxy.connections(), 1, "the one that was begun");
    });
}

/// What comes of it in a moment.
async fn impatient<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_millis(10), work).await.ok()
}

fn behind_a_lock(site: &Site) {
    site.run(async {
        let mut client = site.client().await;
        postgres::setup(&client).await.unwrap();
        let transaction = client.transaction().await.unwrap();
        postgres::admit(&transaction, &pass(34, 2)).await.unwrap();
        let marks = PostgresMarks::new(link(&site.url()).timeout(Duration::from_millis(200)));
        let error = marks.judge(&pass(35, 2)).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
        let until = Instant::now() + PATIENCE;
        admitted(&marks, &pass_for("report/43", 1, 1)).await;
        // What waited was cancelled: the next holder does not find a mark that was raised behind its back.
        let waiting = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND wait_event_type = 'Lock'",
            site.database
        );
        while site.server.sql(&waiting) != "0" {
            assert!(Instant::now() < until, "a session is left behind");
        }
        transaction.commit().await.unwrap();
        admitted(&marks, &pass(34, 2)).await;
    });
}

/// A pool with one connection to the server; a client with two requests under way, which is cut off after the first answer.
fn behind_a_pool(site: &Site) {
    let server = PostgresServer::start();
    let pool = PgBouncer::start(&server, 1);
    site.run(async {
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
            PostgresMarks::new(link(&url).timeout(PATIENCE / 2))
        };
        let (cut, next) = (by(proxy.port()), by(pool.port()));
        for marks in [&cut, &next] {
            admitted(marks, &pass_for("report/c", 50, 1)).await;
        }
        let (a, b) = (one.transaction().await.unwrap(), other.transaction().await.unwrap());
        postgres::admit(&a, &pass_for("report/a", 10, 1)).await.unwrap();
        postgres::admit(&b, &pass_for("report/b", 10, 1)).await.unwrap();
        let judging = |marks: &PostgresMarks, name: &'static str, token| {
            let marks = marks.clone();
            tokio::spawn(async move { marks.judge(&pass_for(name, token, 1)).await })
        };
        let is_waiting = || {
            let until = Instant::now() + PATIENCE;
            while server.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == "0" {
                assert!(Instant::now() < until, "a session waits for a mark");
            }
        };
        let first = judging(&cut, "report/b", 20);
        tokio::time::sleep(Duration::from_millis(100)).await;
        is_waiting();
        let second = judging(&cut, "report/a", 20);
        // Long enough to reach the pool, if it is sent before the first answer.
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
        admitted(&next, &pass_for("report/c", 51, 1)).await;
    });
}

fn password(site: &Site) {
    // Its own: the others come without a password.
    let server = PostgresServer::start();
    let file = server.folder().join("password");
    let set = |password: &str| {
        server.sql(&format!("ALTER ROLE app PASSWORD '{password}'"));
        std::fs::write(&file, format!("{password}\n")).unwrap();
    };
    server.sql("CREATE ROLE app LOGIN");
    server.require_passwords();
    set("first");
    site.run(async {
        let link = link(&server.url().replace("postgres@", "app@")).password_file(&file);
        let end = async || {
            let wire = link.connection().await.unwrap();
            server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'");
            let until = Instant::now() + PATIENCE;
            while !wire.is_closed() {
                assert!(Instant::now() < until, "it is noticed");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        set("second");
        end().await;
        link.connection().await.unwrap();
        std::fs::remove_file(&file).unwrap();
        end().await;
        let error = link.connection().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("password"), "{error}");
    });
}

fn refused(site: &Site) {
    site.run(async {
        for (url, kind, why) in [
            (site.url() + "_not", ErrorKind::Invalid, "does not exist"),
            (site.url_of("nobody"), ErrorKind::Denied, "nobody"),
            (site.url(), ErrorKind::Unsupported, "no fence yet"),
        ] {
            let marks = PostgresMarks::new(link(&url));
            let error = marks.judge(&pass(34, 2)).await.unwrap_err();
            assert!(error.kind() == kind && error.to_string().contains(why), "{error:?}");
        }
    });
}

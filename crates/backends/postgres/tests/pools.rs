//! Pooled connections: how the backend tells them from direct ones, and that no reply is taken for the reply to another
//! request.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use common::{LONG, claim, connect, eventually, granted, in_time, kind_and_effect, open, release};
use leasehold::{
    Backend, BackendExt as _, Claim, Effect, ErrorKind, FencingToken, Query, Released, Resource, Verdict,
};
use leasehold_postgres::Postgres;
use leasehold_testkit::{
    Proxy, misdelivery,
    servers::{PgBouncer, Pgpool, PostgresServer},
};

/// One server for all tests that neither stop it nor count its sessions. Each test has its own schema.
fn shared() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(PostgresServer::start)
}

fn resource(name: &str) -> Resource {
    format!("report/{name}").parse().unwrap()
}

/// Whether the backend found that its connections lead to a pool.
fn is_pooled(postgres: &Postgres) -> bool {
    format!("{postgres:?}").contains("is_pooled: true")
}

/// A session that has locked the row of a resource until its transaction ends.
async fn lock_row(server: &PostgresServer, schema: &str, name: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let lock = format!("BEGIN; SELECT FROM {schema}.resource WHERE key = 'report/{name}' FOR UPDATE");
    client.batch_execute(&lock).await.unwrap();
    client
}

async fn a_session_waits(server: &PostgresServer, schema: &str) {
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{schema}.acquire%'"
    );
    eventually("a session waits for the row", || async { server.sql(&waiting) != "0" }).await;
}

#[tokio::test]
async fn a_pool_is_distinguished_from_the_server_itself() {
    let server = shared();
    let proxy = Proxy::start(server.port(), 1).await;
    let relayed = format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port());
    let transactions = PgBouncer::start(server, 2);
    let sessions = PgBouncer::in_session_mode(server, 4);
    for (url, expected) in
        [(server.url(), false), (relayed, false), (transactions.url(), true), (sessions.url(), true)]
    {
        let postgres = open(&format!("{url}?schema=told")).await;
        assert_eq!(is_pooled(&postgres), expected, "{url}");
        let ours = claim(&resource("42"), LONG);
        granted(&postgres, &ours).await;
        assert_eq!(release(&postgres, &ours).await, Released::Now);
    }
}

#[tokio::test]
async fn a_pool_is_distinguished_from_the_server_itself_with_tls() {
    let server = PostgresServer::start();
    let ca = server.speak_tls();
    let url =
        format!("postgres://postgres@localhost:{}/postgres?sslmode=require&ca_file={ca}", server.port());
    assert!(!is_pooled(&open(&url).await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_to_another_request_is_not_believed() {
    misdelivery::check(shared().port(), |port| async move {
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?schema=misled&timeout=500ms");
        Arc::new(open(&url).await) as Arc<dyn Backend>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_to_another_request_is_not_believed_behind_a_pool() {
    let pool = PgBouncer::start(shared(), 4);
    misdelivery::check(pool.port(), |port| async move {
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?schema=misled_pool&timeout=500ms");
        Arc::new(open(&url).await) as Arc<dyn Backend>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_misdelivered_reply_each_connection_has_one_request_at_a_time() {
    let server = shared();
    let proxy = Proxy::start(server.port(), 2).await;
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres?schema=once&timeout=500ms", proxy.port());
    let postgres = open(&url).await;
    granted(&postgres, &claim(&resource("1"), LONG)).await;
    assert!(!is_pooled(&postgres));
    proxy.misdeliver(leasehold_testkit::proxy::Misdelivery::Stale, 1);
    let error = postgres.acquire_one(&claim(&resource("2"), LONG)).await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown), "{error:?}");
    assert!(error.to_string().contains("another request"), "{error}");
    granted(&postgres, &claim(&resource("3"), LONG)).await;
    assert!(is_pooled(&postgres));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reply_to_a_cancelled_request_is_not_taken_for_the_next_reply() {
    let server = shared();
    let pool = PgBouncer::start(server, 4);
    let postgres = Arc::new(open(&format!("{}?schema=dropped&connections=1&timeout=20s", pool.url())).await);
    let held = claim(&resource("held"), LONG);
    granted(&*postgres, &held).await;
    let free = claim(&resource("free"), LONG);
    granted(&*postgres, &free).await;
    release(&*postgres, &free).await;
    let row = lock_row(server, "dropped", "free").await;
    let asking = tokio::spawn({
        let (postgres, claim) = (Arc::clone(&postgres), claim(&resource("free"), LONG));
        async move { postgres.acquire_one(&claim).await }
    });
    a_session_waits(server, "dropped").await;
    asking.abort();
    assert!(asking.await.unwrap_err().is_cancelled());
    // The next request is sent at once, while the reply to the cancelled one is still to come.
    let rival = claim(&resource("held"), LONG);
    let verdict = in_time("the next request", postgres.acquire_one(&rival)).await;
    assert!(matches!(verdict, Ok(Verdict::Blocked(_))), "{verdict:?}");
    row.batch_execute("COMMIT").await.unwrap();
    for _ in 0..20 {
        let verdict = postgres.acquire_one(&rival).await;
        assert!(matches!(verdict, Ok(Verdict::Blocked(_))), "{verdict:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_share_few_connections_behind_a_pool_and_each_is_answered() {
    let server = shared();
    // The pool accepts fewer connections than the URL allows.
    let pool =
        PgBouncer::with(server, &["pool_mode = transaction", "default_pool_size = 2", "max_client_conn = 3"]);
    let postgres = Arc::new(open(&format!("{}?schema=many&connections=16", pool.url())).await);
    let tasks: Vec<_> = (0..32)
        .map(|number| {
            let postgres = Arc::clone(&postgres);
            tokio::spawn(async move {
                for _ in 0..10 {
                    let ours = claim(&resource(&format!("many-{number}")), LONG);
                    granted(&*postgres, &ours).await;
                    assert_eq!(release(&*postgres, &ours).await, Released::Now);
                }
            })
        })
        .collect();
    for task in tasks {
        in_time("a task", task).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_requests_use_up_neither_permits_nor_connections() {
    let server = shared();
    let pool = PgBouncer::start(server, 8);
    let postgres = Arc::new(open(&format!("{}?schema=turns&connections=2&timeout=5s", pool.url())).await);
    let ours = claim(&resource("42"), LONG);
    for round in 0..40_u64 {
        let asking = tokio::spawn({
            let (postgres, claim) = (Arc::clone(&postgres), ours.clone());
            async move { postgres.acquire_one(&claim).await }
        });
        tokio::time::sleep(Duration::from_micros(round * 100)).await;
        asking.abort();
        drop(asking.await);
    }
    for _ in 0..10 {
        in_time("a reply", granted(&*postgres, &ours)).await;
    }
    let clients = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'";
    assert!(server.sql(clients).parse::<u32>().unwrap() < 60, "sessions pile up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_server_behind_a_pool_is_unavailable_and_no_reply_is_mixed_up() {
    let server = PostgresServer::start();
    let pool = PgBouncer::start(&server, 1);
    let postgres =
        Arc::new(open(&format!("{}?timeout=300ms&connect_timeout=500ms&connections=4", pool.url())).await);
    for round in 0..3 {
        let claims: Vec<Claim> =
            (0..12).map(|number| claim(&resource(&format!("{round}-{number}")), LONG)).collect();
        server.freeze();
        let asking: Vec<_> = claims
            .iter()
            .map(|claim| {
                let (postgres, claim) = (Arc::clone(&postgres), claim.clone());
                tokio::spawn(async move { postgres.acquire_one(&claim).await })
            })
            .collect();
        for task in asking {
            let error = in_time("an error", task).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        }
        server.thaw();
        for claim in &claims {
            let name = claim.resource.to_string();
            eventually("a reply", || async {
                match postgres.acquire_one(claim).await {
                    Ok(Verdict::Granted(grant)) => {
                        let seat = format!(
                            "SELECT string_agg(token::text, ' ') FROM leasehold.seat s JOIN leasehold.resource r \
                             ON r.id = s.resource WHERE key = '{name}'"
                        );
                        assert_eq!(server.sql(&seat), grant.token.to_string(), "{name}");
                        true
                    }
                    Ok(other) => panic!("{name}: {other:?}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                        false
                    }
                }
            })
            .await;
        }
    }
}

#[tokio::test]
async fn an_error_from_a_pool_is_believed_only_if_it_names_the_claim() {
    let server = shared();
    let pool = PgBouncer::start(server, 2);
    let (pooled, direct) = (
        open(&format!("{}?schema=refused", pool.url())).await,
        open(&format!("{}?schema=refused", server.url())).await,
    );
    let absurd = FencingToken::new(FencingToken::LIMIT - 2).unwrap();
    let greedy = |name| -> Claim { claim(&resource(name), LONG).above(absurd) };
    for postgres in [&pooled, &direct] {
        let error = postgres.acquire_one(&greedy("42")).await.unwrap_err();
        assert_eq!(kind_and_effect(&error), (ErrorKind::Invalid, Effect::None), "{error:?}");
        assert!(error.to_string().contains(&absurd.to_string()), "{error}");
    }
    // An error that names no claim may belong to the request of another client.
    server.sql("ALTER TABLE refused.seat ADD CONSTRAINT no_more CHECK (weight > 1) NOT VALID");
    let error = pooled.acquire_one(&claim(&resource("43"), LONG)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error:?}");
    let error = direct.acquire_one(&claim(&resource("43"), LONG)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::None, "{error:?}");
    server.sql("ALTER TABLE refused.seat DROP CONSTRAINT no_more");
    granted(&pooled, &claim(&resource("43"), LONG)).await;
}

#[tokio::test]
async fn wakeups_arrive_behind_a_pool_of_sessions_and_waiters_poll_behind_a_pool_of_transactions() {
    let server = shared();
    for (pool, schema) in
        [(PgBouncer::in_session_mode(server, 20), "sessions"), (PgBouncer::start(server, 4), "transactions")]
    {
        let url = format!("{}?schema={schema}&timeout=2s", pool.url());
        let (ours, theirs) = (common::client(&url).await, common::client(&url).await);
        let lease = ours.lease("report", "42").ttl(LONG).acquire().await.unwrap();
        let next = tokio::spawn(theirs.lease("report", "42").ttl(LONG).wait(common::TIME_LIMIT).acquire());
        let waiting = format!("SELECT count(*) FROM {schema}.place");
        eventually("a claim waits", || async { server.sql(&waiting) == "1" }).await;
        lease.release().await.unwrap();
        let next = in_time("the next grant", next).await.unwrap().unwrap();
        next.check().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pgpool_works_and_a_new_client_believes_no_old_reply() {
    let server = shared();
    let pool = Pgpool::start(server, 24);
    let url = format!("{}?schema=gone&timeout=5s", pool.url());
    let holder = open(&url).await;
    let held = claim(&resource("held"), LONG);
    granted(&holder, &held).await;
    for round in 0..10 {
        // This client is dropped while its request is under way: the pool gives its connection to the next client.
        let gone = Arc::new(open(&url).await);
        let name = format!("gone-{round}");
        granted(&*gone, &claim(&resource(&name), LONG)).await;
        let row = lock_row(server, "gone", &name).await;
        let asking = tokio::spawn({
            let (gone, claim) = (Arc::clone(&gone), claim(&resource(&name), LONG));
            async move { gone.acquire_one(&claim).await }
        });
        a_session_waits(server, "gone").await;
        asking.abort();
        drop((asking.await, gone));
        row.batch_execute("COMMIT").await.unwrap();
        let next = match connect(&url).await {
            Ok(next) => next,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                continue;
            }
        };
        match next.acquire_one(&claim(&resource("held"), LONG)).await {
            Ok(Verdict::Blocked(_)) => {}
            Err(error) => {
                assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown), "{error:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    let page = holder.inspect(&Query::One(resource("held"))).await.unwrap().into_snapshots();
    assert_eq!(page[0].holder_count, 1);
}

//! Wake-ups: which waiters are woken, and what they do when no notifications arrive. And how many connections are opened.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use common::{
    LONG, TIME_LIMIT, blocked, claim, client, eventually, granted, in_time, open, queued_claim, release,
    report,
};
use leasehold::{Backend as _, BackendExt as _, Blocked, Claim, Resource};
use leasehold_postgres::Postgres;
use leasehold_testkit::servers::{PgBouncer, PostgresServer};

/// One server for all tests. Each test has its own schema.
fn server() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(PostgresServer::start)
}

fn url(schema: &str) -> String {
    format!("{}?schema={schema}", server().url())
}

fn wait(postgres: &Arc<Postgres>, claim: &Claim, blocked: &Blocked) -> tokio::task::JoinHandle<()> {
    let (postgres, claim, cursor) = (Arc::clone(postgres), claim.reference(), blocked.cursor);
    tokio::spawn(async move { postgres.wait(&claim, &cursor, LONG).await.expect("wait succeeds") })
}

/// Waits until the waiters are registered and the listener is connected: from then on a wake-up must arrive.
async fn waiters_are_registered() {
    tokio::time::sleep(Duration::from_millis(1500)).await;
}

#[tokio::test]
async fn a_release_wakes_the_claim_that_can_be_granted_and_no_other() {
    let postgres = Arc::new(open(&url("queue")).await);
    let ours = claim(&report(), LONG);
    granted(&*postgres, &ours).await;
    let queue: Vec<_> = (0..3).map(|_| queued_claim(&report())).collect();
    let mut waits = Vec::new();
    for claim in &queue {
        let seen = blocked(&*postgres, claim).await;
        waits.push(wait(&postgres, claim, &seen));
    }
    waiters_are_registered().await;
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    release(&*postgres, &ours).await;
    in_time("the wake-up of the first waiter", &mut waits[0]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waits[1].is_finished() && !waits[2].is_finished(), "they cannot be granted yet");
    granted(&*postgres, &queue[0]).await;
}

#[tokio::test]
async fn one_connection_listens_for_any_number_of_resources() {
    let postgres = Arc::new(open(&format!("{}&connections=1", url("many"))).await);
    let (mut holders, mut waits) = (Vec::new(), Vec::new());
    for number in 0..100 {
        let resource: Resource = format!("report/{number}").parse().unwrap();
        let (holder, next) = (claim(&resource, LONG), queued_claim(&resource));
        granted(&*postgres, &holder).await;
        let seen = blocked(&*postgres, &next).await;
        waits.push(wait(&postgres, &next, &seen));
        holders.push(holder);
    }
    waiters_are_registered().await;
    let sessions =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%many.%' AND pid <> pg_backend_pid()";
    assert_eq!(server().sql(sessions), "1", "the second connection only listens");
    for holder in &holders {
        release(&*postgres, holder).await;
    }
    for wait in waits {
        in_time("a wake-up", wait).await.unwrap();
    }
}

#[tokio::test]
async fn all_waiters_ask_again_after_the_connection_was_lost() {
    let server = PostgresServer::start();
    let postgres = Arc::new(open(&server.url()).await);
    let ours = claim(&report(), LONG);
    granted(&*postgres, &ours).await;
    let next = queued_claim(&report());
    let seen = blocked(&*postgres, &next).await;
    let woken = wait(&postgres, &next, &seen);
    waiters_are_registered().await;
    assert!(!woken.is_finished());
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'");
    in_time("the wake-up", woken).await.unwrap();
    // From then on notifications arrive again.
    let seen = blocked(&*postgres, &next).await;
    let woken = wait(&postgres, &next, &seen);
    release(&*postgres, &ours).await;
    in_time("the wake-up", woken).await.unwrap();
    granted(&*postgres, &next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pool_waiters_poll_and_are_granted() {
    let server = PostgresServer::start();
    let pool = PgBouncer::start(&server, 3);
    let url = format!("{}?timeout=1s", pool.url());
    let (ours, theirs) = (client(&url).await, client(&url).await);
    let lease = ours.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let token = lease.token();
    let next = tokio::spawn(theirs.lease("report", "42").wait(TIME_LIMIT).acquire());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!next.is_finished());
    lease.release().await.unwrap();
    let next = in_time("the grant", next).await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
    // The session of a pool outlives its client, so it holds no lock that says that the client listens.
    assert_eq!(server.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), "0");
    // A client that gets no notifications stores no channel.
    assert_eq!(server.sql("SELECT count(*) FROM leasehold.watcher"), "0");
}

#[tokio::test]
async fn connections_are_opened_as_needed_and_no_more_than_allowed() {
    let postgres = Arc::new(open(&format!("{}&connections=4", url("busy"))).await);
    let sessions = || -> u32 {
        let count = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%busy.acquire%' AND pid <> pg_backend_pid()";
        server().sql(count).parse().unwrap()
    };
    for number in 0..20 {
        let resource: Resource = format!("report/{number}").parse().unwrap();
        granted(&*postgres, &claim(&resource, LONG)).await;
    }
    assert_eq!(sessions(), 1, "for one request after the other, one connection is enough");
    let many_at_once = || async {
        let asks: Vec<_> = (0..64)
            .map(|number| {
                let postgres = Arc::clone(&postgres);
                let resource: Resource = format!("report/{number}").parse().unwrap();
                tokio::spawn(async move { postgres.acquire_one(&claim(&resource, LONG)).await.unwrap() })
            })
            .collect();
        for ask in asks {
            ask.await.unwrap();
        }
        sessions() == 4
    };
    eventually("four connections", many_at_once).await;
}

/// The number of the lock that the place at the head says its client holds while it listens, and whether it is held.
fn listener_of_head(schema: &str) -> (String, bool) {
    let head = format!("(SELECT listener FROM {schema}.place ORDER BY arrival LIMIT 1)");
    let held = server().sql(&format!(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND mode = 'ExclusiveLock' \
         AND classid::bigint = {schema}.listener_class() & 4294967295 AND objid::bigint = {head} & 4294967295"
    ));
    (server().sql(&format!("SELECT {head}")), held == "1")
}

#[tokio::test]
async fn a_place_names_the_lock_of_the_listener_while_it_is_held() {
    let postgres = Arc::new(open(&url("locks")).await);
    let ours = claim(&report(), LONG);
    granted(&*postgres, &ours).await;
    let next = queued_claim(&report());
    let seen = blocked(&*postgres, &next).await;
    assert_eq!(listener_of_head("locks").0, "", "nobody listens before the first wait");
    let woken = wait(&postgres, &next, &seen);
    eventually("the place names the lock", || async { listener_of_head("locks").1 }).await;
    let (first, _) = listener_of_head("locks");
    let end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' \
               AND classid::bigint = locks.listener_class() & 4294967295";
    server().sql(end);
    in_time("the wake-up", woken).await.unwrap();
    // The waiter asks at once, and its place does not name a lock that is free.
    let seen = blocked(&*postgres, &next).await;
    let (after, is_held) = listener_of_head("locks");
    assert!(after != first && (after.is_empty() || is_held), "{first} {after}");
    let woken = wait(&postgres, &next, &seen);
    eventually("the place names the next lock", || async {
        listener_of_head("locks").1 || woken.is_finished()
    })
    .await;
}

#[tokio::test]
async fn a_place_whose_listener_is_gone_is_silent_at_once_and_the_next_one_is_called() {
    let postgres = open(&url("gone")).await;
    let ours = claim(&report(), LONG);
    granted(&postgres, &ours).await;
    for _ in 0..4 {
        blocked(&postgres, &queued_claim(&report())).await;
    }
    // Nobody holds the locks 1 and 2.
    server().sql("UPDATE gone.place SET listener = arrival + 1 WHERE arrival < 3");
    let (session, connection) =
        tokio_postgres::connect(&server().url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    session.batch_execute("SELECT pg_advisory_lock(gone.listener_class(), 3)").await.unwrap();
    release(&postgres, &ours).await;
    let states = "SELECT string_agg(CASE WHEN silent THEN 'silent' WHEN called_at IS NOT NULL THEN 'called' ELSE 'waits' END, \
                  ' ' ORDER BY arrival) FROM gone.place";
    assert_eq!(server().sql(states), "silent silent called waits");
    // It was called, and now its client is gone too: any verb notices it.
    session.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    server().sql("UPDATE gone.resource SET look_at = '-infinity'");
    release(&postgres, &ours).await;
    assert_eq!(server().sql(states), "silent silent silent called");
}

//! Wake-ups: who is woken, who is not, and what becomes of them when nothing is heard. And how many connections it takes.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use common::{
    LONG, PATIENCE, blocked, claim, client, eventually, granted, in_time, open, release, report, waiting,
};
use leasehold::{Backend as _, Blocked, Claim, Resource};
use leasehold_postgres::Postgres;
use leasehold_testkit::servers::{PgBouncer, PostgresServer};

/// One for all: each has a schema of its own.
fn server() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(PostgresServer::start)
}

fn url(schema: &str) -> String {
    format!("{}?schema={schema}", server().url())
}

fn wait(postgres: &Arc<Postgres>, claim: &Claim, blocked: &Blocked) -> tokio::task::JoinHandle<()> {
    let (postgres, claim, cursor) = (Arc::clone(postgres), claim.reference(), blocked.cursor);
    tokio::spawn(async move { postgres.wait(&claim, &cursor, LONG).await.expect("wait answers") })
}

/// Whoever waits has left word, or hears already: from then on a wake-up must come by itself.
async fn settled() {
    tokio::time::sleep(Duration::from_millis(1500)).await;
}

#[tokio::test]
async fn a_release_wakes_the_claim_that_can_move_and_no_other() {
    let postgres = Arc::new(open(&url("line")).await);
    let ours = claim(&report(), LONG);
    granted(&*postgres, &ours).await;
    let line: Vec<_> = (0..3).map(|_| waiting(&report())).collect();
    let mut waits = Vec::new();
    for claim in &line {
        let seen = blocked(&*postgres, claim).await;
        waits.push(wait(&postgres, claim, &seen));
    }
    settled().await;
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    release(&*postgres, &ours).await;
    in_time("the first one's wake-up", &mut waits[0]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waits[1].is_finished() && !waits[2].is_finished(), "they cannot move yet");
    granted(&*postgres, &line[0]).await;
}

#[tokio::test]
async fn one_connection_listens_for_any_number_of_resources() {
    let postgres = Arc::new(open(&format!("{}&connections=1", url("many"))).await);
    let (mut holders, mut waits) = (Vec::new(), Vec::new());
    for number in 0..100 {
        let resource: Resource = format!("report/{number}").parse().unwrap();
        let (holder, next) = (claim(&resource, LONG), waiting(&resource));
        granted(&*postgres, &holder).await;
        let seen = blocked(&*postgres, &next).await;
        waits.push(wait(&postgres, &next, &seen));
        holders.push(holder);
    }
    settled().await;
    let sessions =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%many.%' AND pid <> pg_backend_pid()";
    assert_eq!(server().sql(sessions), "1", "one more listens");
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
    let next = waiting(&report());
    let seen = blocked(&*postgres, &next).await;
    let woken = wait(&postgres, &next, &seen);
    settled().await;
    assert!(!woken.is_finished());
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'");
    in_time("the wake-up", woken).await.unwrap();
    // And from then on it hears again.
    let seen = blocked(&*postgres, &next).await;
    let woken = wait(&postgres, &next, &seen);
    release(&*postgres, &ours).await;
    in_time("the wake-up", woken).await.unwrap();
    granted(&*postgres, &next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pool_waiters_poll_and_are_granted_all_the_same() {
    let server = PostgresServer::start();
    let pool = PgBouncer::start(&server, 3);
    let url = format!("{}?timeout=1s", pool.url());
    let (ours, theirs) = (client(&url).await, client(&url).await);
    let lease = ours.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let token = lease.token();
    let next = tokio::spawn(theirs.lease("report", "42").wait(PATIENCE).acquire());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!next.is_finished());
    lease.release().await.unwrap();
    let next = in_time("the grant", next).await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
    // Whoever has found out that it hears nothing leaves no word where to be told.
    assert_eq!(server.sql("SELECT count(*) FROM leasehold.watcher"), "0");
}

#[tokio::test]
async fn connections_are_made_as_they_are_needed_and_no_more_than_told() {
    let postgres = Arc::new(open(&format!("{}&connections=4", url("busy"))).await);
    let sessions = || -> u32 {
        let count = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%busy.acquire%' AND pid <> pg_backend_pid()";
        server().sql(count).parse().unwrap()
    };
    for number in 0..20 {
        let resource: Resource = format!("report/{number}").parse().unwrap();
        granted(&*postgres, &claim(&resource, LONG)).await;
    }
    assert_eq!(sessions(), 1, "one after the other, one is enough");
    let crowd = || async {
        let asks: Vec<_> = (0..64)
            .map(|number| {
                let postgres = Arc::clone(&postgres);
                let resource: Resource = format!("report/{number}").parse().unwrap();
                tokio::spawn(async move { postgres.acquire(&claim(&resource, LONG)).await.unwrap() })
            })
            .collect();
        for ask in asks {
            ask.await.unwrap();
        }
        sessions() == 4
    };
    eventually("four of them", crowd).await;
}

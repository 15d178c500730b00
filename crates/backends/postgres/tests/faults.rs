//! Faults of networks and servers, and how the backend must react.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use common::{LONG, TIME_LIMIT, claim, client, eventually, granted, in_time, open, release, renew, report};
use leasehold::{Backend as _, BackendExt as _, ErrorKind, Released, RenewRequest, Renewal};
use leasehold_testkit::{Proxy, scenarios::NetworkScenario, servers::PostgresServer};

/// One server for all tests that neither kill nor stop it. Each test has its own schema.
fn shared() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(|| PostgresServer::with(&["fsync=off", "track_functions=all"]))
}

/// One connection, which gives up soon.
const IMPATIENT: &str = "timeout=500ms&connections=1";

fn direct(server: &PostgresServer, schema: &str) -> String {
    format!("{}?schema={schema}", server.url())
}

/// The server behind a proxy, with these options of the URL through it.
async fn scenario(server: &PostgresServer, seed: u64, schema: &str, options: &str) -> NetworkScenario {
    let proxy = Proxy::start(server.port(), seed).await;
    let port = proxy.port();
    let through = format!("postgres://postgres@127.0.0.1:{port}/postgres?schema={schema}&{options}");
    let (through, direct) = (open(&through).await, open(&direct(server, schema)).await);
    NetworkScenario { proxy, through: Arc::new(through), direct: Arc::new(direct) }
}

fn holders(server: &PostgresServer, schema: &str) -> String {
    server.sql(&format!("SELECT count(*) FROM {schema}.seat WHERE ends > clock_timestamp()"))
}

fn last_token(server: &PostgresServer, schema: &str) -> String {
    server.sql(&format!("SELECT last FROM {schema}.resource WHERE key = 'report/42'"))
}

#[tokio::test]
async fn a_partition_longer_than_the_ttl_is_a_loss_reported_in_time_and_the_loss_is_final() {
    let server = shared();
    let scenario = scenario(server, 1, "partition", IMPATIENT).await;
    let (lost, next) = scenario.partition_past_the_ttl(Duration::from_secs(3)).await;
    assert_eq!(last_token(server, "partition"), next.token().to_string());
    assert_eq!(lost.release().await.unwrap(), Released::AlreadyGone, "a late release does no harm");
    next.check().unwrap();
    assert_eq!(holders(server, "partition"), "1", "late renewals and releases change nothing");
}

#[tokio::test]
async fn a_lost_reply_has_an_unknown_effect_and_asking_again_returns_the_same_grant() {
    let server = shared();
    let scenario = scenario(server, 2, "lost_reply", IMPATIENT).await;
    let (ours, grant) = scenario.lost_reply(|proxy| proxy.lose_replies(1)).await;
    assert_eq!(holders(server, "lost_reply"), "1");
    assert_eq!(last_token(server, "lost_reply"), grant.token.to_string(), "granted once");
    assert_eq!(release(&*scenario.through, &ours).await, Released::Now);
}

#[tokio::test]
async fn a_request_that_is_executed_after_the_release_of_its_owner_is_refused() {
    let server = shared();
    let scenario = scenario(server, 4, "late", IMPATIENT).await;
    let calls = || -> u64 {
        let calls = "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions \
                     WHERE funcname = 'acquire' AND schemaname = 'late'";
        server.sql(calls).parse().unwrap()
    };
    scenario.late_acquire(None, calls).await;
    assert_eq!(holders(server, "late"), "0", "the tombstone stopped it");
    granted(&*scenario.direct, &claim(&report(), LONG)).await;
}

#[tokio::test]
async fn a_connection_that_breaks_at_any_byte_never_gives_a_wrong_result() {
    let scenario = scenario(shared(), 5, "cut", IMPATIENT).await;
    for cut in scenario.connection_cut_anywhere(&[1, 7, 60, 300]).await {
        cut.assert_unknown_effect();
        cut.assert_released_at_once();
    }
}

#[tokio::test]
async fn a_connection_that_stays_silent_is_replaced() {
    scenario(shared(), 6, "silent", IMPATIENT).await.silent_connection_is_replaced().await;
}

#[tokio::test]
async fn a_slow_network_causes_no_errors() {
    let scenario = scenario(shared(), 7, "slow", "timeout=5s&connections=1").await;
    scenario.slow_network(Duration::from_millis(60)).await;
}

#[tokio::test]
async fn a_stopped_server_causes_a_timeout_and_late_execution_does_no_harm() {
    let server = PostgresServer::start();
    let scenario = scenario(&server, 8, "frozen", "timeout=300ms").await;
    scenario.frozen_server(|| server.freeze(), || server.thaw()).await;
    assert_eq!(holders(&server, "frozen"), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_keeps_every_grant_and_every_token() {
    let server = Arc::new(PostgresServer::durable());
    let client = client(&format!("{}?timeout=1s", server.url())).await;
    let lease = client.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let postgres = open(&server.url()).await;
    let other: leasehold::Resource = "report/43".parse().unwrap();
    let (ours, before) = (claim(&other, LONG), common::token_of(&postgres, &other).await);
    let grant = granted(&postgres, &ours).await;
    assert!(grant.token > before);
    server.kill();
    let error = postgres.acquire_one(&ours).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    server.run_again();
    lease.check().expect("a restart is not a loss");
    eventually("a reply", || async { postgres.acquire_one(&ours).await.is_ok() }).await;
    assert_eq!(granted(&postgres, &ours).await.token, grant.token, "the same grant");
    assert!(matches!(renew(&postgres, ours.reference(), LONG).await, Renewal::Renewed(_)));
    assert_eq!(release(&postgres, &ours).await, Released::Now);
    assert!(common::token_of(&postgres, &other).await > grant.token);
    assert_eq!(lease.release().await.unwrap(), Released::Now);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_stopped_for_longer_than_the_ttl_is_a_loss_reported_in_time() {
    let server = PostgresServer::start();
    let ours = client(&format!("{}?timeout=500ms", server.url())).await;
    let lease = ours.lease("report", "42").ttl(Duration::from_secs(2)).acquire().await.unwrap();
    server.freeze();
    in_time("the loss", lease.ended()).await;
    assert!(lease.check().is_err());
    server.thaw();
    let theirs = client(&server.url()).await;
    let next = theirs.lease("report", "42").wait(TIME_LIMIT).acquire().await.unwrap();
    assert!(next.token() > lease.token());
}

#[tokio::test]
async fn a_session_that_an_administrator_ends_is_replaced() {
    let server = shared();
    let postgres = open(&format!("{}&connections=1", direct(server, "ended"))).await;
    let ours = claim(&report(), LONG);
    granted(&postgres, &ours).await;
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%ended.acquire%' AND pid <> pg_backend_pid()");
    eventually("a reply", || async { postgres.acquire_one(&ours).await.is_ok() }).await;
    assert!(matches!(renew(&postgres, ours.reference(), LONG).await, Renewal::Renewed(_)));
}

#[tokio::test]
async fn many_renewals_and_claims_at_once_do_not_deadlock() {
    let server = shared();
    let postgres = Arc::new(open(&direct(server, "crowd")).await);
    let resources: Vec<leasehold::Resource> =
        (0..40).map(|n| format!("report/{n}").parse().unwrap()).collect();
    let mut held = Vec::new();
    for resource in &resources {
        let ours = claim(resource, LONG);
        granted(&*postgres, &ours).await;
        held.push(RenewRequest::new(ours.reference(), LONG));
    }
    let mut tasks = Vec::new();
    for task in 0..8 {
        let (postgres, mut held) = (Arc::clone(&postgres), held.clone());
        let resources = resources.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..10 {
                held.rotate_left((task * 7 + round) % 40);
                // Some requests have a note, which locks the resource, too.
                let batch: Vec<RenewRequest> = held
                    .iter()
                    .enumerate()
                    .map(
                        |(n, held)| {
                            if n % 3 == task % 3 { held.clone().with_note(*b"x") } else { held.clone() }
                        },
                    )
                    .collect();
                for answer in postgres.renew(&batch).await {
                    assert!(matches!(answer.as_ref().unwrap(), Renewal::Renewed(_)), "{answer:?}");
                }
                let resource = &resources[(task * 5 + round) % 40];
                postgres.acquire_one(&claim(resource, LONG)).await.unwrap();
            }
        }));
    }
    for task in tasks {
        in_time("a task", task).await.unwrap();
    }
    assert_eq!(server.sql("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'"), "0");
}

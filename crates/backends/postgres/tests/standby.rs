//! Standbys: what survives a failover, and what is reported when the effect cannot be known.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::time::{Duration, Instant};

use common::{
    LONG, claim, client, connect, eventually, granted, in_time, kind_and_effect, open, release, renew, report,
};
use leasehold::{
    Backend as _, BackendExt as _, Effect, ErrorKind, Guarantee, ReleaseRequest, Released, Renewal,
};
use leasehold_postgres::Postgres;
use leasehold_testkit::servers::{Daemon, PostgresServer};

/// Uses the backend until it reports this guarantee.
async fn reaches_guarantee(postgres: &Postgres, level: Guarantee, because: &str) {
    eventually(because, || async {
        common::token_of(postgres, &report()).await;
        let info = postgres.info();
        info.guarantee == level && info.because.contains(because)
    })
    .await;
}

fn both(primary: &PostgresServer, standby: &PostgresServer) -> String {
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port(), standby.port());
    format!("postgres://postgres@{hosts}/postgres?timeout=1s")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_and_tokens_survive_a_failover_to_a_synchronous_standby() {
    let primary = PostgresServer::durable();
    let standby = primary.standby(true);
    let postgres = open(&both(&primary, &standby)).await;
    assert_eq!(postgres.info().guarantee, Guarantee::Database, "{}", postgres.info().because);
    assert!(postgres.info().because.contains("synchronous standby"), "{}", postgres.info().because);
    let client = client(&both(&primary, &standby)).await;
    let lease = client.lease("index", "main").ttl(LONG).acquire().await.unwrap();
    let ours = claim(&report(), LONG);
    let grant = granted(&postgres, &ours).await;
    primary.kill();
    standby.promote();
    eventually("a reply of the new primary", || async { postgres.acquire_one(&ours).await.is_ok() }).await;
    assert_eq!(granted(&postgres, &ours).await.token, grant.token, "nothing that was granted is forgotten");
    assert!(matches!(renew(&postgres, ours.reference(), LONG).await, Renewal::Renewed(_)));
    assert_eq!(release(&postgres, &ours).await, Released::Now);
    assert!(granted(&postgres, &claim(&report(), LONG)).await.token > grant.token);
    lease.check().expect("a failover is not a loss");
    assert_eq!(lease.release().await.unwrap(), Released::Now);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_three_servers_a_standby_and_then_the_primary_die_and_no_lease_is_lost() {
    let primary = PostgresServer::durable();
    let (first, second) = (primary.standby(false), primary.standby(true));
    let hosts = [&primary, &first, &second].map(|server| format!("127.0.0.1:{}", server.port())).join(",");
    let url = format!("postgres://postgres@{hosts}/postgres?timeout=1s");
    let (ours, theirs) = (client(&url).await, client(&url).await);
    // Long enough for a failover on a busy machine, and short enough to be outlived.
    let (ttl, taken) = (Duration::from_secs(24), Instant::now());
    let lease = ours.lease("report", "42").ttl(ttl).acquire().await.unwrap();
    let waiting = tokio::spawn(theirs.lease("report", "42").ttl(LONG).wait(LONG).acquire());
    let postgres = open(&url).await;
    let other: leasehold::Resource = "report/43".parse().unwrap();
    let mut last = common::token_of(&postgres, &other).await;
    for fault in ["a standby", "the primary"] {
        if fault == "a standby" {
            first.kill();
        } else {
            primary.kill();
            second.promote();
        }
        let next = claim(&other, LONG);
        eventually("a reply", || async { postgres.acquire_one(&next).await.is_ok() }).await;
        let token = granted(&postgres, &next).await.token;
        assert!(token > last, "tokens grow after the loss of {fault}");
        last = token;
        eventually("a request", || async {
            postgres.release_one(&ReleaseRequest::new(next.reference())).await.is_ok()
        })
        .await;
        lease.check().expect("a failover is not a loss");
        assert!(!waiting.is_finished(), "the waiter was not granted after the loss of {fault}");
    }
    tokio::time::sleep((ttl + Duration::from_secs(2)).saturating_sub(taken.elapsed())).await;
    lease.check().expect("it was renewed at the new primary");
    assert!(!waiting.is_finished());
    let token = lease.token();
    in_time("the release", lease.release()).await.unwrap();
    assert!(in_time("the next grant", waiting).await.unwrap().unwrap().token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_asynchronous_standby_makes_it_best_effort_and_tokens_still_grow() {
    let primary = PostgresServer::durable();
    let standby = primary.standby(false);
    let postgres = open(&both(&primary, &standby)).await;
    assert_eq!(postgres.info().guarantee, Guarantee::BestEffort);
    assert!(postgres.info().because.contains("asynchronous"), "{}", postgres.info().because);
    common::token_of(&postgres, &report()).await;
    eventually("the standby has the tables", || async {
        standby.sql("SELECT to_regclass('leasehold.resource') IS NOT NULL") == "t"
    })
    .await;
    eventually("and what is in them", || async {
        standby.sql("SELECT count(*) FROM leasehold.resource") == "1"
    })
    .await;
    // From here on, the standby does not receive what is granted.
    standby.sql("ALTER SYSTEM SET primary_conninfo = ''");
    standby.sql("SELECT pg_reload_conf()");
    eventually("it receives no more", || async {
        standby.sql("SELECT count(*) FROM pg_stat_wal_receiver") == "0"
    })
    .await;
    let lost = granted(&postgres, &claim(&report(), LONG)).await.token;
    primary.kill();
    standby.promote();
    let again = claim(&report(), LONG);
    eventually("a reply of the new primary", || async { postgres.acquire_one(&again).await.is_ok() }).await;
    // Two clients hold it: that is what best-effort means. The fence admits only the later one.
    assert!(granted(&postgres, &again).await.token > lost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_a_stopped_standby_ends_in_unknown_however_it_ends() {
    let primary = PostgresServer::durable();
    let standby = primary.standby(true);
    let postgres = open(&format!("{}?timeout=1s&connections=1", primary.url())).await;
    common::token_of(&postgres, &report()).await;
    standby.freeze_part("walreceiver");
    let ours = claim(&report(), LONG);
    let error = in_time("the timeout", postgres.acquire_one(&ours)).await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown), "{error:?}");

    // If the wait is cancelled, the server reports success with a warning: it is committed on the primary, and perhaps not on
    // the standby.
    standby.thaw();
    let patient = open(&format!("{}?timeout=20s&connections=1&schema=other", primary.url())).await;
    standby.freeze_part("walreceiver");
    let asking = tokio::spawn(async move { (patient.acquire_one(&claim(&report(), LONG)).await, patient) });
    let waits = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%other.acquire%'";
    eventually("the wait to be cancelled", || async { primary.sql(waits).contains('t') }).await;
    let (answer, patient) = in_time("a reply", asking).await.unwrap();
    let error = answer.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown), "{error:?}");
    assert!(error.to_string().contains("standby"), "{error}");
    assert_eq!(primary.sql("SELECT count(*) FROM other.seat"), "1", "it is committed on the primary");

    standby.thaw();
    eventually("a reply", || async { postgres.acquire_one(&ours).await.is_ok() }).await;
    assert_eq!(release(&postgres, &ours).await, Released::Now);
    drop(patient);
}

#[tokio::test]
async fn a_standby_is_not_taken_for_a_primary() {
    let primary = PostgresServer::start();
    let standby = primary.standby(false);
    let error = connect(&standby.url()).await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::None));
    assert!(error.to_string().contains("standby"), "{error}");
    // In any order of the hosts, the server that takes writes is used.
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", standby.port(), primary.port());
    let postgres = open(&format!("postgres://postgres@{hosts}/postgres")).await;
    granted(&postgres, &claim(&report(), LONG)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guarantee_follows_the_state_of_the_server_while_it_is_used() {
    let primary = PostgresServer::durable();
    let postgres = open(&primary.url()).await;
    reaches_guarantee(&postgres, Guarantee::Database, "no standby").await;
    let standby = primary.standby(false);
    reaches_guarantee(&postgres, Guarantee::BestEffort, "asynchronous").await;
    drop(standby);
    // A new connection reads the state at once: it may lead to another server.
    primary.stop();
    primary.run_again();
    eventually("a reply", || async { postgres.acquire_one(&claim(&report(), LONG)).await.is_ok() }).await;
    assert_eq!(postgres.info().guarantee, Guarantee::Database, "{}", postgres.info().because);
}

#[tokio::test]
async fn a_client_that_only_receives_the_log_is_not_a_standby() {
    let primary = PostgresServer::with(&["wal_level=logical"]);
    let start = |program: &str, args: &[&str]| {
        let port = primary.port().to_string();
        let args = [&["-h", "127.0.0.1", "-p", &port, "-U", "postgres"], args].concat();
        let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        Daemon::start(program, &args, &primary.folder().join(program), None)
    };
    primary.sql("SELECT pg_create_logical_replication_slot('feed', 'test_decoding')");
    let archive = primary.folder().join("archive");
    std::fs::create_dir(&archive).unwrap();
    let _archive = start("pg_receivewal", &["-D", &archive.to_string_lossy()]);
    let _feed = start("pg_recvlogical", &["-d", "postgres", "--slot=feed", "--start", "-f", "-"]);
    eventually("both receive", || async {
        primary.sql("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == "2"
    })
    .await;
    let postgres = open(&primary.url()).await;
    assert!(postgres.info().because.contains("no standby"), "{}", postgres.info().because);
}

//! What is said about the servers themselves.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use common::{client, eventually, in_time};
use leasehold::NodeStatus;
use leasehold_testkit::{
    nodes::{nodes, server_of_another_protocol, until_refused, why},
    servers::PostgresServer,
};

/// `host:port` of a server.
fn place(server: &PostgresServer) -> String {
    format!("127.0.0.1:{}", server.port())
}

fn assert_same_time(node: &NodeStatus) {
    let (theirs, ours) = node.clocks.expect("PostgreSQL tells its time");
    let apart = theirs.as_micros().abs_diff(ours.as_micros());
    assert!(apart < 5_000_000, "{apart} µs: {node:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_is_up_then_mute_then_dead_then_up_again() {
    let server = PostgresServer::start();
    server.require_passwords();
    server.sql("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'hunter2'");
    let client = client(&format!("postgres://app:hunter2@{}/postgres", place(&server))).await;
    let up = nodes(&client).await.remove(0);
    assert_eq!((up.name.clone(), why(&up)), (format!("{}/postgres", place(&server)), "it counts"));
    assert!(up.round_trip.is_some());
    assert_same_time(&up);
    server.freeze();
    let mute = nodes(&client).await.remove(0);
    assert_eq!((why(&mute), mute.round_trip), ("no answer within 1s", None));
    server.thaw();
    server.kill();
    until_refused(&client, 0).await;
    server.run_again();
    assert_eq!(why(&nodes(&client).await[0]), "it counts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_room_for_another_connection_counts() {
    let server = PostgresServer::with(&["max_connections=5", "superuser_reserved_connections=0"]);
    let client = client(&format!("{}?connections=1", server.url())).await;
    let others: Vec<_> = (0..9).map(|_| server.url()).collect();
    let mut held = Vec::new();
    for url in &others {
        held.push(common::connect(url).await);
    }
    assert!(held.iter().any(Result::is_err), "the server is full");
    assert_eq!(why(&nodes(&client).await[0]), "it counts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_no_database_is_named_beside_the_one_that_counts() {
    let server = PostgresServer::start();
    let hosts = format!("{},127.0.0.1:{}", place(&server), server_of_another_protocol().await);
    let client = client(&format!("postgres://postgres@{hosts}/postgres")).await;
    let found = nodes(&client).await;
    assert_eq!((found.len(), why(&found[0])), (2, "it counts"));
    assert!(!found[1].counts && !why(&found[1]).contains('\n'), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_hosts_the_standby_and_the_dead_one_do_not_count() {
    let primary = PostgresServer::durable();
    let standby = primary.standby(false);
    let hosts = format!("{},{},127.0.0.1:1", place(&primary), place(&standby));
    let client = client(&format!("postgres://postgres@{hosts}/postgres")).await;
    let found = nodes(&client).await;
    let names: Vec<_> = found.iter().map(|node| node.name.clone()).collect();
    let expected = [place(&primary), place(&standby), "127.0.0.1:1".to_owned()];
    assert_eq!(names, expected.map(|place| format!("{place}/postgres")));
    assert_eq!(why(&found[0]), "it counts");
    assert_eq!(why(&found[1]), "it is a standby, in recovery: it takes no writes");
    assert!(why(&found[2]).contains("connection refused"), "{found:?}");
    let standing_by: Vec<_> = found.iter().map(|node| node.stands_by).collect();
    assert_eq!(standing_by, [false, true, false], "a standby is no fault, a dead host is one");
    found[..2].iter().for_each(assert_same_time);
    primary.freeze();
    let frozen = nodes(&client).await;
    assert_eq!(why(&frozen[0]), "no answer within 1s");
    primary.thaw();
    primary.kill();
    standby.promote();
    eventually("the new primary counts", || async {
        let found = nodes(&client).await;
        found[1].counts && !found[0].counts
    })
    .await;
    let lease = in_time("a grant", client.lease("report", "42").acquire()).await.expect("it takes writes");
    lease.release().await.expect("it takes writes");
}

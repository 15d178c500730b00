//! Replies that reach the wrong request (ADR 0033), and the gRPC proxy of etcd.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold::{Backend, BackendExt as _, Released, Renewal};
use leasehold_testkit::{misdelivery, servers::EtcdCluster};

use crate::common::{LONG, TIMEOUT, blocked, claim, client, granted, in_time, open, release, renew, report};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_to_another_request_is_never_accepted() {
    let cluster = EtcdCluster::start(1);
    misdelivery::check(cluster.ports()[0], |port| async move {
        let etcd = open(&format!("etcd://127.0.0.1:{port}?timeout=1s&connect_timeout=1s")).await;
        Arc::new(etcd) as Arc<dyn Backend>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_of_another_cluster_are_not_accepted() {
    let (ours, other) = (EtcdCluster::start(1), EtcdCluster::start(1));
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", ours.ports()[0], other.ports()[0]);
    let etcd = open(&format!("etcd://{hosts}?timeout=1s&connect_timeout=1s")).await;
    let held = claim(&report(), LONG);
    granted(&etcd, &held).await;
    tokio::task::block_in_place(|| ours.kill(0));
    let next = claim(&"report/43".parse().unwrap(), LONG);
    let mut errors = String::new();
    for _ in 0..4 {
        errors += &etcd.acquire_one(&next).await.expect_err("no member of the cluster replies").to_string();
    }
    assert!(errors.contains("another etcd cluster"), "{errors}");
    let renewed = etcd.renew(&[leasehold::RenewRequest::new(held.reference(), LONG)]).await.remove(0);
    assert!(renewed.is_err(), "that the claim is gone is not accepted either: {renewed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_verbs_work_through_the_grpc_proxy() {
    let cluster = EtcdCluster::start(1);
    let proxy = cluster.grpc_proxy();
    let url = format!("etcd://127.0.0.1:{}", proxy.port());
    let (etcd, other) = (open(&url).await, Arc::new(open(&url).await));
    let ours = claim(&report(), LONG);
    let token = granted(&etcd, &ours).await.token;
    blocked(&*other, &claim(&report(), LONG)).await;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let kept = renew(&etcd, ours.reference(), LONG).await;
        assert!(matches!(&kept, Renewal::Renewed(kept) if kept.token == token), "{kept:?}");
    }
    assert_eq!(release(&etcd, &ours).await, Released::Now);
    assert_eq!(release(&etcd, &ours).await, Released::AlreadyGone);

    // A wait ends with a wake-up, and not with its time limit.
    let mut waited = Duration::ZERO;
    for round in 0..5 {
        let resource = format!("report/5{round}").parse().unwrap();
        let (holder, waiter) = (claim(&resource, LONG), claim(&resource, LONG).queued());
        granted(&etcd, &holder).await;
        let cursor = blocked(&*other, &waiter).await.cursor;
        let (reference, waiting) = (waiter.reference(), Arc::clone(&other));
        let waiting = tokio::spawn(async move { waiting.wait(&reference, &cursor, LONG).await });
        tokio::time::sleep(Duration::from_millis(200)).await;
        release(&etcd, &holder).await;
        let released = Instant::now();
        in_time("the wake-up", waiting).await.unwrap().unwrap();
        waited += released.elapsed();
        granted(&*other, &waiter).await;
        release(&*other, &waiter).await;
    }

    println!("five wake-ups took {waited:?}");
    assert!(waited < Duration::from_secs(8), "five wake-ups took {waited:?}");

    // The engine, for longer than the ttl.
    let (holds, waits) = (client(&url).await, client(&url).await);
    let lease = holds.lease("report", "44").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let waiting = tokio::spawn(waits.lease("report", "44").wait(TIMEOUT).acquire());
    tokio::time::sleep(Duration::from_secs(5)).await;
    lease.check().unwrap();
    assert!(!waiting.is_finished());
    let before = lease.token();
    lease.release().await.unwrap();
    let next = in_time("the waiter's grant", waiting).await.unwrap().unwrap();
    assert!(next.token() > before);
    next.release().await.unwrap();
}

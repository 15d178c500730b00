//! `etcdctl lock` and leasehold wait in the same queue.

use std::{
    io::Read as _,
    path::PathBuf,
    process::{Child, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use leasehold::Backend;
use leasehold_testkit::servers::EtcdCluster;

use crate::common::{
    LOCK, LONG, TIMEOUT, blocked, claim, client, eventually, field, grant_minute_lease, granted, in_time,
    open, release, report,
};

/// A process `etcdctl lock` that holds the lock until a file is deleted. It prints `held` when it holds.
struct EtcdctlLock(Child, PathBuf);

impl EtcdctlLock {
    fn start(cluster: &EtcdCluster) -> EtcdctlLock {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let file = cluster.folder().join(format!("held-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        std::fs::write(&file, "").expect("a file can be written");
        let script = format!("echo held; while [ -e {} ]; do sleep 0.05; done", file.display());
        let mut command = cluster.command(&["lock", "--", LOCK, "sh", "-c", &script]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        EtcdctlLock(child.expect("etcdctl is installed (package etcd-client)"), file)
    }

    /// Waits until it holds the lock.
    async fn holds(&mut self) {
        let mut output = self.0.stdout.take().expect("piped");
        let output = tokio::task::spawn_blocking(move || {
            let mut bytes = [0; 5];
            output.read_exact(&mut bytes).map(|()| (bytes, output))
        });
        let (bytes, output) =
            in_time("the lock of etcdctl", output).await.unwrap().expect("it prints that it holds");
        assert_eq!(&bytes, b"held\n");
        self.0.stdout = Some(output);
    }

    /// Ends the command, and with it the lock.
    fn end(mut self) {
        std::fs::remove_file(&self.1).expect("the file exists");
        assert!(self.0.wait().expect("it ends").success());
    }
}

async fn await_contenders(cluster: &EtcdCluster, count: usize) {
    eventually("all contenders are in the queue", || async {
        cluster.keys(&format!("{LOCK}/")).len() == count
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_waits_for_us() {
    let cluster = EtcdCluster::start(1);
    let leases = client(&cluster.url()).await;
    let lease = leases.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let mut lock = EtcdctlLock::start(&cluster);
    await_contenders(&cluster, 2).await;
    lease.check().unwrap();
    assert!(lock.0.try_wait().unwrap().is_none());
    lease.release().await.unwrap();
    lock.holds().await;
    lock.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn we_wait_for_etcdctl_and_report_a_lock_of_another_program() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let mut lock = EtcdctlLock::start(&cluster);
    lock.holds().await;
    let seen = blocked(&etcd, &claim(&report(), LONG)).await;
    let foreign = &seen.holders[0];
    assert!(foreign.holder.label.contains("another program"), "{foreign:?}");
    let leases = client(&cluster.url()).await;
    let waiting = tokio::spawn(leases.lease("report", "42").ttl(LONG).wait(TIMEOUT).acquire());
    await_contenders(&cluster, 2).await;
    assert!(!waiting.is_finished());
    lock.end();
    let lease = in_time("our grant", waiting).await.unwrap().unwrap();
    assert!(lease.token() > foreign.token, "our token is above the one of etcdctl");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_are_granted_in_the_order_in_which_they_came() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let (ours, ours_too) = (claim(&report(), LONG).queued(), claim(&report(), LONG).queued());
    let mut first = EtcdctlLock::start(&cluster);
    first.holds().await;
    assert_eq!(blocked(&etcd, &ours).await.ahead, 0);
    let mut third = EtcdctlLock::start(&cluster);
    await_contenders(&cluster, 3).await;
    assert_eq!(blocked(&etcd, &ours_too).await.ahead, 2);

    first.end();
    assert!(third.0.try_wait().unwrap().is_none());
    let token = granted(&etcd, &ours).await.token;
    blocked(&etcd, &ours_too).await;
    release(&etcd, &ours).await;
    third.holds().await;
    assert_eq!(blocked(&etcd, &ours_too).await.ahead, 0, "etcdctl is ahead, and holds");
    third.end();
    assert!(granted(&etcd, &ours_too).await.token > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_not_handed_over_past_a_waiting_etcdctl() {
    let cluster = EtcdCluster::start(1);
    let leases = client(&cluster.url()).await;
    let lease = leases.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let mut lock = EtcdctlLock::start(&cluster);
    await_contenders(&cluster, 2).await;
    let next = tokio::spawn(leases.lease("report", "42").ttl(LONG).wait(TIMEOUT).acquire());
    tokio::task::yield_now().await;
    lease.release().await.unwrap();
    lock.holds().await;
    assert!(!next.is_finished(), "etcdctl came first");
    lock.end();
    let lease = in_time("our grant", next).await.unwrap().unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_claim_is_one_key_in_the_layout_of_etcd_and_its_value_names_the_holder() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let ours = claim(&report(), LONG);
    let token = granted(&etcd, &ours).await.token;
    let keys = cluster.keys("leasehold/");
    assert!(keys.len() == 1 && keys[0].starts_with(&format!("{LOCK}/")), "one key for a claim: {keys:?}");
    assert_ne!(field(&cluster, &keys[0], "Lease"), "0", "the key has a lease");
    assert_eq!(
        field(&cluster, &keys[0], "CreateRevision"),
        token.to_string(),
        "the token is the creation revision"
    );
    assert!(field(&cluster, &keys[0], "Value").contains("1@host test"));
    assert!(
        !cluster.etcdctl(&["get", "--prefix", "leasehold/"]).contains(&ours.owner.reveal()),
        "the owner token is not stored"
    );
    let etcd: &dyn Backend = &etcd;
    release(etcd, &ours).await;
    assert_eq!(cluster.keys("leasehold/"), Vec::<String>::new(), "nothing is left");
}

#[tokio::test]
async fn a_foreign_lock_far_back_in_the_queue_does_not_keep_claims_from_queueing() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    granted(&etcd, &claim(&report(), LONG)).await;
    let queues = async || blocked(&etcd, &claim(&report(), LONG).queued()).await.queued;
    for _ in 0..70 {
        assert!(queues().await);
    }
    let lease = grant_minute_lease(&cluster);
    cluster.etcdctl(&["put", &format!("--lease={lease}"), &format!("{LOCK}/{lease}"), ""]);
    assert!(queues().await, "behind a foreign lock that is not read with the head of the queue");
}

//! `etcdctl lock` and leasehold wait in the same queue.

use std::{
    io::Read as _,
    path::PathBuf,
    process::{Child, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use leasehold::{
    Backend, CommandOutcome, Error, Eviction, Listing, OperatorAction, OperatorCommand, Query, Snapshot,
};
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
    let foreign = seen.foreign.expect("the lock of etcdctl holds");
    assert!(seen.holders.is_empty(), "it has no token, and nothing is known of its process");
    assert!(foreign.key.starts_with(&format!("{LOCK}/")) && foreign.form == "etcd lock", "{foreign:?}");
    assert!(foreign.remaining.is_some_and(|left| left <= LONG), "its etcd lease ends: {foreign:?}");
    let created: u64 = field(&cluster, &foreign.key, "CreateRevision").parse().unwrap();
    let leases = client(&cluster.url()).await;
    let waiting = tokio::spawn(leases.lease("report", "42").ttl(LONG).wait(TIMEOUT).acquire());
    await_contenders(&cluster, 2).await;
    assert!(!waiting.is_finished());
    lock.end();
    let lease = in_time("our grant", waiting).await.unwrap().unwrap();
    assert!(lease.token().get() > created, "our token is above the revision of etcdctl's key");
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

/// Puts the key of a lock of another program, with this value. Returns the key.
fn put_foreign_lock(cluster: &EtcdCluster, value: &str) -> String {
    let lease = grant_minute_lease(cluster);
    let key = format!("{LOCK}/{lease}");
    cluster.etcdctl(&["put", &format!("--lease={lease}"), &key, value]);
    key
}

async fn order(etcd: &dyn Backend, action: OperatorAction) -> Result<CommandOutcome, Error> {
    etcd.order(&OperatorCommand::new(report(), action, "ops", "stuck")).await
}

async fn snapshot(etcd: &dyn Backend) -> Snapshot {
    let page = etcd.inspect(&Query::One(report())).await.expect("the server answers");
    page.into_snapshots().remove(0)
}

#[tokio::test]
async fn the_value_of_a_foreign_lock_is_shown_nowhere() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let (holding, _waiting) = (put_foreign_lock(&cluster, "s3cret"), put_foreign_lock(&cluster, "s3cret"));
    let blocked = blocked(&etcd, &claim(&report(), LONG)).await;
    let seen = snapshot(&etcd).await;
    assert!(!format!("{blocked:?} {seen:?}").contains("s3cret"), "{blocked:?} {seen:?}");
    assert_eq!((seen.holder_count, seen.foreign.len(), seen.queue_length), (0, 1, 1));
    assert_eq!(seen.foreign[0].key, holding);
    assert!(seen.queue[0].foreign, "{seen:?}");
    assert_eq!(seen.queue[0].holder.label, "foreign (etcd lock)");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_touches_the_lock_of_etcdctl_only_by_its_hash() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let mut lock = EtcdctlLock::start(&cluster);
    lock.holds().await;
    let foreign = snapshot(&etcd).await.foreign.remove(0);
    let stored = || ["ModRevision", "Lease", "Value"].map(|name| field(&cluster, &foreign.key, name));
    let before = stored();
    let changed = CommandOutcome::HolderChanged { token: None };
    let within = TIMEOUT;
    for action in [
        OperatorAction::Ask { within },
        OperatorAction::Evict(Eviction::AtExpiry),
        OperatorAction::Evict(Eviction::Now),
        OperatorAction::EvictForeign { value: "0123456789abcdef".parse().unwrap() },
    ] {
        assert_eq!(order(&etcd, action).await.unwrap(), changed, "{action:?}");
    }
    assert_eq!(stored(), before, "its key and its lease are as they were");
    assert_eq!(order(&etcd, OperatorAction::Pause { lasting: LONG }).await.unwrap(), CommandOutcome::Done);
    assert_eq!(order(&etcd, OperatorAction::Resume).await.unwrap(), CommandOutcome::Done);

    let leases = client(&cluster.url()).await;
    let waiting = tokio::spawn(leases.lease("report", "42").ttl(LONG).wait(TIMEOUT).acquire());
    await_contenders(&cluster, 2).await;
    let evict = OperatorAction::EvictForeign { value: foreign.value_hash };
    assert_eq!(order(&etcd, evict).await.unwrap(), CommandOutcome::Done);
    let lease = in_time("our grant", waiting).await.unwrap().unwrap();
    let token = Some(lease.token());
    assert_eq!(order(&etcd, evict).await.unwrap(), CommandOutcome::HolderChanged { token });
    let page = etcd.inspect(&Query::Audit(Listing::of("report/"))).await.unwrap();
    let records: Vec<_> =
        page.into_records().into_iter().map(|record| (record.command, record.done)).collect();
    assert_eq!(records[..2], [("evict-foreign".to_owned(), false), ("evict-foreign".to_owned(), true)]);
    lock.end();
}

#[tokio::test]
async fn a_claim_of_a_newer_version_does_not_hide_the_other_resources() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    granted(&etcd, &claim(&report(), LONG)).await;
    cluster.etcdctl(&["put", "leasehold/v1/lock/report/41/00", r#"00000001 {"v":9}"#]);
    let page = etcd.inspect(&Query::Resources(Listing::of("report/"))).await.unwrap();
    let seen = page.into_snapshots();
    assert_eq!(seen.len(), 2);
    let why = seen[0].unreadable.as_deref().expect("report/41 cannot be read");
    assert!(why.contains("leasehold/v1/lock/report/41/00") && why.contains("newer version"), "{why}");
    assert_eq!(seen[1].holder_count, 1);
    let alone = etcd.inspect(&Query::One("report/41".parse().unwrap())).await.unwrap_err();
    assert_eq!(alone.kind(), leasehold::ErrorKind::Corrupt);
}

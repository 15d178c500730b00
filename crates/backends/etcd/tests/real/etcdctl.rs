//! `etcdctl lock` stands in the same line.

use std::{
    io::Read as _,
    path::PathBuf,
    process::{Child, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use leasehold::Backend;
use leasehold_testkit::servers::EtcdCluster;

use crate::common::{
    LOCK, LONG, PATIENCE, blocked, claim, client, eventually, field, granted, in_time, lease_of_a_minute,
    open, release, report,
};

/// A lock of `etcdctl`, held until a file is gone. It says `held` when it holds.
struct Ctl(Child, PathBuf);

impl Ctl {
    fn start(cluster: &EtcdCluster) -> Ctl {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let file = cluster.folder().join(format!("held-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        std::fs::write(&file, "").expect("a file can be written");
        let script = format!("echo held; while [ -e {} ]; do sleep 0.05; done", file.display());
        let mut command = cluster.command(&["lock", "--", LOCK, "sh", "-c", &script]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        Ctl(child.expect("etcdctl is of the package etcd-client"), file)
    }

    /// Waits until it holds.
    async fn holds(&mut self) {
        let mut output = self.0.stdout.take().expect("piped");
        let said = tokio::task::spawn_blocking(move || {
            let mut bytes = [0; 5];
            output.read_exact(&mut bytes).map(|()| (bytes, output))
        });
        let (bytes, output) = in_time("etcdctl's turn", said).await.unwrap().expect("it says that it holds");
        assert_eq!(&bytes, b"held\n");
        self.0.stdout = Some(output);
    }

    /// Ends the command, and with it the lock.
    fn end(mut self) {
        std::fs::remove_file(&self.1).expect("it is there");
        assert!(self.0.wait().expect("it ends").success());
    }
}

async fn contenders(cluster: &EtcdCluster, count: usize) {
    eventually("they stand in line", || async { cluster.keys(&format!("{LOCK}/")).len() == count }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_waits_for_us() {
    let cluster = EtcdCluster::start(1);
    let leases = client(&cluster.url()).await;
    let lease = leases.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let mut theirs = Ctl::start(&cluster);
    contenders(&cluster, 2).await;
    lease.check().unwrap();
    assert!(theirs.0.try_wait().unwrap().is_none());
    lease.release().await.unwrap();
    theirs.holds().await;
    theirs.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn we_wait_for_etcdctl_and_say_that_a_stranger_holds_it() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let mut theirs = Ctl::start(&cluster);
    theirs.holds().await;
    let seen = blocked(&etcd, &claim(&report(), LONG)).await;
    let stranger = &seen.holders[0];
    assert!(stranger.holder.label.contains("another program"), "{stranger:?}");
    let leases = client(&cluster.url()).await;
    let waiting = tokio::spawn(leases.lease("report", "42").ttl(LONG).wait(PATIENCE).acquire());
    contenders(&cluster, 2).await;
    assert!(!waiting.is_finished());
    theirs.end();
    let lease = in_time("our turn", waiting).await.unwrap().unwrap();
    assert!(lease.token() > stranger.token, "its token is above theirs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_are_served_in_the_order_in_which_they_came() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let (ours, ours_too) = (claim(&report(), LONG).queued(), claim(&report(), LONG).queued());
    let mut first = Ctl::start(&cluster);
    first.holds().await;
    assert_eq!(blocked(&etcd, &ours).await.ahead, 0);
    let mut third = Ctl::start(&cluster);
    contenders(&cluster, 3).await;
    assert_eq!(blocked(&etcd, &ours_too).await.ahead, 2);

    first.end();
    assert!(third.0.try_wait().unwrap().is_none());
    let token = granted(&etcd, &ours).await.token;
    blocked(&etcd, &ours_too).await;
    release(&etcd, &ours).await;
    third.holds().await;
    assert_eq!(blocked(&etcd, &ours_too).await.ahead, 0, "a stranger is ahead, and holds");
    third.end();
    assert!(granted(&etcd, &ours_too).await.token > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seat_is_not_handed_on_past_a_stranger_who_waits() {
    let cluster = EtcdCluster::start(1);
    let leases = client(&cluster.url()).await;
    let lease = leases.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let mut theirs = Ctl::start(&cluster);
    contenders(&cluster, 2).await;
    let next = tokio::spawn(leases.lease("report", "42").ttl(LONG).wait(PATIENCE).acquire());
    tokio::task::yield_now().await;
    lease.release().await.unwrap();
    theirs.holds().await;
    assert!(!next.is_finished(), "the stranger came before");
    theirs.end();
    let lease = in_time("our turn", next).await.unwrap().unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn the_layout_is_etcds_own_and_the_value_says_who_for_people() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let ours = claim(&report(), LONG);
    let token = granted(&etcd, &ours).await.token;
    let keys = cluster.keys("leasehold/");
    assert!(keys.len() == 1 && keys[0].starts_with(&format!("{LOCK}/")), "one key for a claim: {keys:?}");
    assert_ne!(field(&cluster, &keys[0], "Lease"), "0", "it ends by itself");
    assert_eq!(
        field(&cluster, &keys[0], "CreateRevision"),
        token.to_string(),
        "the token is the creation revision"
    );
    assert!(field(&cluster, &keys[0], "Value").contains("1@host test"));
    assert!(
        !cluster.etcdctl(&["get", "--prefix", "leasehold/"]).contains(&ours.owner.reveal()),
        "no capability"
    );
    let etcd: &dyn Backend = &etcd;
    release(etcd, &ours).await;
    assert_eq!(cluster.keys("leasehold/"), Vec::<String>::new(), "nothing is left");
}

#[tokio::test]
async fn a_stranger_far_behind_does_not_keep_others_from_the_line() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    granted(&etcd, &claim(&report(), LONG)).await;
    let place = async || blocked(&etcd, &claim(&report(), LONG).queued()).await.queued;
    for _ in 0..70 {
        assert!(place().await);
    }
    let lease = lease_of_a_minute(&cluster);
    cluster.etcdctl(&["put", &format!("--lease={lease}"), &format!("{LOCK}/{lease}"), ""]);
    assert!(place().await, "behind a stranger whom it does not see from the head of the line");
}

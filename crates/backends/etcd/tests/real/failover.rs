//! Failover times: how long etcd itself needs after the loss of a member until a bare client can write again,
//! and how much this client adds. Each test prints a timeline.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold::{Client, Lease};
use leasehold_testkit::servers::EtcdCluster;
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use crate::common::{LONG, TIMEOUT, client, in_time};

/// How much later than the first write of a bare client our next grant may come, on a loaded machine.
const ADDED_MAX: Duration = Duration::from_secs(3);
/// A grant this soon after the loss may have been decided before it.
const DECIDED_BEFORE: Duration = Duration::from_millis(50);

/// Writes with bare clients, each over its own connection to one of these members. Returns how long after the
/// loss the first write succeeded.
async fn first_write(ports: &[u16], lost_at: Instant) -> Duration {
    let mut attempts = JoinSet::new();
    let mut next = tokio::time::interval(Duration::from_millis(50));
    loop {
        tokio::select! {
            Some(written) = attempts.join_next(), if !attempts.is_empty() => {
                if let Ok(true) = written {
                    return lost_at.elapsed();
                }
            }
            _ = next.tick() => {
                assert!(lost_at.elapsed() < TIMEOUT, "etcd does not accept writes");
                for &port in ports {
                    attempts.spawn(async move {
                        let opened = etcd_client::Client::connect([format!("127.0.0.1:{port}")], None).await;
                        let Ok(mut bare) = opened else { return false };
                        let put = tokio::time::timeout(TIMEOUT, bare.put("probe", "1", None)).await;
                        matches!(put, Ok(Ok(_)))
                    });
                }
            }
        }
    }
}

/// Acquires and releases until the member is lost. Returns how long after the loss the next grant came.
async fn first_grant(leases: Client, id: String, lost_at: watch::Receiver<Option<Instant>>) -> Duration {
    let lost_for = || lost_at.borrow().map(|lost_at| lost_at.elapsed());
    loop {
        match leases.lease("free", &id).wait(TIMEOUT).acquire().await {
            Ok(lease) => {
                if let Some(since) = lost_for().filter(|since| *since > DECIDED_BEFORE) {
                    return since;
                }
                let _ = lease.release().await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) => println!("  {id}: after {:?}: {error}", lost_for()),
        }
    }
}

/// The URL of all members with this one first: a client begins with the first.
fn url(cluster: &EtcdCluster, first: usize) -> String {
    let mut ports = cluster.ports();
    ports.rotate_left(first);
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("etcd://{}", hosts.join(","))
}

/// A lease that is held, and another client that waits for it.
struct HeldAndWaiting {
    lease: Lease,
    waiting: JoinHandle<leasehold::Result<Lease>>,
}

impl HeldAndWaiting {
    /// Both clients use this member first.
    async fn begin(cluster: &EtcdCluster, kind: &str, member: usize) -> HeldAndWaiting {
        let (via, id) = (url(cluster, member), member.to_string());
        let (ours, waiter) = (client(&via).await, client(&via).await);
        let lease = ours.lease(kind, &id).ttl(Duration::from_secs(8)).acquire().await.unwrap();
        let waiting = tokio::spawn(waiter.lease(kind, &id).ttl(LONG).wait(LONG).acquire());
        HeldAndWaiting { lease, waiting }
    }

    /// Releases the lease. Returns how long that took, and after how long the waiter was granted.
    async fn release(self) -> (Duration, Duration) {
        self.lease.check().expect("a failover within the ttl does not lose the lease");
        let began = Instant::now();
        // A release without a reply is an error here, and is repeated in the background.
        let _ = in_time("the release", self.lease.release()).await;
        let released = began.elapsed();
        let next = in_time("the waiter's grant", self.waiting).await.unwrap().unwrap();
        let granted = began.elapsed();
        next.release().await.unwrap();
        (released, granted)
    }
}

/// Loses a member while clients of each member acquire, hold and wait, and prints when each of them was
/// served.
async fn lose(how: impl FnOnce(&EtcdCluster, usize), choose: impl FnOnce(&EtcdCluster) -> usize) {
    let cluster = Arc::new(tokio::task::spawn_blocking(|| EtcdCluster::start(3)).await.unwrap());
    let gone = tokio::task::block_in_place(|| choose(&cluster));
    let (set_lost_at, lost_at) = watch::channel(None);
    let (mut asking, mut early, mut late) = (Vec::new(), Vec::new(), Vec::new());
    for member in 0..3 {
        let via = url(&cluster, member);
        asking.push(tokio::spawn(first_grant(client(&via).await, member.to_string(), lost_at.clone())));
        early.push(HeldAndWaiting::begin(&cluster, "early", member).await);
        late.push(HeldAndWaiting::begin(&cluster, "late", member).await);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    tokio::task::block_in_place(|| how(&cluster, gone));
    let lost = Instant::now();
    set_lost_at.send_replace(Some(lost));
    let early: Vec<_> = early.into_iter().map(|held| tokio::spawn(held.release())).collect();
    let ports = cluster.ports();
    let left: Vec<u16> = (0..3).filter(|member| *member != gone).map(|member| ports[member]).collect();
    let etcd_needed = first_write(&left, lost).await;
    println!("a bare client wrote after {etcd_needed:?}");
    let mut worst = Duration::ZERO;
    for (member, (asking, early)) in asking.into_iter().zip(early).enumerate() {
        let by = if member == gone { "the lost member" } else { "another member" };
        let ours = in_time("a grant", asking).await.unwrap();
        let (released, granted) = early.await.unwrap();
        println!(
            "via {by}: free resource granted {ours:?}; lease released {released:?}, waiter granted {granted:?}"
        );
        worst = worst.max(ours.max(granted).saturating_sub(etcd_needed));
    }
    for held in late {
        let (released, granted) = held.release().await;
        println!("afterwards: lease released {released:?}, waiter granted {granted:?}");
        worst = worst.max(granted);
    }
    assert!(worst < ADDED_MAX, "a grant came {worst:?} after etcd could write again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_leader_is_killed_a_grant_comes_when_etcd_can_write_again() {
    lose(EtcdCluster::kill, EtcdCluster::leader).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_follower_is_killed_a_grant_comes_at_once() {
    lose(EtcdCluster::kill, |cluster| (cluster.leader() + 1) % 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_leader_hangs_another_member_is_used() {
    lose(EtcdCluster::freeze, EtcdCluster::leader).await;
}

//! After the loss of a member: what etcd itself needs until a bare client can write again, and what this client adds to
//! that. Each test prints a timeline.

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

use crate::common::{LONG, PATIENCE, client, in_time};

/// How much later than etcd could this client may grant, on a loaded machine.
const OURS_MAX: Duration = Duration::from_secs(3);
/// A grant this soon after the death may have been answered before it.
const BEFORE: Duration = Duration::from_millis(50);

/// Writes by bare clients, each over a connection of its own to one of these members; when the first one was written.
async fn first_write(ports: &[u16], death: Instant) -> Duration {
    let mut attempts = JoinSet::new();
    let mut next = tokio::time::interval(Duration::from_millis(50));
    loop {
        tokio::select! {
            Some(written) = attempts.join_next(), if !attempts.is_empty() => {
                if let Ok(true) = written {
                    return death.elapsed();
                }
            }
            _ = next.tick() => {
                assert!(death.elapsed() < PATIENCE, "etcd does not serve");
                for &port in ports {
                    attempts.spawn(async move {
                        let opened = etcd_client::Client::connect([format!("127.0.0.1:{port}")], None).await;
                        let Ok(mut bare) = opened else { return false };
                        let put = tokio::time::timeout(PATIENCE, bare.put("probe", "1", None)).await;
                        matches!(put, Ok(Ok(_)))
                    });
                }
            }
        }
    }
}

/// Acquires and releases until the member is dead; when the next grant came, from its death.
async fn grants(leases: Client, id: String, death: watch::Receiver<Option<Instant>>) -> Duration {
    let dead_for = || death.borrow().map(|death| death.elapsed());
    loop {
        match leases.lease("free", &id).wait(PATIENCE).acquire().await {
            Ok(lease) => {
                if let Some(since) = dead_for().filter(|since| *since > BEFORE) {
                    return since;
                }
                let _ = lease.release().await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) => println!("  {id}: after {:?}: {error}", dead_for()),
        }
    }
}

/// The URL of all members, with this one first: a client begins with that.
fn url(cluster: &EtcdCluster, first: usize) -> String {
    let mut ports = cluster.ports();
    ports.rotate_left(first);
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("etcd://{}", hosts.join(","))
}

/// Something that is held, and another client that waits for it.
struct Held {
    lease: Lease,
    waiting: JoinHandle<leasehold::Result<Lease>>,
}

impl Held {
    /// Both by this member first.
    async fn begin(cluster: &EtcdCluster, kind: &str, member: usize) -> Held {
        let (via, id) = (url(cluster, member), member.to_string());
        let (ours, theirs) = (client(&via).await, client(&via).await);
        let lease = ours.lease(kind, &id).ttl(Duration::from_secs(8)).acquire().await.unwrap();
        let waiting = tokio::spawn(theirs.lease(kind, &id).ttl(LONG).wait(LONG).acquire());
        Held { lease, waiting }
    }

    /// Releases it; how long that took, and when the other one was granted.
    async fn pass_on(self) -> (Duration, Duration) {
        self.lease.check().expect("a failover within the ttl is no loss");
        let began = Instant::now();
        // One that goes unanswered is an error here, and is repeated in the background.
        let _ = in_time("the release", self.lease.release()).await;
        let released = began.elapsed();
        let next = in_time("the waiter's grant", self.waiting).await.unwrap().unwrap();
        let granted = began.elapsed();
        next.release().await.unwrap();
        (released, granted)
    }
}

/// Kills a member, or has it end otherwise, while clients of each member ask, hold and wait; prints who had what when.
async fn lose(end: impl FnOnce(&EtcdCluster, usize), gone: impl FnOnce(&EtcdCluster) -> usize) {
    let cluster = Arc::new(tokio::task::spawn_blocking(|| EtcdCluster::start(3)).await.unwrap());
    let gone = tokio::task::block_in_place(|| gone(&cluster));
    let (tell, death) = watch::channel(None);
    let (mut asking, mut early, mut late) = (Vec::new(), Vec::new(), Vec::new());
    for member in 0..3 {
        let via = url(&cluster, member);
        asking.push(tokio::spawn(grants(client(&via).await, member.to_string(), death.clone())));
        early.push(Held::begin(&cluster, "early", member).await);
        late.push(Held::begin(&cluster, "late", member).await);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    tokio::task::block_in_place(|| end(&cluster, gone));
    let killed = Instant::now();
    tell.send_replace(Some(killed));
    let early: Vec<_> = early.into_iter().map(|held| tokio::spawn(held.pass_on())).collect();
    let ports = cluster.ports();
    let left: Vec<u16> = (0..3).filter(|member| *member != gone).map(|member| ports[member]).collect();
    let of_etcd = first_write(&left, killed).await;
    println!("a bare client wrote after {of_etcd:?}");
    let mut worst = Duration::ZERO;
    for (member, (asking, early)) in asking.into_iter().zip(early).enumerate() {
        let by = if member == gone { "the dead one" } else { "another one" };
        let ours = in_time("a grant", asking).await.unwrap();
        let (released, granted) = early.await.unwrap();
        println!("by {by}: free {ours:?}; released at once {released:?}, granted to the waiter {granted:?}");
        worst = worst.max(ours.max(granted).saturating_sub(of_etcd));
    }
    for held in late {
        let (released, granted) = held.pass_on().await;
        println!("afterwards: released {released:?}, granted to the waiter {granted:?}");
        worst = worst.max(granted);
    }
    assert!(worst < OURS_MAX, "{worst:?} later than etcd could");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_leaders_death_a_grant_comes_when_etcd_can_give_it() {
    lose(EtcdCluster::kill, EtcdCluster::leader).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_followers_death_a_grant_comes_at_once() {
    lose(EtcdCluster::kill, |cluster| (cluster.leader() + 1) % 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hangs_is_left_for_another_member() {
    lose(EtcdCluster::freeze, EtcdCluster::leader).await;
}

//! Several `leasehold serve` processes on one store, behind a load balancer that sends every request to another one: the leases are
//! in the store, so it makes no difference which server answers.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{sync::Arc, time::Duration};

use leasehold::{Backend, Client, FencingToken, System};
use leasehold_testkit::{
    Balancer, Recorded,
    history::Journal,
    servers::{EtcdCluster, PostgresServer, RedisServer},
};
use support::{TIMEOUT, TestDir, serving::Serving};
use tokio::{
    sync::Mutex,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

/// Renewed every second: a few renewals fit into the hold, and a loaded machine keeps the lease.
const TTL: Duration = Duration::from_secs(3);
/// The client asks again after about this time if a wake-up was lost.
const POLL: Duration = Duration::from_secs(5);
const WORKERS: usize = 4;
const ROUNDS: usize = 12;

/// Two servers on one store, behind a balancer.
struct Servers {
    directory: TestDir,
    store: String,
    running: Vec<Serving>,
    balancer: Balancer,
}

impl Servers {
    async fn start(store: &str) -> Servers {
        let directory = TestDir::new();
        let running: Vec<_> = (0..2).map(|_| Serving::on(&directory, Some(store), &[])).collect();
        let addresses: Vec<_> = running.iter().map(Serving::socket).collect();
        let balancer = Balancer::start(&addresses).await;
        Servers { directory, store: store.to_owned(), running, balancer }
    }

    /// Kills the first server, without telling anyone, and starts another one.
    fn replace_one(&mut self) {
        drop(self.running.remove(0));
        self.running.push(Serving::on(&self.directory, Some(&self.store), &[]));
        let addresses: Vec<_> = self.running.iter().map(Serving::socket).collect();
        self.balancer.set_servers(&addresses);
    }
}

async fn recorded(url: &str, journal: &Journal) -> Client {
    let backend: Arc<dyn Backend> = leasehold::open(url).await.unwrap();
    Client::new(Arc::new(Recorded::new(backend, journal)))
}

/// The tokens in the order in which the workers got them, and the time between two holders.
#[derive(Default)]
struct Grants {
    tokens: Vec<FencingToken>,
    released: Option<Instant>,
    longest_gap: Duration,
}

async fn work(client: Client, grants: Arc<Mutex<Grants>>) {
    for round in 0..ROUNDS {
        let lease = client.lease("report", "42").ttl(TTL).wait(TIMEOUT).acquire().await.unwrap();
        let mut grants = grants.try_lock().expect("one worker at a time");
        grants.tokens.push(lease.token());
        let gap = grants.released.map_or(Duration::ZERO, |at| at.elapsed());
        grants.longest_gap = grants.longest_gap.max(gap);
        // One long hold for each worker, which needs renewals.
        sleep(if round == 3 { TTL + TTL / 3 } else { Duration::from_millis(5) }).await;
        lease.check().unwrap();
        grants.released = Some(Instant::now());
        drop(grants);
        lease.release().await.unwrap();
    }
}

/// Workers take turns while servers are killed and started.
async fn any_server_answers(store: &str) {
    let mut servers = Servers::start(store).await;
    let (first, second) = (servers.running[0].socket(), servers.running[1].socket());
    let journal = Journal::new(Arc::new(System::current()));
    let grants = Arc::new(Mutex::new(Grants::default()));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let client = recorded(&servers.balancer.url(), &journal).await;
        workers.spawn(work(client, Arc::clone(&grants)));
    }
    // In the middle of holds and waits, three times.
    for _ in 0..3 {
        sleep(TTL).await;
        servers.replace_one();
    }
    let all = async { while workers.join_next().await.transpose().unwrap().is_some() {} };
    timeout(TIMEOUT * 2, all).await.expect("all workers finish");
    for server in [first, second].into_iter().chain(servers.running.iter().map(Serving::socket)) {
        assert!(servers.balancer.answered_by(server) > 0, "{server} has answered");
    }
    let grants = grants.lock().await;
    assert_eq!(grants.tokens.len(), WORKERS * ROUNDS);
    assert!(grants.tokens.is_sorted_by(|one, next| one < next), "tokens grow: {:?}", grants.tokens);
    // A poll, and what a loaded machine adds.
    assert!(grants.longest_gap < POLL * 2, "{:?} between two holders", grants.longest_gap);
    if let Err(violations) = journal.history().check(Duration::from_millis(50)) {
        panic!("{violations:#?}");
    }
}

/// A claim is asked at one server and waits at the other: wake-ups follow.
async fn wake_ups_follow(store: &str) {
    const HAND_OVERS: u32 = 10;
    let servers = Servers::start(store).await;
    let [one, other] = [&servers.running[0], &servers.running[1]];
    let holder = leasehold::connect(&one.url()).await.unwrap();
    for (name, url) in [("at the other server", other.url()), ("at both in turn", servers.balancer.url())] {
        let waiter = leasehold::connect(&url).await.unwrap();
        let mut waited = Duration::ZERO;
        for _ in 0..HAND_OVERS {
            let held = holder.lease("job", "7").ttl(TIMEOUT).wait(TIMEOUT).acquire().await.unwrap();
            let next = tokio::spawn(waiter.lease("job", "7").ttl(TIMEOUT).wait(TIMEOUT).acquire());
            let queued = async {
                while holder.look("job", "7").await.unwrap().queue_length == 0 {
                    sleep(Duration::from_millis(5)).await;
                }
            };
            timeout(TIMEOUT, queued).await.expect("the claim is queued");
            // It waits now, or will in a moment: both must work.
            sleep(Duration::from_millis(20)).await;
            let released = Instant::now();
            held.release().await.unwrap();
            let next = timeout(TIMEOUT, next).await.expect("granted").unwrap().unwrap();
            waited += released.elapsed();
            next.release().await.unwrap();
        }
        // Without wake-ups each one would take most of a poll.
        assert!(waited < POLL * HAND_OVERS / 4, "{HAND_OVERS} hand-overs {name} took {waited:?}");
    }
}

#[tokio::test]
async fn any_server_answers_on_redis() {
    any_server_answers(&RedisServer::start().url()).await;
}

#[tokio::test]
async fn any_server_answers_on_postgres() {
    any_server_answers(&PostgresServer::start().url()).await;
}

#[tokio::test]
async fn any_server_answers_on_etcd() {
    any_server_answers(&EtcdCluster::start(1).url()).await;
}

#[tokio::test]
async fn wake_ups_follow_on_redis() {
    wake_ups_follow(&RedisServer::start().url()).await;
}

#[tokio::test]
async fn wake_ups_follow_on_postgres() {
    wake_ups_follow(&PostgresServer::start().url()).await;
}

#[tokio::test]
async fn wake_ups_follow_on_etcd() {
    wake_ups_follow(&EtcdCluster::start(1).url()).await;
}

/// Two servers of different stores behind one balancer are a mistake that would let two hold the same lease.
#[tokio::test]
async fn different_stores_behind_one_balancer_are_noticed() {
    let stores = [RedisServer::start(), RedisServer::start()];
    let directory = TestDir::new();
    let running = stores.each_ref().map(|store| Serving::on(&directory, Some(&store.url()), &[]));
    let both = running.each_ref().map(Serving::socket);
    // Noticed when a client connects.
    let balancer = Balancer::start(&both).await;
    let error = leasehold::connect(&balancer.url()).await.unwrap_err();
    assert!(error.to_string().contains("another store"), "{error}");
    // Noticed later, if the second server comes later. Whatever a client is told then, only one may hold.
    balancer.set_servers(&both[..1]);
    let clients = [
        leasehold::connect(&balancer.url()).await.unwrap(),
        leasehold::connect(&balancer.url()).await.unwrap(),
    ];
    balancer.set_servers(&both);
    let (mut noticed, holding) = (0, Arc::new(Mutex::new(())));
    for attempt in 0..40 {
        match clients[attempt % 2].lease("report", "42").ttl(TIMEOUT).try_acquire().await {
            Ok(Some(lease)) => {
                let held = holding.clone().try_lock_owned().expect("held once");
                lease.check().unwrap();
                drop(held);
                let _ = lease.release().await;
            }
            Ok(None) => {}
            Err(error) => {
                assert!(error.to_string().contains("another store"), "{error}");
                noticed += 1;
            }
        }
    }
    assert!(noticed > 0, "the second store answers every other request");
}

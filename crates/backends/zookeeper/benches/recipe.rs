//! What a lease costs beside Curator's recipe, which is executed bare in the same run: requests, and pairs
//! per second.
//!
//! ```text
//! cargo xtask bench zookeeper [--check]
//! ```
#![allow(clippy::disallowed_methods, reason = "benchmarks run in real time")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run may panic")]

use std::{
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold::{Client as Leases, Query, System};
use leasehold_bench::{BenchArguments, Table, lease_pairs, median, rate};
use leasehold_testkit::servers::ZooKeeperServer;
use leasehold_zookeeper::{Config, ZooKeeper};
use tokio::task::JoinSet;
use zookeeper_client::{Acls, Client, CreateMode};

fn main() -> ExitCode {
    let Some(arguments) = BenchArguments::of_bench_run() else { return ExitCode::SUCCESS };
    let mut table = Table::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = ZooKeeperServer::start();
        table.title("requests, counted by the server");
        requests(&server, &mut table).await;
        table.title("pairs of acquire and release per second, one session each");
        for tasks in [1, 16, 64] {
            pairs(&server, tasks, &table).await;
        }
        table.title("waiting");
        waiting(&server, &mut table).await;
    });
    table.finish(arguments.check())
}

async fn leases(server: &ZooKeeperServer) -> Leases {
    let config = Config::parse(&server.url()).unwrap();
    Leases::new(Arc::new(ZooKeeper::connect(config, Arc::new(System::current())).await.unwrap()))
}

/// Curator's recipe without anything else: create a node, list the folder, delete the node.
#[derive(Clone)]
struct Bare(Client);

impl Bare {
    async fn connect(server: &ZooKeeperServer) -> Bare {
        let connector = Client::connector().with_session_timeout(Duration::from_secs(2));
        Bare(connector.connect(&format!("127.0.0.1:{}", server.port())).await.unwrap())
    }

    async fn folder(&self, number: usize) -> String {
        let folder = format!("/bare/{number}");
        self.0.mkdir(&folder, &CreateMode::Container.with_acls(Acls::anyone_all())).await.unwrap();
        folder
    }

    async fn acquire(&self, folder: &str) -> String {
        let prefix = format!("{folder}/_c_00112233-4455-6677-8899-aabbccddeeff-lock-");
        let mode = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let (_, sequence) = self.0.create(&prefix, b"127.0.0.1", &mode).await.unwrap();
        let node = format!("{prefix}{sequence}");
        loop {
            let mut children = self.0.list_children(folder).await.unwrap();
            children.sort_by(|a, b| a[a.len() - 10..].cmp(&b[b.len() - 10..]));
            let own = children.iter().position(|child| node.ends_with(child.as_str())).unwrap();
            let Some(before) = own.checked_sub(1) else { return node };
            let path = format!("{folder}/{}", children[before]);
            if let Ok((_, _, watcher)) = self.0.get_and_watch_data(&path).await {
                watcher.changed().await;
            }
        }
    }

    async fn release(&self, node: &str) {
        self.0.delete(node, None).await.unwrap();
    }
}

fn received(server: &ZooKeeperServer) -> i64 {
    server.number("zk_packets_received")
}

#[expect(clippy::cast_precision_loss, reason = "a count of requests is small")]
async fn requests(server: &ZooKeeperServer, table: &mut Table) {
    let (leases, bare) = (leases(server).await, Bare::connect(server).await);
    let folder = bare.folder(0).await;
    leases.lease("bench", "requests").acquire().await.unwrap().release().await.unwrap();
    let times = 300;
    let before = received(server);
    for _ in 0..times {
        leases.lease("bench", "requests").acquire().await.unwrap().release().await.unwrap();
    }
    let ours = (received(server) - before) as f64 / f64::from(times);
    let before = received(server);
    for _ in 0..times {
        let node = bare.acquire(&folder).await;
        bare.release(&node).await;
    }
    let theirs = (received(server) - before) as f64 / f64::from(times);
    table.row("Curator's recipe, a free lock: acquire and release", &format!("{theirs:.2}"));
    let met = ours <= theirs + 0.1;
    table.target("leasehold, a free lease: acquire and release", &format!("{ours:.2}"), "no more", met);
}

const PAIRS_ROUND: Duration = Duration::from_millis(1_500);
const PAIRS_ROUNDS: usize = 3;
/// Long enough for one pair, which creates the folder of the resource.
const WARM_UP: Duration = Duration::from_millis(1);

/// Pairs a second of this many tasks over one session, each on a resource of its own.
async fn pairs(server: &ZooKeeperServer, tasks: usize, table: &Table) {
    let mut rounds = Vec::new();
    for _ in 0..PAIRS_ROUNDS {
        let bare = Bare::connect(server).await;
        rate(tasks, |number| bare_pairs(bare.clone(), number, WARM_UP)).await;
        let theirs = rate(tasks, |number| bare_pairs(bare.clone(), number, PAIRS_ROUND)).await.per_second;
        let leases = leases(server).await;
        rate(tasks, |number| lease_pairs(leases.clone(), number, WARM_UP)).await;
        let ours = rate(tasks, |number| lease_pairs(leases.clone(), number, PAIRS_ROUND)).await.per_second;
        rounds.push((ours / theirs, ours, theirs));
    }
    // Tuples compare by their first field: this is the round with the median ratio.
    let (ratio, ours, theirs) = median(rounds);
    table.row(&format!("{tasks} tasks, Curator's recipe bare"), &format!("{theirs:.0}/s"));
    table.row(&format!("{tasks} tasks, leasehold"), &format!("{ours:.0}/s, {ratio:.2} ×"));
}

/// Pairs with the bare recipe until `lasting` has passed. Returns how many it completed.
async fn bare_pairs(bare: Bare, number: usize, lasting: Duration) -> u64 {
    let folder = bare.folder(number).await;
    let (started, mut done) = (Instant::now(), 0);
    while started.elapsed() < lasting {
        let node = bare.acquire(&folder).await;
        bare.release(&node).await;
        done += 1;
    }
    done
}

#[expect(clippy::cast_precision_loss, reason = "a count of requests is small")]
async fn waiting(server: &ZooKeeperServer, table: &mut Table) {
    let leases = leases(server).await;
    let idle = Duration::from_secs(4);
    let before = received(server);
    let lease = leases.lease("bench", "waiting").acquire().await.unwrap();
    tokio::time::sleep(idle).await;
    let alone = received(server) - before;
    let (waiters, mut set) = (50, JoinSet::new());
    for _ in 0..waiters {
        set.spawn(leases.lease("bench", "waiting").fair().wait(Duration::from_secs(60)).acquire());
    }
    loop {
        let page = leases.inspect(&Query::One("bench/waiting".parse().unwrap())).await.unwrap();
        if page.into_snapshots()[0].queue_length == waiters {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = received(server);
    tokio::time::sleep(idle).await;
    let spent = (received(server) - before - alone).max(0) as f64 / f64::from(waiters) / idle.as_secs_f64();
    table.row("requests per waiter and second: the safety poll", &format!("{spent:.2}"));
    let watches = server.number("zk_watch_count") as f64 / f64::from(waiters);
    let met = watches <= 1.1;
    table.target("watches per waiter: one predecessor each", &format!("{watches:.2}"), "≤ 1.1", met);
    let started = Instant::now();
    lease.release().await.unwrap();
    let before = received(server);
    while let Some(next) = set.join_next().await {
        next.unwrap().unwrap().release().await.unwrap();
    }
    let each = started.elapsed().as_secs_f64() * 1e3 / f64::from(waiters);
    let requests = (received(server) - before) as f64 / f64::from(waiters);
    table.row("from release to release along the queue", &format!("{each:.1} ms each"));
    table.row("requests for each", &format!("{requests:.1}"));
}

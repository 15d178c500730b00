//! Workers that acquire, hold and release, of several kinds.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use leasehold::{Client, LeaseRequest, TokenKind};
use tokio::task::JoinSet;

use super::clients::DemoClients;

/// What the workers of one kind do. Times are in milliseconds.
struct Workload {
    kind: &'static str,
    ids: RangeInclusive<u64>,
    label: &'static str,
    host: &'static str,
    workers: u32,
    holds: RangeInclusive<u64>,
    rests: RangeInclusive<u64>,
}

const WORKLOADS: &[Workload] = &[
    Workload {
        kind: "report",
        ids: 1041..=1046,
        label: "monthly report",
        host: "report",
        workers: 4,
        holds: 3_000..=9_000,
        rests: 1_000..=6_000,
    },
    Workload {
        kind: "stock",
        ids: 1..=3,
        label: "stock import",
        host: "import",
        workers: 4,
        holds: 4_000..=12_000,
        rests: 2_000..=8_000,
    },
    Workload {
        kind: "customer",
        ids: 200..=260,
        label: "address check",
        host: "web",
        workers: 8,
        holds: 1_500..=4_000,
        rests: 500..=3_000,
    },
    Workload {
        kind: "thumbnail",
        ids: 5_000..=5_400,
        label: "thumbnails",
        host: "media",
        workers: 5,
        holds: 1_000..=3_000,
        rests: 200..=1_500,
    },
];

/// Long enough that it is seen whether a holder renews, short enough that a lost lease is followed soon.
const TTL: Duration = Duration::from_secs(15);
const WAIT: Duration = Duration::from_secs(10);
/// One of so many workers crashes while it holds.
const CRASHES_ONE_OF: u64 = 60;

const PERMITS: u32 = 4;

pub(super) fn start(clients: &Arc<DemoClients>, tasks: &mut JoinSet<()>) {
    for workload in WORKLOADS {
        for number in 1..=workload.workers {
            let client =
                clients.process(&host(workload.host, number), pid(workload.host, number), workload.label);
            tasks.spawn(run_worker(Arc::clone(clients), client, workload));
        }
    }
    for number in 1..=7 {
        let client = clients.process(&host("gpu", number), pid("gpu", number), "train model");
        let weight = 1 + number / 6; // the last two take two permits
        tasks.spawn(repeat(
            Arc::clone(clients),
            move || client.semaphore("gpu", "pool", PERMITS).permits(weight),
            (5_000..=15_000, 2_000..=9_000),
        ));
    }
    for number in 1..=5 {
        let client = clients.process(&host("search", number), pid("search", number), "query");
        tasks.spawn(repeat(
            Arc::clone(clients),
            move || client.rwlock("index", "products").read(),
            (3_000..=8_000, 1_000..=6_000),
        ));
    }
    let client = clients.process("search-6", 2306, "rebuild index");
    tasks.spawn(repeat(
        Arc::clone(clients),
        move || client.rwlock("index", "products").write(),
        (2_000..=4_000, 15_000..=30_000),
    ));
}

fn host(name: &str, number: u32) -> String {
    format!("{name}-{number}")
}

/// A process id that looks like one.
fn pid(name: &str, number: u32) -> u32 {
    let seed: u32 = name.bytes().map(u32::from).sum();
    1_000 + seed * 7 % 900 + number * 37
}

async fn run_worker(clients: Arc<DemoClients>, client: Client, workload: &'static Workload) {
    loop {
        clients.pause(workload.rests.clone()).await;
        let id = clients.random(workload.ids.clone()).to_string();
        // An error is that it took too long, or that the store is busy: the next try may do better.
        let Ok(lease) = client.lease(workload.kind, &id).ttl(TTL).wait(WAIT).acquire().await else {
            continue;
        };
        if clients.random(1..=CRASHES_ONE_OF) == 1 {
            // As if the process had ended: nobody renews, and the lease runs out.
            drop(lease.detach());
        } else {
            clients.work(lease, workload.holds.clone()).await;
        }
    }
}

async fn repeat<T: TokenKind>(
    clients: Arc<DemoClients>,
    request: impl Fn() -> LeaseRequest<T>,
    (holds, rests): (RangeInclusive<u64>, RangeInclusive<u64>),
) {
    loop {
        if let Ok(lease) = request().ttl(TTL).wait(WAIT).acquire().await {
            clients.work(lease, holds.clone()).await;
        }
        clients.pause(rests.clone()).await;
    }
}

//! Whether a grant, a release and a hand-over cost the same among 10, 1,000 and 100,000 waiters and holders.

use std::{
    any::Any,
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use leasehold::{Client, LeaseRequest, Memory, TokenKind};
use tokio::{sync::Notify, task::JoinSet};

use crate::{
    measure::{Cost, cost, per, thread_time},
    table::Table,
};

const SIZES: [u32; 3] = [10, 1_000, 100_000];
/// Trees get deeper and caches get colder; a cost that grows with the crowd would be ten thousand times as high.
const RATIO_MAX: f64 = 4.0;
const TIMES: u32 = 5_000;
const TTL: Duration = Duration::from_secs(600);
const WAIT: Duration = Duration::from_secs(3600);

pub(crate) async fn measure(table: &mut Table) {
    table.title("Flat from 10 to 100,000: cost of one, and the ratio to that among 10");
    let line = |leases: &Client| leases.lease("line", "1").wait(WAIT).ttl(TTL);
    compare(table, "hand-over, waiters of one client", |n| async move {
        let leases = client();
        hand_over(&leases, n, || line(&leases)).await
    })
    .await;
    compare(table, "hand-over, each with a place of its own (fair)", |n| async move {
        let leases = client();
        hand_over(&leases, n, || line(&leases).fair()).await
    })
    .await;
    compare(table, "grant and release, while others wait elsewhere", |n| async move {
        let leases = client();
        let crowd = Crowd::gather(n, || line(&leases).fair()).await;
        let cost = grant_and_release(|| leases.lease("report", "1")).await;
        crowd.disperse(&leases).await;
        cost
    })
    .await;
    compare(table, "grant and release, leases held beside", |n| async move {
        let leases = client();
        let held = hold(n, |number| leases.lease("report", &number.to_string()).ttl(TTL)).await;
        let cost = grant_and_release(|| leases.lease("report", "one more")).await;
        drop(held);
        leases.shutdown().await;
        cost
    })
    .await;
    compare(table, "grant and release, readers of the same index", |n| async move {
        let leases = client();
        let index = leases.rwlock("index", "1");
        let held = hold(n, |_| index.read().ttl(TTL)).await;
        let cost = grant_and_release(|| index.read()).await;
        drop(held);
        leases.shutdown().await;
        cost
    })
    .await;
    compare(table, "grant and release, holders of the same semaphore", |n| async move {
        let leases = client();
        let permits = leases.semaphore("permits", "1", n + 1);
        let held = hold(n, |_| permits.permits(1).ttl(TTL)).await;
        let cost = grant_and_release(|| permits.permits(1)).await;
        drop(held);
        leases.shutdown().await;
        cost
    })
    .await;
    compare(table, "hand-over, holders of the same semaphore", |n| async move {
        let leases = client();
        let permits = leases.semaphore("permits", "1", n);
        let held = hold(n - 1, |_| permits.permits(1).ttl(TTL)).await;
        // Two take turns with the last permit.
        let cost = hand_over(&leases, 2, || permits.permits(1).wait(WAIT)).await;
        drop(held);
        leases.shutdown().await;
        cost
    })
    .await;
}

fn client() -> Client {
    Client::new(Arc::new(Memory::new()))
}

async fn compare<W: Future<Output = Cost>>(table: &mut Table, name: &str, measure: impl Fn(u32) -> W) {
    let mut costs = Vec::with_capacity(SIZES.len());
    for size in SIZES {
        costs.push(measure(size).await);
    }
    let smallest = costs[0].median();
    let mut worst: f64 = 1.0;
    for (size, cost) in SIZES.into_iter().zip(&costs) {
        let ratio = cost.median() / smallest;
        worst = worst.max(ratio);
        table.row(&format!("{name}: {size}"), &format!("{:.2} µs  × {ratio:.1}", cost.median() / 1000.0));
    }
    table.target(name, &format!("× {worst:.1}"), &format!("≤ × {RATIO_MAX}"), worst <= RATIO_MAX);
}

async fn hold<T: TokenKind>(
    how_many: u32,
    request: impl Fn(u32) -> LeaseRequest<T>,
) -> Vec<leasehold::Lease<T>> {
    let mut held = Vec::with_capacity(how_many as usize);
    for number in 0..how_many {
        held.push(request(number).acquire().await.expect("free"));
    }
    held
}

async fn grant_and_release<T: TokenKind>(request: impl Fn() -> LeaseRequest<T>) -> Cost {
    cost(TIMES, async || {
        let lease = request().acquire().await.expect("free");
        lease.release().await.expect("held");
    })
    .await
}

/// Waiters that take a turn each, and go back to the end of the line.
struct Crowd {
    tasks: JoinSet<()>,
    turns: Arc<Turns>,
    /// What they wait for, until it is dropped.
    first: Option<Box<dyn Any>>,
}

/// When the turns came: nine rounds after one to warm up.
struct Turns {
    taken: AtomicU64,
    marks: Mutex<Vec<Duration>>,
    done: Notify,
}

impl Turns {
    const ROUNDS: u64 = 10;

    fn take(&self) {
        let taken = self.taken.fetch_add(1, Relaxed);
        if taken.is_multiple_of(u64::from(TIMES)) && taken <= Turns::ROUNDS * u64::from(TIMES) {
            self.marks.lock().expect("no one panics").push(thread_time());
            if taken == Turns::ROUNDS * u64::from(TIMES) {
                self.done.notify_one();
            }
        }
    }

    fn cost(&self) -> Cost {
        let marks = self.marks.lock().expect("no one panics");
        let rounds = marks.windows(2).skip(1);
        Cost { nanos: rounds.map(|pair| per(pair[1] - pair[0], TIMES)).collect(), allocations: 0.0 }
    }
}

impl Crowd {
    /// Takes the lease, and lets so many wait for it.
    async fn gather<T: TokenKind>(waiters: u32, request: impl Fn() -> LeaseRequest<T>) -> Crowd {
        let (done, marks) = (Notify::new(), Mutex::default());
        let turns = Arc::new(Turns { taken: AtomicU64::new(0), marks, done });
        let first = request().acquire().await.expect("free");
        let arrived = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..waiters {
            let (request, turns, arrived) = (request(), Arc::clone(&turns), Arc::clone(&arrived));
            tasks.spawn(async move {
                arrived.fetch_add(1, Relaxed);
                while let Ok(lease) = request.clone().acquire().await {
                    turns.take();
                    drop(lease.release().await);
                }
            });
        }
        while arrived.load(Relaxed) < u64::from(waiters) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        Crowd { tasks, turns, first: Some(Box::new(first)) }
    }

    async fn disperse(mut self, leases: &Client) {
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
        self.first = None;
        leases.shutdown().await;
    }
}

async fn hand_over<T: TokenKind>(
    leases: &Client,
    waiters: u32,
    request: impl Fn() -> LeaseRequest<T>,
) -> Cost {
    let mut crowd = Crowd::gather(waiters, request).await;
    crowd.first = None;
    crowd.turns.done.notified().await;
    let cost = crowd.turns.cost();
    crowd.disperse(leases).await;
    cost
}

//! Many waiters for one lease, for the benchmarks of how cost grows with their number.

use std::{
    any::Any,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use leasehold::{Client, LeaseRequest, TokenKind};
use leasehold_bench::thread_cpu_time;
use tokio::{sync::Notify, task::JoinSet};

use crate::measure::{OperationCost, nanos_each};

/// Hand-overs in one round.
const HANDOVERS: u64 = 5_000;
/// The first round is the warm-up.
const ROUNDS: u64 = 10;

/// Tasks that wait for one lease. Each releases it as soon as it is granted, and waits again at the end of
/// the queue.
pub(crate) struct Waiters {
    tasks: JoinSet<()>,
    handovers: Arc<HandoverTimes>,
    /// The lease that the tasks wait for, until it is dropped.
    first_lease: Option<Box<dyn Any>>,
}

/// The CPU time at the end of each round of hand-overs.
struct HandoverTimes {
    count: AtomicU64,
    round_ends: Mutex<Vec<Duration>>,
    all_done: Notify,
}

impl HandoverTimes {
    fn count_one(&self) {
        let count = self.count.fetch_add(1, Relaxed);
        if count.is_multiple_of(HANDOVERS) && count <= ROUNDS * HANDOVERS {
            self.round_ends.lock().expect("no one panics").push(thread_cpu_time());
            if count == ROUNDS * HANDOVERS {
                self.all_done.notify_one();
            }
        }
    }

    fn cost(&self) -> OperationCost {
        let round_ends = self.round_ends.lock().expect("no one panics");
        let rounds = round_ends.windows(2).skip(1);
        let nanos = rounds.map(|pair| nanos_each(pair[1] - pair[0], HANDOVERS as u32)).collect();
        OperationCost { nanos, allocations: 0.0 }
    }
}

impl Waiters {
    /// Acquires the lease and starts `count` tasks that wait for it.
    pub(crate) async fn start<T: TokenKind>(count: u32, request: impl Fn() -> LeaseRequest<T>) -> Waiters {
        let (all_done, round_ends) = (Notify::new(), Mutex::default());
        let handovers = Arc::new(HandoverTimes { count: AtomicU64::new(0), round_ends, all_done });
        let first_lease = request().acquire().await.expect("free");
        let started = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            let (request, handovers, started) = (request(), Arc::clone(&handovers), Arc::clone(&started));
            tasks.spawn(async move {
                started.fetch_add(1, Relaxed);
                while let Ok(lease) = request.clone().acquire().await {
                    handovers.count_one();
                    drop(lease.release().await);
                }
            });
        }
        while started.load(Relaxed) < u64::from(count) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The last tasks have started, but may not be in the queue yet.
        tokio::time::sleep(Duration::from_millis(50)).await;
        Waiters { tasks, handovers, first_lease: Some(Box::new(first_lease)) }
    }

    /// Ends all tasks and the client.
    pub(crate) async fn stop(mut self, leases: &Client) {
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
        self.first_lease = None;
        leases.shutdown().await;
    }
}

/// The cost of one hand-over among `waiters` tasks that want the same lease.
pub(crate) async fn handover_cost<T: TokenKind>(
    leases: &Client,
    waiters: u32,
    request: impl Fn() -> LeaseRequest<T>,
) -> OperationCost {
    let mut waiters = Waiters::start(waiters, request).await;
    waiters.first_lease = None;
    waiters.handovers.all_done.notified().await;
    let cost = waiters.handovers.cost();
    waiters.stop(leases).await;
    cost
}

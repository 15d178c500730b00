//! Whether a grant, a release and a hand-over cost the same among 10, 1,000 and 100,000 waiters and holders.

use std::{future::Future, sync::Arc, time::Duration};

use leasehold::{Client, Lease, LeaseRequest, Memory, TokenKind};
use leasehold_bench::Table;

use crate::{
    measure::{OperationCost, measure_cost},
    waiters::{Waiters, handover_cost},
};

const SIZES: [u32; 3] = [10, 1_000, 100_000];
/// Trees get deeper and caches get colder, so some growth is fine. A cost that is linear in the number of
/// waiters would grow ten thousand times.
const RATIO_MAX: f64 = 4.0;
const TIMES: u32 = 5_000;
const TTL: Duration = Duration::from_secs(600);
const WAIT: Duration = Duration::from_secs(3600);

pub(crate) async fn measure(table: &mut Table) {
    table.title("Flat from 10 to 100,000: cost of one, and the ratio to that among 10");
    among_waiters(table).await;
    among_holders_of_other_resources(table).await;
    among_holders_of_the_same_resource(table).await;
}

fn wanted(leases: &Client) -> LeaseRequest {
    leases.lease("line", "1").wait(WAIT).ttl(TTL)
}

async fn among_waiters(table: &mut Table) {
    compare(table, "hand-over, waiters of one client", |n| async move {
        let leases = client();
        handover_cost(&leases, n, || wanted(&leases)).await
    })
    .await;
    compare(table, "hand-over, each with a place of its own (fair)", |n| async move {
        let leases = client();
        handover_cost(&leases, n, || wanted(&leases).fair()).await
    })
    .await;
    compare(table, "grant and release, while others wait elsewhere", |n| async move {
        let leases = client();
        let waiters = Waiters::start(n, || wanted(&leases).fair()).await;
        let cost = grant_and_release(|| leases.lease("report", "1")).await;
        waiters.stop(&leases).await;
        cost
    })
    .await;
}

async fn among_holders_of_other_resources(table: &mut Table) {
    compare(table, "grant and release, leases held beside", |n| async move {
        let leases = client();
        let held = hold(n, |number| leases.lease("report", &number.to_string()).ttl(TTL)).await;
        let cost = grant_and_release(|| leases.lease("report", "one more")).await;
        drop(held);
        leases.shutdown().await;
        cost
    })
    .await;
}

async fn among_holders_of_the_same_resource(table: &mut Table) {
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
        // Two tasks hand the last permit to each other.
        let cost = handover_cost(&leases, 2, || permits.permits(1).wait(WAIT)).await;
        drop(held);
        leases.shutdown().await;
        cost
    })
    .await;
}

fn client() -> Client {
    Client::new(Arc::new(Memory::new()))
}

async fn compare<W>(table: &mut Table, name: &str, measure: impl Fn(u32) -> W)
where
    W: Future<Output = OperationCost>,
{
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

async fn hold<T: TokenKind>(count: u32, request: impl Fn(u32) -> LeaseRequest<T>) -> Vec<Lease<T>> {
    let mut held = Vec::with_capacity(count as usize);
    for number in 0..count {
        held.push(request(number).acquire().await.expect("free"));
    }
    held
}

async fn grant_and_release<T: TokenKind>(request: impl Fn() -> LeaseRequest<T>) -> OperationCost {
    measure_cost(TIMES, async || {
        let lease = request().acquire().await.expect("free");
        lease.release().await.expect("held");
    })
    .await
}

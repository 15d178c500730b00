//! The cost of one uncontended acquire and release through the whole engine, with its metrics and traces
//! compiled in and no recorder or subscriber installed.

use std::{hint::black_box, sync::Arc, time::Duration};

use leasehold::{
    Backend, BackendExt as _, Claim, ClaimRef, Client, Environment, Holder, Memory, OwnerToken,
    ReleaseRequest, Resource, Share, System,
};
use leasehold_bench::Table;

use crate::measure::measure_cost;

const TIMES: u32 = 50_000;
const ALLOCATIONS_MAX: f64 = 12.0;

pub(crate) async fn measure(table: &mut Table) {
    table.title("An uncontended acquire and release, on the memory backend");
    let backend: Arc<dyn Backend> = Arc::new(Memory::new());

    let resource = Resource::new("report", "42").expect("a good name");
    let holder = Arc::new(Holder::new("host", 1, "bench"));
    let environment: Arc<dyn Environment> = Arc::new(System::current());
    let alone = measure_cost(TIMES, async || {
        let owner = OwnerToken::fresh(&*environment);
        let ttl = Duration::from_secs(30);
        let claim = Claim::new(resource.clone(), owner, Share::WHOLE, ttl, Arc::clone(&holder));
        let request = ReleaseRequest::new(ClaimRef { resource: resource.clone(), owner });
        black_box(backend.acquire_one(&claim).await.expect("free"));
        black_box(backend.release_one(&request).await.expect("held"));
    });
    let alone = alone.await;

    let leases = Client::new(Arc::clone(&backend));
    let whole = measure_cost(TIMES, async || {
        let lease = leases.lease("report", "42").acquire().await.expect("free");
        black_box(lease.release().await.expect("held"));
    });
    let whole = whole.await;

    let at_most = format!("≤ {ALLOCATIONS_MAX}");
    let met = whole.allocations <= ALLOCATIONS_MAX;
    table.target("allocations", &format!("{:.1}", whole.allocations), &at_most, met);
    table.row("  of which the backend alone", &format!("{:.1}", alone.allocations));
    table.row("time on a core: median of nine rounds (least–most)", &whole.time());
    table.row("  of which the backend alone", &alone.time());

    let run = measure_cost(TIMES, async || {
        black_box(leases.lease("report", "43").run(async |lease| lease.token()).await.expect("free"));
    });
    let run = run.await;
    table.row("the same through `run`: allocations", &format!("{:.1}", run.allocations));
    table.row("the same through `run`: time", &run.time());

    let lease = leases.lease("report", "44").acquire().await.expect("free");
    let check = measure_cost(TIMES * 10, async || black_box(lease.check()).expect("held")).await;
    table.row("`check` of a lease: time", &check.time());
    lease.release().await.expect("held");
}

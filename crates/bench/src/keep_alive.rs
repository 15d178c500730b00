//! One client that keeps 100,000 leases alive: memory for each lease, CPU time for all, and the latest
//! renewal.

use std::{sync::Arc, time::Duration};

use leasehold::{
    BackendExt as _, Claim, Client, Environment, Holder, Memory, OwnerToken, Resource, Share, System,
};
use leasehold_bench::{RenewalMargins, Table, process_cpu_time};

use crate::counting::live_bytes;

const LEASES: u32 = 100_000;
const TTL: Duration = Duration::from_secs(30);
const WATCHED_FOR: Duration = Duration::from_secs(30);
const BYTES_MAX: f64 = 512.0;
/// Per cent of a core.
const CORE_MAX: f64 = 5.0;

pub(crate) async fn measure(table: &mut Table) {
    table.title("One client keeping 100,000 leases alive, ttl 30 s");
    let backend_bytes = bytes_of_backend().await;

    let margins = RenewalMargins::install();
    let before = live_bytes();
    let leases = Client::new(Arc::new(Memory::new()));
    let mut held = Vec::with_capacity(LEASES as usize);
    for number in 0..LEASES {
        held.push(leases.lease("bulk", &number.to_string()).ttl(TTL).acquire().await.expect("free"));
    }
    let all_bytes = (live_bytes() - before) as f64 / f64::from(LEASES);

    let (started, clock) = (process_cpu_time(), std::time::Instant::now());
    tokio::time::sleep(WATCHED_FOR).await;
    let of_a_core = (process_cpu_time() - started).as_secs_f64() / clock.elapsed().as_secs_f64() * 100.0;
    let alive = held.iter().filter(|lease| lease.check().is_ok()).count();

    let engine = all_bytes - backend_bytes;
    let met = engine <= BYTES_MAX;
    table.target("bytes a lease, for the engine", &format!("{engine:.0}"), &format!("≤ {BYTES_MAX}"), met);
    table.row("  besides, the memory backend", &format!("{backend_bytes:.0}"));
    let met = of_a_core < CORE_MAX;
    table.target("CPU", &format!("{of_a_core:.2} % of a core"), &format!("< {CORE_MAX} %"), met);
    table.row("  renewals in that time", &margins.count().to_string());
    let latest = margins.latest(TTL);
    let (measured, target) = (format!("{:.2} s", latest.as_secs_f64()), format!("≤ {} s", TTL.as_secs() / 2));
    table.target("latest renewal, answered after", &measured, &target, latest <= TTL / 2);
    let (measured, target) = (alive.to_string(), format!("= {LEASES}"));
    table.target("leases alive at the end", &measured, &target, alive == LEASES as usize);
}

/// Bytes that the backend keeps for a lease, without the lease's name: the engine needs the name as well.
async fn bytes_of_backend() -> f64 {
    let environment: Arc<dyn Environment> = Arc::new(System::current());
    let memory = Memory::new();
    let holder = Arc::new(Holder::new("host", 1, "bench"));
    let resource = |number: u32| Resource::new("bulk", &number.to_string()).expect("a good name");
    let resources: Vec<_> = (0..LEASES).map(resource).collect();
    let before = live_bytes();
    for resource in &resources {
        let owner = OwnerToken::fresh(&*environment);
        let claim = Claim::new(resource.clone(), owner, Share::WHOLE, TTL, Arc::clone(&holder));
        memory.acquire_one(&claim).await.expect("free");
    }
    (live_bytes() - before) as f64 / f64::from(LEASES)
}

//! One client that keeps many leases alive.

use std::time::{Duration, Instant};

use leasehold_bench::{RenewalMargins, Table, process_cpu_time};
use leasehold_testkit::servers::RedisServer;

const LEASES: usize = 100_000;
/// Leases that are acquired side by side at the start.
const ACQUIRED_AT_ONCE: usize = 200;
const TTL: Duration = Duration::from_secs(30);
const WATCHED_FOR: Duration = Duration::from_secs(30);

pub(crate) async fn measure(server: &RedisServer, table: &mut Table) {
    let margins = RenewalMargins::install();
    let leases = leasehold::connect(&server.url()).await.unwrap();
    let mut held = Vec::with_capacity(LEASES);
    for start in (0..LEASES).step_by(ACQUIRED_AT_ONCE) {
        let some: Vec<_> = (start..start + ACQUIRED_AT_ONCE)
            .map(|number| tokio::spawn(leases.lease("bulk", &number.to_string()).ttl(TTL).acquire()))
            .collect();
        for lease in some {
            held.push(lease.await.unwrap().unwrap());
        }
    }
    // Renewals during the long start do not count.
    margins.reset();
    let (cpu, started) = (process_cpu_time(), Instant::now());
    tokio::time::sleep(WATCHED_FOR).await;
    let of_a_core = (process_cpu_time() - cpu).as_secs_f64() / started.elapsed().as_secs_f64() * 100.0;
    let alive = held.iter().filter(|lease| lease.check().is_ok()).count();
    table.target(
        "100,000 leases at ttl 30 s: of a core",
        &format!("{of_a_core:.1} %"),
        "< 8 %",
        of_a_core < 8.0,
    );
    let latest = margins.latest(TTL);
    let measured = format!("{:.1} s", latest.as_secs_f64());
    table.target("the latest renewal, after the previous one", &measured, "≤ 15 s", latest <= TTL / 2);
    table.target("alive at the end", &alive.to_string(), "100000", alive == LEASES);
}

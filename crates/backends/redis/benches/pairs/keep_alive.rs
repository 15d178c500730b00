//! One client that keeps many leases alive.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use leasehold_testkit::servers::RedisServer;
use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use crate::Table;

const LEASES: usize = 100_000;
const TTL: Duration = Duration::from_secs(30);
const WATCHED_FOR: Duration = Duration::from_secs(30);

pub(crate) async fn measure(server: &RedisServer, table: &mut Table) {
    metrics::set_global_recorder(Margins).unwrap();
    let leases = leasehold::connect(&server.url()).await.unwrap();
    let mut held = Vec::with_capacity(LEASES);
    for start in (0..LEASES).step_by(200) {
        let some: Vec<_> = (start..start + 200)
            .map(|number| tokio::spawn(leases.lease("bulk", &number.to_string()).ttl(TTL).acquire()))
            .collect();
        for lease in some {
            held.push(lease.await.unwrap().unwrap());
        }
    }
    MARGIN.store(u64::MAX, Relaxed);
    let (cpu, started) = (cpu_time(), Instant::now());
    tokio::time::sleep(WATCHED_FOR).await;
    let of_a_core = (cpu_time() - cpu).as_secs_f64() / started.elapsed().as_secs_f64() * 100.0;
    let alive = held.iter().filter(|lease| lease.check().is_ok()).count();
    table.target(
        "100,000 leases at ttl 30 s: of a core",
        &format!("{of_a_core:.1} %"),
        "< 8 %",
        of_a_core < 8.0,
    );
    // Given up when a sixth of the ttl is left, 1 % and 2 ms early; the margin counts back from there.
    let given_up_after = TTL - TTL / 100 - Duration::from_millis(2) - TTL / 6;
    let latest = given_up_after.saturating_sub(Duration::from_micros(MARGIN.load(Relaxed)));
    let measured = format!("{:.1} s", latest.as_secs_f64());
    table.target("the latest renewal, after the one before", &measured, "≤ 15 s", latest <= TTL / 2);
    table.target("alive at the end", &alive.to_string(), "100000", alive == LEASES);
}

/// Time spent on a core by this process so far.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The least margin of a renewal so far, in microseconds.
static MARGIN: AtomicU64 = AtomicU64::new(u64::MAX);

/// Listens to that one histogram.
struct Margins;

impl HistogramFn for Margins {
    fn record(&self, seconds: f64) {
        MARGIN.fetch_min((seconds * 1e6) as u64, Relaxed);
    }
}

impl Recorder for Margins {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match key.name() {
            "leasehold_renewal_margin_seconds" => Histogram::from_arc(Arc::new(Margins)),
            _ => Histogram::noop(),
        }
    }
}

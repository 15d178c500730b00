//! One client keeping many leases alive: what each costs in memory, what all cost in time, and how late the latest
//! renewal was.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use leasehold::{Backend, Claim, Client, Environment, Holder, Memory, OwnerToken, Resource, Share, System};
use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use crate::{counting::live_bytes, measure::process_time, table::Table};

const LEASES: u32 = 100_000;
const TTL: Duration = Duration::from_secs(30);
const WATCHED_FOR: Duration = Duration::from_secs(30);
const BYTES_MAX: f64 = 512.0;
const CORE_MAX: f64 = 5.0;

pub(crate) async fn measure(table: &mut Table) {
    table.title("One client keeping 100,000 leases alive, ttl 30 s");
    let backend_alone = bytes_of_backend().await;

    let margins = Arc::new(Margins::default());
    metrics::set_global_recorder(MarginRecorder(Arc::clone(&margins))).expect("the only recorder");
    let before = live_bytes();
    let leases = Client::new(Arc::new(Memory::new()));
    let mut held = Vec::with_capacity(LEASES as usize);
    for number in 0..LEASES {
        held.push(leases.lease("bulk", &number.to_string()).ttl(TTL).acquire().await.expect("free"));
    }
    let whole = (live_bytes() - before) as f64 / f64::from(LEASES);

    let (started, clock) = (process_time(), std::time::Instant::now());
    tokio::time::sleep(WATCHED_FOR).await;
    let of_a_core = (process_time() - started).as_secs_f64() / clock.elapsed().as_secs_f64() * 100.0;
    let alive = held.iter().filter(|lease| lease.check().is_ok()).count();

    let engine = whole - backend_alone;
    let met = engine <= BYTES_MAX;
    table.target("bytes a lease, for the engine", &format!("{engine:.0}"), &format!("≤ {BYTES_MAX}"), met);
    table.row("  besides, the memory backend", &format!("{backend_alone:.0}"));
    let met = of_a_core < CORE_MAX;
    table.target("CPU", &format!("{of_a_core:.2} % of a core"), &format!("< {CORE_MAX} %"), met);
    table.row("  renewals in that time", &margins.count.load(Relaxed).to_string());
    let latest = margins.latest(TTL);
    let target = format!("≤ {} s", TTL.as_secs() / 2);
    table.target(
        "latest renewal, answered after",
        &format!("{:.2} s", latest.as_secs_f64()),
        &target,
        latest <= TTL / 2,
    );
    table.target(
        "leases alive at the end",
        &alive.to_string(),
        &format!("= {LEASES}"),
        alive == LEASES as usize,
    );
}

/// What the backend keeps for a lease, without its name, which the engine needs as well.
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
        memory.acquire(&claim).await.expect("free");
    }
    (live_bytes() - before) as f64 / f64::from(LEASES)
}

/// The least time that was left, at an answer to a renewal, before the lease would have been given up.
struct Margins {
    least_nanos: AtomicU64,
    count: AtomicU64,
}

impl Default for Margins {
    fn default() -> Margins {
        Margins { least_nanos: AtomicU64::new(u64::MAX), count: AtomicU64::new(0) }
    }
}

impl Margins {
    /// How long after the request before it the latest renewal was answered.
    ///
    /// A lease is given up when a sixth of its ttl is left, by a deadline that is 1 % of the ttl and 2 ms early; the
    /// margin counts back from there.
    fn latest(&self, ttl: Duration) -> Duration {
        let given_up_after = ttl - ttl / 100 - Duration::from_millis(2) - ttl / 6;
        given_up_after.saturating_sub(Duration::from_nanos(self.least_nanos.load(Relaxed)))
    }
}

impl HistogramFn for Margins {
    fn record(&self, seconds: f64) {
        self.least_nanos.fetch_min((seconds * 1e9) as u64, Relaxed);
        self.count.fetch_add(1, Relaxed);
    }
}

/// Listens to one histogram and to nothing else.
struct MarginRecorder(Arc<Margins>);

impl Recorder for MarginRecorder {
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
            "leasehold_renewal_margin_seconds" => Histogram::from_arc(Arc::clone(&self.0)),
            _ => Histogram::noop(),
        }
    }
}

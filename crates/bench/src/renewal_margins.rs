//! How late renewals are, read from the histogram `leasehold_renewal_margin_seconds`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// The smallest margin of all renewals so far: the time that was left, when a renewal was answered, before
/// the engine would have given the lease up.
#[derive(Debug)]
pub struct RenewalMargins {
    least_nanos: AtomicU64,
    count: AtomicU64,
}

impl RenewalMargins {
    /// Installs itself as the recorder of all metrics of this process.
    ///
    /// # Panics
    /// If the process has a recorder already.
    pub fn install() -> Arc<RenewalMargins> {
        let margins =
            Arc::new(RenewalMargins { least_nanos: AtomicU64::new(u64::MAX), count: AtomicU64::new(0) });
        metrics::set_global_recorder(MarginRecorder(Arc::clone(&margins))).expect("the only recorder");
        margins
    }

    /// Forgets the renewals so far.
    pub fn reset(&self) {
        self.least_nanos.store(u64::MAX, Relaxed);
        self.count.store(0, Relaxed);
    }

    /// How many renewals there were.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// How long after the previous request of its lease the latest renewal was answered.
    pub fn latest(&self, ttl: Duration) -> Duration {
        // The engine gives a lease up when a sixth of its ttl is left (ADR 0005). Its deadline is 1 % of the
        // ttl and 2 ms early, and the margin counts back from that deadline.
        let given_up_after = ttl - ttl / 100 - Duration::from_millis(2) - ttl / 6;
        given_up_after.saturating_sub(Duration::from_nanos(self.least_nanos.load(Relaxed)))
    }
}

impl HistogramFn for RenewalMargins {
    fn record(&self, seconds: f64) {
        self.least_nanos.fetch_min((seconds * 1e9) as u64, Relaxed);
        self.count.fetch_add(1, Relaxed);
    }
}

/// A recorder of one histogram, which ignores all other metrics.
struct MarginRecorder(Arc<RenewalMargins>);

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

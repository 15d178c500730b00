//! The metrics of a client, and their descriptions.

use std::sync::Arc;

use leasehold_core::EndReason;
use metrics::{Counter, Gauge, Histogram, SharedString, Unit};

/// Describes every metric of leasehold, with its unit, to the recorder that is installed now.
///
/// Each new client does so. Call it after you have installed a recorder later than your first client, or if your program
/// has metrics of `leasehold-fence` or `leasehold-patterns` only.
pub fn describe_metrics() {
    for (name, unit, help) in COUNTERS {
        metrics::describe_counter!(*name, *unit, *help);
    }
    for (name, unit, help) in HISTOGRAMS {
        metrics::describe_histogram!(*name, *unit, *help);
    }
    for (name, unit, help) in GAUGES {
        metrics::describe_gauge!(*name, *unit, *help);
    }
}

/// A metric: its name, its unit, and what it counts or measures.
type Description = (&'static str, Unit, &'static str);

const COUNTERS: &[Description] = &[
    ("leasehold_acquire_total", Unit::Count, "Requests for leases, by outcome."),
    ("leasehold_release_total", Unit::Count, "Releases of leases, by outcome."),
    ("leasehold_extend_total", Unit::Count, "Renewals of leases, by outcome."),
    ("leasehold_lost_total", Unit::Count, "Leases that ended without being released, by reason."),
    ("leasehold_stale_release_total", Unit::Count, "Releases of leases that had already expired."),
    ("leasehold_contention_total", Unit::Count, "Requests that were blocked when they first asked."),
    (
        "leasehold_acquire_retries_total",
        Unit::Count,
        "Requests to the backend for a lease, after the first one.",
    ),
    ("leasehold_fencing_rejected_total", Unit::Count, "Stale tokens that a fence refused."),
    ("leasehold_cron_ticks_total", Unit::Count, "Ticks of a schedule, by outcome."),
];

const HISTOGRAMS: &[Description] = &[
    ("leasehold_acquire_seconds", Unit::Seconds, "Duration of one acquire at the backend, with any result."),
    (
        "leasehold_wait_seconds",
        Unit::Seconds,
        "Time from a request to its end: granted, contended or failed.",
    ),
    ("leasehold_hold_seconds", Unit::Seconds, "Time from the grant of a lease to its end."),
    (
        "leasehold_renewal_margin_seconds",
        Unit::Seconds,
        "Time that was left, at each renewal, before the holder would have stopped.",
    ),
];

const GAUGES: &[Description] = &[
    ("leasehold_held", Unit::Count, "Leases that this process holds."),
    ("leasehold_waiting", Unit::Count, "Requests that wait at the backend."),
    ("leasehold_leaked", Unit::Count, "Claims that could not be released since the start."),
    (
        "leasehold_cron_last_success_timestamp_seconds",
        Unit::Seconds,
        "When the job of a schedule last succeeded, in seconds since 1970.",
    ),
];

/// The metrics of one kind of resource.
pub(crate) struct KindMetrics {
    pub(super) granted: Counter,
    pub(super) contended: Counter,
    pub(super) failed: Counter,
    pub(super) released: Counter,
    pub(super) released_gone: Counter,
    pub(super) release_failed: Counter,
    pub(super) stale_release: Counter,
    pub(super) extended: Counter,
    pub(super) extend_failed: Counter,
    pub(crate) contention: Counter,
    pub(crate) retries: Counter,
    lost: [(EndReason, Counter); 5],
    pub(crate) acquire: Histogram,
    pub(super) wait: Histogram,
    pub(super) hold: Histogram,
    pub(super) renewal_margin: Histogram,
    pub(super) held: Gauge,
    pub(crate) waiting: Gauge,
    pub(super) leaked: Gauge,
}

impl KindMetrics {
    pub(super) fn new(kind: &Arc<str>, backend: &'static str) -> KindMetrics {
        let kind = || SharedString::from_shared(Arc::clone(kind));
        macro_rules! metric {
            ($make:ident, $name:literal $(, $label:literal => $value:expr)?) => {
                metrics::$make!($name, "kind" => kind(), "backend" => backend $(, $label => $value)?)
            };
        }
        let lost = [
            EndReason::Expired,
            EndReason::NotOurs,
            EndReason::Evicted,
            EndReason::MaxHold,
            EndReason::NoProgress,
        ];
        KindMetrics {
            granted: metric!(counter, "leasehold_acquire_total", "outcome" => "granted"),
            contended: metric!(counter, "leasehold_acquire_total", "outcome" => "contended"),
            failed: metric!(counter, "leasehold_acquire_total", "outcome" => "failed"),
            released: metric!(counter, "leasehold_release_total", "outcome" => "released"),
            released_gone: metric!(counter, "leasehold_release_total", "outcome" => "already_gone"),
            release_failed: metric!(counter, "leasehold_release_total", "outcome" => "failed"),
            stale_release: metric!(counter, "leasehold_stale_release_total"),
            extended: metric!(counter, "leasehold_extend_total", "outcome" => "extended"),
            extend_failed: metric!(counter, "leasehold_extend_total", "outcome" => "failed"),
            contention: metric!(counter, "leasehold_contention_total"),
            retries: metric!(counter, "leasehold_acquire_retries_total"),
            lost: lost.map(|why| (why, metric!(counter, "leasehold_lost_total", "reason" => why.as_str()))),
            acquire: metric!(histogram, "leasehold_acquire_seconds"),
            wait: metric!(histogram, "leasehold_wait_seconds"),
            hold: metric!(histogram, "leasehold_hold_seconds"),
            renewal_margin: metric!(histogram, "leasehold_renewal_margin_seconds"),
            held: metric!(gauge, "leasehold_held"),
            waiting: metric!(gauge, "leasehold_waiting"),
            leaked: metric!(gauge, "leasehold_leaked"),
        }
    }

    pub(super) fn lost(&self, why: EndReason) -> &Counter {
        &self.lost.iter().find(|(reason, _)| *reason == why).unwrap_or(&self.lost[0]).1
    }
}

/// Counts a waiter in a gauge until it is dropped.
pub(crate) struct WaitingGauge<'a>(&'a Gauge);

impl<'a> WaitingGauge<'a> {
    pub(crate) fn count(gauge: &'a Gauge) -> WaitingGauge<'a> {
        gauge.increment(1);
        WaitingGauge(gauge)
    }
}

impl Drop for WaitingGauge<'_> {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

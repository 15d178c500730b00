//! How long, how often, how much of a core.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::counting::allocations;

/// What one operation costs.
pub(crate) struct Cost {
    /// Nanoseconds, of each round.
    pub(crate) nanos: Vec<f64>,
    /// Allocations, on average.
    pub(crate) allocations: f64,
}

impl Cost {
    /// The middle round: one that was disturbed does not count.
    pub(crate) fn median(&self) -> f64 {
        let mut nanos = self.nanos.clone();
        nanos.sort_by(f64::total_cmp);
        nanos[nanos.len() / 2]
    }

    /// `2.1 µs (1.9–2.8)`
    pub(crate) fn time(&self) -> String {
        let micros = |nanos: f64| nanos / 1000.0;
        let least = self.nanos.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.nanos.iter().copied().fold(0.0, f64::max);
        format!("{:.2} µs ({:.2}–{:.2})", micros(self.median()), micros(least), micros(most))
    }
}

/// Nine rounds of `times`, after a warm-up.
pub(crate) async fn cost(times: u32, mut operation: impl AsyncFnMut()) -> Cost {
    for _ in 0..times / 5 {
        operation().await;
    }
    let before = allocations();
    let mut nanos = Vec::with_capacity(9);
    for _ in 0..9 {
        let started = thread_time();
        for _ in 0..times {
            operation().await;
        }
        nanos.push(per(thread_time() - started, times));
    }
    let allocations = (allocations() - before) as f64 / (9.0 * f64::from(times));
    Cost { nanos, allocations }
}

/// Nanoseconds of one, if so many took this long.
pub(crate) fn per(took: Duration, times: u32) -> f64 {
    took.as_nanos() as f64 / f64::from(times)
}

/// Time that this process has spent on a core so far.
pub(crate) fn process_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// Time that this thread has spent on a core so far. Everything that is measured runs on one thread, and a machine
/// that is busy with other things as well takes longer, but does not need more.
pub(crate) fn thread_time() -> Duration {
    read(ClockId::ThreadCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

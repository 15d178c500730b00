//! What one operation costs: CPU time and allocations.

use std::time::Duration;

use leasehold_bench::thread_cpu_time;

use crate::counting::allocations;

const ROUNDS: u32 = 9;
/// The warm-up before the rounds is this part of a round.
const WARM_UP_PART: u32 = 5;

/// What one operation costs.
pub(crate) struct OperationCost {
    /// Nanoseconds of CPU time for one operation, in each round.
    pub(crate) nanos: Vec<f64>,
    /// Allocations of one operation, on average.
    pub(crate) allocations: f64,
}

impl OperationCost {
    /// The nanoseconds of the round in the middle: a disturbed round does not count.
    pub(crate) fn median(&self) -> f64 {
        leasehold_bench::median(self.nanos.clone())
    }

    /// `2.1 µs (1.9–2.8)`: the median, the least and the most.
    pub(crate) fn time(&self) -> String {
        let micros = |nanos: f64| nanos / 1000.0;
        let least = self.nanos.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.nanos.iter().copied().fold(0.0, f64::max);
        format!("{:.2} µs ({:.2}–{:.2})", micros(self.median()), micros(least), micros(most))
    }
}

/// Measures nine rounds of `times` operations each, after a warm-up.
pub(crate) async fn measure_cost(times: u32, mut operation: impl AsyncFnMut()) -> OperationCost {
    for _ in 0..times / WARM_UP_PART {
        operation().await;
    }
    let before = allocations();
    let mut nanos = Vec::with_capacity(ROUNDS as usize);
    for _ in 0..ROUNDS {
        let started = thread_cpu_time();
        for _ in 0..times {
            operation().await;
        }
        nanos.push(nanos_each(thread_cpu_time() - started, times));
    }
    let allocations = (allocations() - before) as f64 / (f64::from(ROUNDS) * f64::from(times));
    OperationCost { nanos, allocations }
}

/// Nanoseconds of one operation, if `times` operations took `took` together.
pub(crate) fn nanos_each(took: Duration, times: u32) -> f64 {
    took.as_nanos() as f64 / f64::from(times)
}

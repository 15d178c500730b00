//! What the benchmarks of the workspace share: medians, rates, and a table of figures beside their targets.
//!
//! The program `leasehold-bench` (`main.rs`) measures the memory backend. Each backend, the fence and the
//! program `leasehold` have benchmarks of their own in their `benches` folders, which use this library as a
//! dev-dependency.

mod arguments;
mod cpu_time;
mod median;
mod rate;
mod renewal_margins;
mod table;

pub use arguments::BenchArguments;
pub use cpu_time::{process_cpu_time, thread_cpu_time};
pub use median::{median, median_ratio, percentile};
pub use rate::{Rate, lease_pairs, rate};
pub use renewal_margins::RenewalMargins;
pub use table::Table;

//! Jobs on a schedule, each tick of which runs once on all machines together.
//!
//! A *tick* is a job and the instant for which it was scheduled. Every machine computes the same ticks from the same
//! expression; whoever comes first [claims](Cron::claim) the tick, and it stays claimed long after the run, so that a
//! machine whose clock is behind finds it taken. A run that crashed is not repeated: **at most once**.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
//! use leasehold_patterns::schedule::{Cron, Missed, Schedule};
//!
//! let leases = leasehold::connect("memory:").await?;
//! let nightly = Schedule::parse("30 2 * * *")?.in_zone("Europe/Berlin")?;
//! let cron = Cron::new(&leases, "cleanup", nightly).missed(Missed::Latest);
//! let forever = cron.run(async |tick| {
//!     println!("{} under token {}", tick.at, tick.lease.token());
//!     Ok::<(), String>(()) // an error is recorded, and the next tick comes all the same
//! });
//! # drop(forever);
//! # Ok(()) }
//! ```
//!
//! # When not to use it
//!
//! - Where a tick must not be lost: a run that crashed is not repeated. Put the work into a durable job table, and let the
//!   tick only add the job.
//! - Where one machine is enough and may be down: `cron` itself, or a systemd timer.
//! - For correctness: the lease saves the second run. What the job changes must be guarded by itself, item by item, with a
//!   conditional update and an audit record.

mod cron;
mod expression;
mod instant;
mod memory;
mod record;
mod report;
mod stretch;
mod ticks;

pub use self::{
    cron::{Claimed, Cron, Missed, Overlap, Tick},
    expression::Schedule,
    instant::Instant,
    record::{Outcome, Record},
    report::{Report, reports},
    ticks::Ticks,
};

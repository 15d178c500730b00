//! Jobs on a schedule: each tick runs once on all machines together.
//!
//! A *tick* is a job and the time for which it was scheduled. Every machine computes the same ticks from the
//! same expression. The first machine [claims](Cron::claim) the tick. The claim stays long after the run, so
//! a machine whose clock is behind finds the tick claimed (ADR 0029). A run that crashed is not repeated:
//! **at most once**.
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
//!     Ok::<(), String>(()) // an error is recorded, and the next tick runs all the same
//! });
//! # drop(forever);
//! # Ok(()) }
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `cron` | [`Cron`]: claims ticks and runs the job |
//! | `ticks` | [`Ticks`]: the ticks of a job, each when it is due |
//! | `expression`, `offset_period` | [`Schedule`]: which ticks there are, also when the clocks of a zone change |
//! | `tick_time` | [`TickTime`]: the time of a tick, to the second |
//! | `retention` | how long the claim of a tick stays |
//! | `record`, `report` | what is stored about a tick, and [`reports`] for operators |
//!
//! # When not to use it
//!
//! - If a tick must not be lost: a run that crashed is not repeated. Put the work into a durable job table
//!   (`leasehold_patterns::jobs`), and let the tick only add the job.
//! - If one machine is enough and may be down: use `cron` itself, or a systemd timer.
//! - For correctness: the lease only saves a second run. Guard what the job changes, item by item, with a
//!   conditional update and an audit record.

mod cron;
mod expression;
mod offset_period;
mod record;
mod report;
mod retention;
mod tick_time;
mod ticks;

pub use self::{
    cron::{ClaimedTick, Cron, Missed, Overlap, Tick},
    expression::Schedule,
    record::{TickOutcome, TickRecord},
    report::{CronReport, reports},
    tick_time::TickTime,
    ticks::Ticks,
};

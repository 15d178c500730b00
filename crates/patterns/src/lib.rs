//! Patterns on top of leases, for work that has to be done once.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
//! use leasehold_patterns::schedule::{Cron, Schedule};
//!
//! let leases = leasehold::connect("memory:").await?;
//! let nightly = Schedule::parse("30 2 * * *")?.in_zone("Europe/Berlin")?;
//! let cron = Cron::new(&leases, "cleanup", nightly);
//! let forever = cron.run(async |tick| {
//!     println!("{} under token {}", tick.at, tick.lease.token());
//!     Ok::<(), String>(()) // an error is recorded, and the next tick runs all the same
//! });
//! # drop(forever); // a program awaits it
//! # Ok(()) }
//! ```
//!
//! | you want | module | the page |
//! |---|---|---|
//! | a value that is computed once for all callers | `single_flight` | `docs/patterns/single-flight.md` |
//! | versions, row locks and advisory locks of PostgreSQL | `database` | `docs/patterns/database.md` |
//! | a repeated request that gets the first response again | `idempotency` | `docs/patterns/idempotency.md` |
//! | jobs that are done although workers die | `jobs` | `docs/patterns/jobs.md` |
//! | a job on a schedule that runs once on all machines together | `schedule` | `docs/patterns/schedule.md` |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(all(feature = "postgres", feature = "redis", feature = "sqlite")),
    allow(dead_code, reason = "helpers of stores that are not built")
)]

#[cfg(feature = "postgres")]
pub mod database;
#[cfg(feature = "idempotency")]
pub mod idempotency;
#[cfg(feature = "jobs")]
pub mod jobs;
#[cfg(feature = "schedule")]
pub mod schedule;
#[cfg(feature = "single-flight")]
pub mod single_flight;

#[cfg(any(feature = "idempotency", feature = "jobs", feature = "single-flight"))]
mod numbers;
#[cfg(all(feature = "postgres", any(feature = "idempotency", feature = "jobs", feature = "single-flight")))]
mod postgres;
#[cfg(all(feature = "sqlite", any(feature = "idempotency", feature = "jobs", feature = "single-flight")))]
mod sqlite;

/// Compiles the programs in the page.
#[cfg(all(doctest, feature = "jobs", feature = "sqlite"))]
#[doc = include_str!("../../../docs/patterns/jobs.md")]
pub struct JobsPage;

/// Compiles the programs in the page.
#[cfg(all(doctest, feature = "single-flight", feature = "sqlite"))]
#[doc = include_str!("../../../docs/patterns/single-flight.md")]
pub struct SingleFlightPage;

/// Compiles the programs in the page.
#[cfg(all(doctest, feature = "http", feature = "sqlite"))]
#[doc = include_str!("../../../docs/patterns/idempotency.md")]
pub struct IdempotencyPage;

/// Compiles the programs in the page.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/patterns/http-handlers.md")]
pub struct HttpHandlersPage;

/// Compiles and runs the programs in the page on what the database itself offers.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../docs/patterns/database.md")]
pub struct DatabasePage;

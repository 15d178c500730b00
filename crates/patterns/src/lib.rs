//! What people want when they ask for a lock: work that is done once.
//!
//! | you want | module | the page |
//! |---|---|---|
//! | a value that is computed once for all who ask | `single_flight` | `docs/patterns/single-flight.md` |
//! | what PostgreSQL itself offers: versions, row locks, advisory locks | `database` | `docs/patterns/database.md` |
//! | a request that is repeated, answered as the first time | `idempotency` | `docs/patterns/idempotency.md` |
//! | jobs that are done, whoever dies over them | `jobs` | `docs/patterns/jobs.md` |
//! | a job on a schedule, run once on all machines together | `schedule` | `docs/patterns/schedule.md` |
#![cfg_attr(
    not(all(feature = "postgres", feature = "redis", feature = "sqlite")),
    allow(dead_code, reason = "what the stores share is used by those that are built")
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

/// The programs of the pages compile.
#[cfg(all(doctest, feature = "jobs", feature = "sqlite"))]
#[doc = include_str!("../../../docs/patterns/jobs.md")]
pub struct JobsPage;

/// As above.
#[cfg(all(doctest, feature = "single-flight", feature = "sqlite"))]
#[doc = include_str!("../../../docs/patterns/single-flight.md")]
pub struct SingleFlightPage;

/// As above.
#[cfg(all(doctest, feature = "http", feature = "sqlite"))]
#[doc = include_str!("../../../docs/patterns/idempotency.md")]
pub struct IdempotencyPage;

/// The programs of the page compile.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../docs/patterns/database.md")]
pub struct DatabasePage;

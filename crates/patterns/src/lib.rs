//! What people want when they ask for a lock: work that is done once.
//!
//! | you want | module | the page |
//! |---|---|---|
//! | what PostgreSQL itself offers: versions, row locks, advisory locks | `database` | `docs/patterns/database.md` |
//! | jobs that are done, whoever dies over them | `jobs` | `docs/patterns/jobs.md` |
//! | a job on a schedule, run once on all machines together | `schedule` | `docs/patterns/schedule.md` |

#[cfg(feature = "postgres")]
pub mod database;
#[cfg(feature = "jobs")]
pub mod jobs;
#[cfg(feature = "schedule")]
pub mod schedule;

/// The programs of the pages compile.
#[cfg(all(doctest, feature = "jobs", feature = "sqlite"))]
#[doc = include_str!("../../../docs/patterns/jobs.md")]
pub struct JobsPage;

/// The programs of the page compile.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../docs/patterns/database.md")]
pub struct DatabasePage;

//! What people want when they ask for a lock: work that is done once.
//!
//! | you want | module | the page |
//! |---|---|---|
//! | a job on a schedule, run once on all machines together | [`schedule`] | `docs/patterns/schedule.md` |

#[cfg(feature = "schedule")]
pub mod schedule;

//! The checking side of fencing tokens: whoever comes too late is refused where the effect happens.
//!
//! A lease can be lost without its holder knowing: the process was stopped, the machine frozen, the network slow. Then
//! someone else is granted, and the first one wakes up and writes. Only the place that is written to can refuse that, and
//! only if it remembers the highest token it has seen, in the same atomic step as the effect. Here is that, for:
//!
//! | module | feature | where the effect is |
//! |---|---|---|
//! | `postgres` | `postgres` | tables of PostgreSQL, in your own transaction; for every client, by triggers |
//! | `sqlite` | `sqlite` | tables of SQLite, in your own transaction; for every client, by triggers |
//! | `redis` | `redis` | keys of Redis |
//! | `http` | `http` | requests, before the handler; and the headers that a client sends |
//! | [`rule`] | | anything else: the rule itself, pure |
//!
//! # The rule
//!
//! A [`Pass`] is admitted if its token is above the highest seen for its resource, or equal and from the same owner. It is
//! remembered then. Everything else is refused as stale: `ErrorKind::StaleToken`, with both numbers in
//! [`Error::stale_token`](leasehold_core::Error::stale_token). Only a [`FencingToken`] makes a pass: the number of a
//! shared grant is a type of its own, because those who share are in no order.
//!
//! # Read-modify-write
//!
//! A fence that is passed with the write alone lets an update be lost: 33 reads, 34 reads, 33 writes (nobody has shown 34
//! yet), 34 writes over it. Show the pass *before the first read*: `enter`, or `admit` at the top of the transaction that
//! both reads and writes.
//!
//! Refusals are counted as `leasehold_fencing_rejected_total{kind, downstream}` and logged: see [`observe`].

pub mod observe;
pub mod rule;
mod tables;
mod template;

#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use leasehold_core::{FencingToken, OwnerHash, Pass, Resource};
pub use tables::{Fenced, Rebase, Rebased};
pub use template::Template;

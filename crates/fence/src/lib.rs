//! The checking side of fencing tokens: a write with a stale token is refused where it would take effect.
//!
//! A lease can be lost without its holder knowing: the process was stopped, the machine frozen, the network slow. Then
//! another client is granted the resource, and the first one wakes up and writes. Only the system that is written to (the
//! *downstream*) can refuse that write. For this it stores the highest token that it has admitted for each resource (the
//! *mark*), and checks it in the same atomic step as the write.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold_fence::{FencingToken, Pass, Resource, sqlite};
//!
//! let mut database = rusqlite::Connection::open_in_memory()?;
//! sqlite::setup(&database)?;
//! let mut write = |token: u64| -> Result<(), Box<dyn std::error::Error>> {
//!     // A holder takes its pass from its lease: `lease.pass()`.
//!     let pass = Pass::new(Resource::new("report", "42")?, FencingToken::new(token).unwrap());
//!     let transaction = database.transaction()?;
//!     sqlite::admit(&transaction, &pass)?; // in the same transaction as the write
//!     transaction.execute_batch("CREATE TABLE IF NOT EXISTS report (body TEXT)")?;
//!     Ok(transaction.commit()?)
//! };
//! write(34)?;
//! assert!(write(33).is_err(), "the holder with token 33 comes too late");
//! # Ok(()) }
//! ```
//!
//! This crate does that for:
//!
//! | module | feature | what is fenced |
//! |---|---|---|
//! | `postgres` | `postgres` | tables of PostgreSQL: in your own transaction, or for every client with triggers |
//! | `sqlite` | `sqlite` | tables of SQLite: in your own transaction, or for every client with triggers |
//! | [`mariadb`] | | tables of MariaDB: in your own transaction, or for every client with triggers; as SQL, for any driver |
//! | `redis` | `redis` | keys of Redis |
//! | `http` | `http` | HTTP requests, before the handler; also the headers that a client sends |
//! | [`rule`] | | anything else: the rule as pure functions |
//! | [`sqlstate`] | | the errors of the SQL functions and triggers, for any driver |
//! | [`observe`] | | the metric and the log line of a refusal |
//!
//! # The rule
//!
//! A [`Pass`] is what a writer shows: a token, the resource, and the hash of the owner (ADR 0027). It is admitted if its token
//! is above the mark of its resource, or equal and from the same owner. The token becomes the new mark then. Every other pass
//! is refused as stale: `ErrorKind::StaleToken`, with both numbers in
//! [`Error::stale_token`](leasehold_core::Error::stale_token). Only a [`FencingToken`] makes a pass. The number of a shared
//! grant has another type, because holders that share a resource have no order.
//!
//! # Read-modify-write
//!
//! A fence that is checked only with the write can lose an update: 33 reads, 34 reads, 33 writes (34 was not shown yet), 34
//! overwrites it. Show the pass *before the first read*: with `enter`, or with `admit` at the start of the transaction that
//! both reads and writes.
//!
//! Refusals are counted as `leasehold_fencing_rejected_total{kind, downstream}` and logged: see [`observe`].
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod mariadb;
pub mod observe;
pub mod rule;
pub mod sqlstate;
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
pub use sqlstate::explain_sqlstate;
pub use tables::{Fenced, Rebase, Rebased};
pub use template::Template;

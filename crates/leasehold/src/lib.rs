//! Time-bounded ownership of anything, with fences that hold.
//!
//! A *lease* is the right to act until a certain time, which moves on as long as renewals succeed. Acquire one before work
//! that only one process may do at a time. If it is lost, its holder is told to stop before another claim can be granted.
//! Send its *fencing token* to the place where the effect happens: that place refuses a holder that comes too late.
//!
//! # Quick start
//!
//! ```
//! # async fn export(report: u64, token: leasehold::FencingToken) -> Result<(), std::io::Error> { Ok(()) }
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! let leases = leasehold::connect("memory:").await?;
//!
//! // Waits for up to ten seconds, renews the lease while the work runs, stops the work if the lease is lost, releases it.
//! let report = leases.lease("report", "42").ttl(Duration::from_secs(30));
//! report.run(async |lease| export(42, lease.token()).await).await??; // the first ? is for a lost lease, the second for the work
//!
//! // Only if it is free.
//! if let Some(lease) = leases.lease("report", "43").try_acquire().await? {
//!     lease.run(async |lease| export(43, lease.token()).await).await??;
//! }
//!
//! // In steps, for work that does not fit into a closure.
//! let lease = leases.lease("report", "44").acquire().await?;
//! lease.hold(export(44, lease.token())).await??;
//! drop(lease.release().await); // the report is exported, whatever the release says: see `Lease::release`
//! # Ok(()) }
//! ```
//!
//! # Overview
//!
//! | you want | start at | you get |
//! |---|---|---|
//! | a client | [`connect()`], [`Client::builder`] | [`Client`] |
//! | one holder at a time | [`Client::lease`] | [`LeaseRequest`] → [`Lease`] |
//! | at most n holders at a time | [`Client::semaphore`] | [`Semaphore`] → [`SharedLease`] |
//! | many readers or one writer | [`Client::rwlock`] | [`RwLock`] → [`SharedLease`], [`Lease`] |
//! | a reader that can become the writer | [`RwLock::upgradable`] | [`UpgradableRwLock`] → [`UpgradableLease`], [`UpgradedLease`] |
//! | to wait until n parts are done | [`Client::count_down_latch`], [`Client::barrier`] | [`CountDownLatch`], [`Barrier`] |
//! | a leader that all clients can see | [`Client::election`] | [`Election`], [`Observer`], [`Leader`] |
//! | a lease that is reentrant | [`LeaseRequest::within`] | [`Scope`] |
//! | several leases, all or none | [`Client::all`] | [`AllRequest`] → [`LeaseSet`], [`LeaseSetView`] |
//! | to move a lease to another process | [`Lease::detach`], [`Client::adopt`] | [`Detached`] |
//! | to know whether a lease still holds | [`LeaseView::check`], [`hold`](LeaseView::hold), [`ended`](LeaseView::ended) | [`State`], [`EndReason`] |
//! | to see who holds what, and what happens | [`Client::look`], [`Client::list`], [`Client::events`] | [`Snapshot`], [`Event`] |
//! | to decide whether a lease is the right tool | [`advice`] | [`Purpose`], advice for your answers |
//! | a program without async | [`blocking::connect`] | the same in calls that block |
//! | to test your program | [`testing::ManualTime`] | a clock that moves only when you move it |
//! | a backend of your own | [`Backend`] | all of the above, on your backend |
//!
//! A [`Lease`] is the right to act: it is not `Clone`, and it is released when it is dropped. It derefs to a [`LeaseView`],
//! which can be cloned and given to other tasks, and never owns the lease. Every request is a [`LeaseRequest`], for every
//! primitive. It borrows nothing, so it can be stored, moved into a task, or put into an array with others.
//!
//! # What is guaranteed
//!
//! As much as the backend guarantees: [`Client::info`] says how far its exclusion can be trusted, and why. A request for
//! [`Purpose::Correctness`] is refused on a backend that is too weak. An [`Error`] says what went wrong and, as its
//! [`Effect`], whether the request may have been executed all the same.
//!
//! A lease cannot stop a process that does not check it, and cannot call back a request that was sent. Where a mistake
//! costs money, check the [`FencingToken`] in the same atomic step as the effect.
//!
//! # Features
//!
//! | feature | backend | default |
//! |---|---|---|
//! | | `memory:`, always included | |
//! | `sqlite` | `sqlite:PATH`, a file for many processes of one host; needs a C compiler | yes |
//! | `redis` | `redis://HOST`, one server; `redis+sentinel://HOST,HOST/SERVICE`; `redis+cluster://HOST,HOST`; `redlock://HOST,HOST,HOST` | yes |
//! | `redis-tls` | `rediss://HOST` | no |
//! | `postgres`, `postgres-tls` | `postgres://USER@HOST/DATABASE` | no |
//! | `etcd`, `etcd-tls` | `etcd://HOST,HOST`; needs `protoc` | no |
//! | `zookeeper` | `zookeeper://HOST,HOST/CHROOT` | no |
//! | `http`, `http-tls` | `http://HOST`, `https://HOST`: a leasehold server, whichever store it serves | no |
//! | `full` | all backends | no |
//!
//! The feature `serde` adds `Serialize` for what programs log or send: [`FencingToken`], [`Resource`], [`Pass`], [`State`],
//! [`Busy`], [`Error`], [`Event`], [`Leader`], [`Snapshot`]. Tokens, resources and passes can also be read. An
//! [`OwnerToken`] is a secret and cannot be serialized.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod advice;
pub mod blocking;
mod client;
mod connect;
mod detached;
mod engine;
mod lease;
mod memory;
mod primitives;
mod quorum;
mod request;
#[cfg(feature = "serde")]
mod serialize;
mod stream;
mod system;
pub mod testing;

pub use advice::Purpose;
pub use client::{Client, ClientBuilder, Events, StaleTokenReport, TokenKind};
pub use connect::{connect, open};
pub use detached::Detached;
pub use engine::metrics::describe_metrics;
pub use lease::{Lease, LeaseView, SharedLease, State};
// For callers.
pub use leasehold_core::{
    AuditRecord, Backoff, Busy, CommandOutcome, Effect, EndReason, Error, ErrorKind, Event, EventKind,
    Eviction, FencingToken, FinishRequest, ForeignLock, HeldBy, Holder, HolderState, Leak, Listing,
    NodeStatus, OperatorAction, OperatorCommand, OwnerHash, OwnerToken, Page, Pass, Query, QueueEntry,
    Released, Resource, Result, Share, ShareNumber, Snapshot, Timestamp, ValueHash, Verb, WallTime,
};
// For a backend of your own. `leasehold-core` documents the rules that it has to follow.
pub use leasehold_core::{
    Backend, BackendExt, BackendInfo, Blocked, Capabilities, Claim, ClaimRef, ClientId, Clock, Cursor,
    Environment, FailureDomain, GoneReason, Grant, Guarantee, Handover, Limits, QuorumNode, ReleaseRequest,
    RenewRequest, Renewal, Renewed, SystemClock, Verdict, WhenBlocked, async_trait, one_by_one,
};
pub use memory::Memory;
pub use primitives::{
    AllRequest, Barrier, CountDownLatch, Election, Leader, LeaseSet, LeaseSetView, Observer, RwLock, Scope,
    Semaphore, UpgradableLease, UpgradableRequest, UpgradableRwLock, UpgradedLease,
};
pub use quorum::{Founded, MemoryNode, Quorum, found_redlock};
pub use request::{Attempt, LeaseRequest};
pub use system::System;

/// Compiles and runs the program in the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// Compiles and runs the programs in the page on elections.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/patterns/election.md")]
pub struct ElectionPage;

/// Compiles and runs the programs in the page on limits.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/patterns/limits.md")]
pub struct LimitsPage;

/// Compiles and runs the programs in the page on readers, writers, latches and barriers.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/patterns/readers-and-latches.md")]
pub struct ReadersAndLatchesPage;

/// Compiles and runs the programs in the page on runtimes.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/runtimes.md")]
pub struct RuntimesPage;

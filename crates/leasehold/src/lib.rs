//! Time-bounded ownership of anything, with fences that hold.
//!
//! A *lease* is the right to act until a certain time, which moves on as long as renewals succeed. Take one before doing
//! what only one may do; be told to stop before anyone else can be granted; show its *fencing token* where the effect
//! happens, so that whoever comes too late is refused there.
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
//! // Waits its turn for up to ten seconds; renewed by itself from then on.
//! let lease = leases.lease("report", "42").ttl(Duration::from_secs(30)).acquire().await?;
//! lease.hold(export(42, lease.token())).await??; // stopped on loss: the first ? is ours, the second the work's
//! lease.release().await?;
//!
//! // The same in one call: acquire, hold, release.
//! leases.lease("report", "43").run(async |lease| export(43, lease.token()).await).await??;
//!
//! // Only if it is free.
//! if let Some(lease) = leases.lease("report", "44").try_acquire().await? {
//!     lease.release().await?;
//! }
//! # Ok(()) }
//! ```
//!
//! # The map
//!
//! | you want | start at | you get |
//! |---|---|---|
//! | a client | [`connect`], [`Client::builder`] | [`Client`] |
//! | one at a time | [`Client::lease`] | [`LeaseRequest`] → [`Lease`] |
//! | at most n at a time | [`Client::semaphore`] | [`Semaphore`] → [`SharedLease`] |
//! | many readers or one writer | [`Client::rwlock`] | [`RwLock`] → [`SharedLease`], [`Lease`] |
//! | a leader whom all can see | [`Client::election`] | [`Election`], [`Observer`] |
//! | to enter again what you hold | [`LeaseRequest::within`] | [`Scope`] |
//! | several, all or none | [`Client::all`] | [`LeaseSet`] |
//! | to hand one to another process | [`Lease::detach`], [`Client::adopt`] | [`Detached`] |
//! | to know whether to go on | [`LeaseView::check`], [`hold`](LeaseView::hold), [`ended`](LeaseView::ended) | [`State`], [`EndReason`] |
//! | to see what happens | [`Client::events`], [`Client::look`] | [`Event`], [`Snapshot`] |
//! | to test your program | [`testing::ManualTime`] | time that stands still until you move it |
//! | a backend of your own | [`Backend`] | everything above, on it |
//!
//! A [`Lease`] is the right itself: not `Clone`, and released when dropped. It derefs to a [`LeaseView`], which may be
//! cloned and passed around: it sees, checks and holds, and never owns. Every request is the one owned type
//! [`LeaseRequest`], whatever the primitive, so it may be stored, moved into a task, or put in an array with others.
//!
//! # What is promised
//!
//! As much as the backend promises: [`Client::info`] says how far its exclusion can be trusted and why. A request for
//! [`Purpose::Correctness`] is refused where that is too little. An [`Error`] says what went wrong and, as its
//! [`Effect`], whether the request may have been executed all the same.
//!
//! No lease can stop a process that does not look, nor call back a request that has left. Where being wrong costs money,
//! check the [`FencingToken`] in the same atomic step as the effect.
//!
//! # Features
//!
//! | feature | backend | default |
//! |---|---|---|
//! | | `memory:`, always there | |
//! | `sqlite` | `sqlite:PATH`, a file for many processes of one host; needs a C compiler | yes |
//! | `redis` | `redis://HOST`, one server; `redis+sentinel://HOST,HOST/SERVICE`; `redis+cluster://HOST,HOST`; `redlock://HOST,HOST,HOST` | yes |
//! | `redis-tls` | `rediss://HOST` | no |
//! | `postgres`, `postgres-tls` | `postgres://USER@HOST/DATABASE` | no |
//! | `etcd`, `etcd-tls` | `etcd://HOST,HOST`; needs `protoc` | no |
//! | `zookeeper` | `zookeeper://HOST,HOST/CHROOT` | no |
//! | `full` | all of them | no |

pub mod advice;
mod client;
mod connect;
mod detached;
mod engine;
mod lease;
mod memory;
mod primitives;
mod quorum;
mod request;
mod system;
pub mod testing;

pub use advice::Purpose;
pub use client::{Client, ClientBuilder, Events, TokenKind};
pub use connect::{connect, open};
pub use detached::Detached;
pub use lease::{Lease, LeaseView, SharedLease, State};
// For callers.
pub use leasehold_core::{
    AuditRecord, Backoff, Busy, CommandOutcome, Effect, EndReason, Error, ErrorKind, Event, EventKind,
    Eviction, FencingToken, FinishRequest, HeldBy, Holder, Leak, Listing, OperatorAction, OperatorCommand,
    OwnerHash, OwnerToken, Page, Pass, Query, QueueEntry, Released, Resource, Result, Share, ShareNumber,
    Snapshot, Timestamp, Verb, WallTime,
};
// For a backend of your own. The rules that it has to follow are in `leasehold-core`.
pub use leasehold_core::{
    Backend, BackendInfo, Blocked, Capabilities, Claim, ClaimRef, Clock, Cursor, Environment, FailureDomain,
    GoneReason, Grant, Guarantee, Handover, Limits, QuorumNode, ReleaseRequest, RenewRequest, Renewal,
    Renewed, SystemClock, Verdict, WhenBlocked, async_trait,
};
pub use memory::Memory;
pub use primitives::{AllRequest, Election, Leader, LeaseSet, Observer, RwLock, Scope, Semaphore};
pub use quorum::{MemoryNode, Quorum};
pub use request::{Attempt, LeaseRequest};
pub use system::System;

/// The README's program compiles and runs, too.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// So does the one of the page on elections.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/patterns/election.md")]
pub struct ElectionPage;

/// And that of the page on limits.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/patterns/limits.md")]
pub struct LimitsPage;

//! The contract of leasehold: the vocabulary, the [`Backend`] trait, and the pure rules that every backend follows.
//!
//! Nothing here does I/O or needs an async runtime. A backend implements [`Backend`]; everything for callers is written
//! once, above the trait, in the crate `leasehold`. Every word is explained in the [glossary].
//!
//! ```
//! use leasehold_core::{FencingToken, Pass, Resource};
//!
//! let report = Resource::new("report", "42")?;
//! let (first, second) = (FencingToken::new(33).unwrap(), FencingToken::new(34).unwrap());
//! assert!(first < second, "the token of a later grant is greater");
//! let pass = Pass::new(report, second); // what a holder shows to a fence
//! assert_eq!(pass.to_string().parse::<Pass>()?, pass);
//! # Ok::<(), leasehold_core::Error>(())
//! ```
//!
//! [glossary]: https://github.com/leasehold/leasehold/blob/main/docs/glossary.md
//!
//! | module | what it holds |
//! |---|---|
//! | [`resource`] | the name of what is locked, and how it is encoded |
//! | [`token`] | fencing tokens, owner tokens, and how a token is minted |
//! | [`pass`] | what a holder presents to a fence |
//! | [`claim`] | the requests to a backend: claims, renewals, releases, commands, queries |
//! | [`verdict`] | the replies of a backend |
//! | [`backend`] | the trait, with its contract B1–B10 |
//! | [`quorum_node`] | one server of a quorum (Redlock): how it votes, and how votes are counted |
//! | [`admission`] | the admission rule: when a claim is granted |
//! | [`model`] | one resource as a pure state machine: the executable specification |
//! | [`queue`] | claims that wait, and which of them answer |
//! | [`backoff`] | how long to wait before asking again |
//! | [`clock`] | time, random numbers, sleeping and tasks, behind one trait |
//! | [`request_id`] | how a reply proves which request it belongs to |
//! | [`event`] | what happened to the claims of a client |
//! | [`holder_state`] | whether a holder still renews its lease |
//! | [`error`] | what went wrong, and whether the request may have had an effect |
//! | `serialize` | with the feature `serde`: how tokens, resources, errors and events are written |

pub mod admission;
pub mod backend;
pub mod backoff;
pub mod claim;
pub mod clock;
pub mod error;
pub mod event;
mod expiring;
pub mod holder_state;
pub mod model;
pub mod pass;
pub mod queue;
pub mod quorum_node;
pub mod request_id;
pub mod resource;
#[cfg(feature = "serde")]
pub mod serialize;
pub mod token;
pub mod verdict;

pub use async_trait::async_trait;
pub use backend::{
    Backend, BackendExt, BackendInfo, Capabilities, FailureDomain, Guarantee, Limits, one_by_one,
};
pub use backoff::Backoff;
pub use claim::{
    Claim, ClaimRef, ClientId, Cursor, Eviction, Handover, Holder, Listing, OperatorAction, OperatorCommand,
    Query, ReleaseRequest, RenewRequest, Share, StoredHolder, ValueHash, WhenBlocked,
};
pub use clock::{Clock, Environment, SystemClock, Timestamp, WallTime};
pub use error::{Busy, Effect, Error, ErrorKind, Result, Verb};
pub use event::{EndReason, Event, EventKind};
pub use holder_state::HolderState;
pub use model::Model;
pub use pass::{OwnerHash, Pass};
pub use quorum_node::QuorumNode;
pub use request_id::{RequestId, RequestIds};
pub use resource::Resource;
pub use token::{FencingToken, OwnerToken, ShareNumber};
pub use verdict::{
    AuditRecord, Blocked, CommandOutcome, FinishRequest, ForeignLock, GoneReason, Grant, HeldBy, Leak,
    NodeStatus, Page, QueueEntry, Released, Renewal, Renewed, Snapshot, Verdict,
};

//! The contract of leasehold: the words, the [`Backend`] trait, and the pure rules that every backend follows.
//!
//! Nothing here does I/O or knows an async runtime. A backend implements [`Backend`] and depends on this crate
//! alone; everything that callers enjoy is written once, above the trait, in the crate `leasehold`.
//!
//! | module | what it holds |
//! |---|---|
//! | [`resource`] | what is contended, and how its name is encoded |
//! | [`token`] | fencing tokens, owner tokens, and how a token is minted |
//! | [`pass`] | what a holder shows at a fence |
//! | [`claim`] | what a backend is asked: claims, renewals, farewells, orders, queries |
//! | [`verdict`] | what a backend answers |
//! | [`backend`] | the trait, with its contract B1–B10 |
//! | [`quorum_node`] | a server that votes, for leases over a majority of independent servers |
//! | [`admission`] | the admission rule: who is granted |
//! | [`model`] | one resource as a pure state machine: the executable specification |
//! | [`backoff`] | how long to wait before asking again |
//! | [`clock`] | the one seam for time, chance and tasks |
//! | [`request_id`] | how an answer proves which request it belongs to |
//! | [`event`] | what happened, in the words of this crate |
//! | [`error`] | what went wrong, and whether it had an effect |

pub mod admission;
pub mod backend;
pub mod backoff;
pub mod claim;
pub mod clock;
pub mod error;
pub mod event;
mod expiring;
pub mod model;
pub mod pass;
pub mod quorum_node;
pub mod request_id;
pub mod resource;
pub mod token;
pub mod verdict;

pub use async_trait::async_trait;
pub use backend::{Backend, BackendInfo, Capabilities, FailureDomain, Guarantee, Limits};
pub use backoff::Backoff;
pub use claim::{
    Claim, ClaimRef, Cursor, Eviction, Handover, Holder, Listing, OperatorAction, OperatorCommand, Query,
    ReleaseRequest, RenewRequest, Share, WhenBlocked,
};
pub use clock::{Clock, Environment, SystemClock, Timestamp, WallTime};
pub use error::{Busy, Effect, Error, ErrorKind, Result, Verb};
pub use event::{EndReason, Event, EventKind};
pub use model::Model;
pub use pass::{OwnerHash, Pass};
pub use quorum_node::QuorumNode;
pub use request_id::{RequestId, RequestIds};
pub use resource::Resource;
pub use token::{FencingToken, OwnerToken, ShareNumber};
pub use verdict::{
    AuditRecord, Blocked, CommandOutcome, FinishRequest, GoneReason, Grant, HeldBy, Leak, Page, QueueEntry,
    Released, Renewal, Renewed, Snapshot, Verdict,
};

//! `GET /v1/deadlocks`: processes that hold one resource each and wait for that of another, in a circle.
//!
//! A process is known by what it says of itself: its host and pid, and the subject of its token. And one process may do many things at a
//! time. So a circle is a possible deadlock, never a certain one; the server reports it and does nothing.

use serde::{Deserialize, Serialize};

use crate::{fields::TokenText, inspect::HolderBody};

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct DeadlocksReply {
    /// Those whose resources the caller may all see.
    pub deadlocks: Vec<DeadlockBody>,
}

/// Processes that wait for each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct DeadlockBody {
    /// How sure it is.
    pub certainty: Certainty,
    /// The resources, in the order of `waits`.
    pub resources: Vec<ResourceRef>,
    /// Each process waits for what the next one holds, and the last one for what the first one holds.
    pub waits: Vec<WaitBody>,
    /// The same for people.
    pub sentence: String,
}

/// How sure a deadlock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Certainty {
    /// It looks like one.
    Possible,
    /// One of a later version.
    #[serde(other)]
    Unknown,
}

/// The names of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ResourceRef {
    /// The resource, as people write it.
    pub resource: String,
    /// Its key.
    pub key: String,
}

/// A process that holds a resource and waits for another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct WaitBody {
    /// The process.
    pub process: HolderBody,
    /// The resource that it holds, as people write it.
    pub holds: String,
    /// The token of that grant.
    pub token: TokenText,
    /// The resource that it waits for.
    pub waits_for: String,
    /// How long it has waited.
    pub waited_ms: u64,
}

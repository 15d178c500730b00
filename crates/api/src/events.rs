//! `GET /v1/events`: changes of resources, as server-sent events (`text/event-stream`).
//!
//! A server finds changes by comparing its samples: a change that starts and ends between two of them is not seen.
//!
//! | event | data |
//! |---|---|
//! | [`CHANGE`] | a [`ChangeBody`]. Its id is the `Last-Event-ID` from which another request goes on |
//! | [`RESYNC`] | a [`ResyncBody`]: changes may be missing. Read the overview again, and go on from here |
//! | [`SAMPLED`] | a [`SampledBody`]: the server has taken a sample, and all changes up to then were sent |
//! | [`DRAINING`] | none: the server is shutting down, and the stream ends. Connect again, after the `retry` that it says |

use serde::{Deserialize, Serialize};

use crate::{fields::TokenText, inspect::HolderBody};

/// The content type of the stream.
pub const EVENT_STREAM: &str = "text/event-stream";
/// The header with the id of the last event that a client has seen.
pub const LAST_EVENT_ID: &str = "last-event-id";
/// The name of an event: something has changed.
pub const CHANGE: &str = "change";
/// The name of an event: changes may be missing.
pub const RESYNC: &str = "resync";
/// The name of an event: the server has taken a sample.
pub const SAMPLED: &str = "sampled";
/// The name of an event: the server is shutting down.
pub const DRAINING: &str = "draining";

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ChangeKind {
    /// A claim holds the resource.
    Granted,
    /// A holder has released it.
    Released,
    /// A lease ran out: it was not renewed.
    Expired,
    /// A lease ended, and the samples cannot tell whether it was released or expired: the time between them was longer than it had left,
    /// and its holder renewed on time before. It is not counted as lost.
    Ended,
    /// A lease ran out, and another claim holds the resource now.
    TakenOver,
    /// A claim took over from another one of the same client.
    HandedOver,
    /// An operator ended a lease.
    Evicted,
    /// An operator evicted a holder: its lease is not renewed any more.
    Evicting,
    /// An operator asked a holder to finish.
    Asked,
    /// A holder renewed its lease after a renewal was overdue.
    RenewedLate,
    /// Claims joined the queue.
    Queued,
    /// Claims left the queue without a grant.
    Left,
    /// An operator paused the resource.
    Paused,
    /// The pause has ended.
    Resumed,
    /// The resource cannot be read any more.
    Unreadable,
    /// It can be read again.
    Readable,
    /// An operator changed the capacity. Only in a timeline: it comes from the audit trail.
    Resized,
    /// A kind of a later version.
    #[serde(other)]
    Unknown,
}

/// A change of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ChangeBody {
    /// When the server noticed it, for people: RFC 3339.
    pub at: String,
    /// What has changed.
    pub kind: ChangeKind,
    /// The resource, as people write it.
    pub resource: String,
    /// Its key.
    pub key: String,
    /// The token of the grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenText>,
    /// The token of the grant before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_token: Option<TokenText>,
    /// The process that has, or had, the grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<HolderBody>,
    /// How long it held, or how long the pause lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// How long a new holder had waited in the queue, in the sample before its grant. Where its process was seen there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// The number of claims that wait now.
    pub queue_length: u32,
    /// The operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The operator's reason; or why the resource cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Changes may be missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ResyncBody {
    /// Why.
    pub reason: ResyncReason,
    /// How many changes were left out, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<u64>,
}

/// The server has taken a sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct SampledBody {
    /// The age of the newest sample.
    pub age_ms: u64,
    /// The time between two samples.
    pub every_ms: u64,
    /// The id of the newest change.
    pub event_id: String,
    /// The kind of error with which the newest sample failed: the age is that of the sample before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
}

/// Why changes may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ResyncReason {
    /// The stream begins here: the request had no `Last-Event-ID`.
    Start,
    /// The `Last-Event-ID` is of another server, or of this one before a restart.
    OtherServer,
    /// The reader was too slow, or away for too long, or too much changed at once: reading the overview again costs less.
    Lag,
    /// A reason of a later version.
    #[serde(other)]
    Unknown,
}

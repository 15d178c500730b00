//! `GET /v1/overview`: all resources as a server has sampled them, to search, sort and page through.
//!
//! Durations are those at the time of the sample: `sampled_ms_ago` says how old they are.

use leasehold_core::HolderState;
use serde::{Deserialize, Serialize};

use crate::{
    fields::TokenText,
    inspect::{HeldByBody, HolderBody},
};

/// The most items of a page.
pub const LIMIT_MAX: u32 = 200;
/// The items of a page, if the query does not say.
pub const LIMIT_DEFAULT: u32 = 50;
/// A resource is stuck if a claim has waited for it for this long, unless the server is told otherwise.
pub const STUCK_AFTER_MS: u64 = 60_000;

/// The query.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OverviewQuery {
    /// Only resources whose name contains this. Upper and lower case count as the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub q: Option<String>,
    /// Only resources of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The order of the items.
    #[serde(default)]
    pub sort: OverviewSort,
    /// The `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// At most this many items: 200 or less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// The order of the items. Items that are equal are in the order of their keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OverviewSort {
    /// The longest wait first.
    #[default]
    Wait,
    /// The longest hold first.
    Hold,
    /// By key.
    Name,
    /// The longest queue first.
    Waiters,
}

impl OverviewSort {
    /// All orders.
    pub const ALL: [OverviewSort; 4] =
        [OverviewSort::Wait, OverviewSort::Hold, OverviewSort::Name, OverviewSort::Waiters];
}

/// The answer. The numbers are about all resources that the caller may see, whatever the query asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OverviewReply {
    /// The age of the sample.
    pub sampled_ms_ago: u64,
    /// How often the server looks at the store now: less often than it was told to if a look takes long.
    pub every_ms: u64,
    /// Since when this server has looked without a break, for people: RFC 3339.
    pub since: String,
    /// The id of the newest change before this sample: the `Last-Event-ID` from which `GET /v1/events` goes on.
    pub event_id: String,
    /// The kind of error with which the last look at the store failed. The sample is the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// The store has more resources than a sample.
    pub truncated: bool,
    /// Resources that are held.
    pub held: u64,
    /// Claims that wait.
    pub waiting: u64,
    /// Resources for which a claim has waited longer than `stuck_after_ms`.
    pub stuck: u64,
    /// From when on a resource counts as stuck.
    pub stuck_after_ms: u64,
    /// Resources that an operator has paused.
    pub paused: u64,
    /// Resources that cannot be read.
    pub unreadable: u64,
    /// The longest wait.
    pub oldest_wait: Option<OldestBody>,
    /// The longest hold.
    pub oldest_hold: Option<OldestBody>,
    /// How many resources the query matches.
    pub matched: u64,
    /// One page of them.
    pub items: Vec<OverviewItem>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// The resource with the longest wait, or the longest hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OldestBody {
    /// The resource, as people write it.
    pub resource: String,
    /// Its key.
    pub key: String,
    /// How long.
    pub ms: u64,
}

/// One resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OverviewItem {
    /// The resource, as people write it.
    pub resource: String,
    /// Its key.
    pub key: String,
    /// Its kind.
    pub kind: String,
    /// The capacity, while it is in use.
    pub capacity: u32,
    /// The first holders, by token.
    pub holders: Vec<OverviewHolder>,
    /// The number of all holders.
    pub holder_count: u32,
    /// The number of locks of other programs that hold it.
    pub foreign_count: u32,
    /// The number of claims that wait.
    pub queue_length: u32,
    /// The claim that has waited longest.
    pub first_waiter: Option<HolderBody>,
    /// How long it has waited.
    pub oldest_wait_ms: Option<u64>,
    /// How long the oldest holder has held it. Of a lock of another program: how long this server has seen it.
    pub oldest_hold_ms: Option<u64>,
    /// A claim has waited longer than `stuck_after_ms`.
    pub stuck: bool,
    /// The time until an operator's pause ends.
    pub paused_for_ms: Option<u64>,
    /// Why it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

/// A holder, and whether it still renews.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OverviewHolder {
    /// The holder.
    #[serde(flatten)]
    pub held_by: HeldByBody,
    /// `renewing`, `late` or `silent`, where that can be told.
    pub state: Option<String>,
}

impl OverviewHolder {
    /// A holder in this state, without its note.
    pub fn of(by: &leasehold_core::HeldBy) -> OverviewHolder {
        let mut held_by = HeldByBody::from(by);
        (held_by.note, held_by.note_base64) = (None, None);
        OverviewHolder { held_by, state: by.state().map(HolderState::as_str).map(str::to_owned) }
    }

    /// The token of its grant.
    pub fn token(&self) -> TokenText {
        self.held_by.token
    }
}

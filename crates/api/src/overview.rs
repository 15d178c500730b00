//! `GET /v1/overview`: all resources as a server has sampled them, to search, sort and page through.
//!
//! Durations are those at the time of the sample: `sampled_ms_ago` says how old they are.

use leasehold_core::HolderState;
use serde::{Deserialize, Serialize};

use crate::{
    fields::TokenText,
    inspect::{HeldByBody, HolderBody},
    store::{QuorumBody, StoreState},
};

/// The most items of a page.
pub const LIMIT_MAX: u32 = 200;
/// The items of a page, if the query does not say.
pub const LIMIT_DEFAULT: u32 = 50;
/// A resource is stuck if a claim has waited for it for this long, unless the server is told otherwise.
pub const STUCK_AFTER_MS: u64 = 60_000;
/// The most holders in [`OverviewItem::gone`].
pub const GONE_MAX: usize = 64;
/// The most kinds of an answer.
pub const KINDS_MAX: usize = 100;
/// The width of a bucket of [`RatesBody`].
pub const RATE_MINUTE_MS: u64 = 60_000;
/// The most buckets.
pub const RATE_MINUTES_MAX: usize = 60;

/// The query.
///
/// Resources that are only kept closed after a release are left out, unless a text, a key, a kind or `only` is asked for (ADR 0074).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OverviewQuery {
    /// Only resources whose name contains this. Upper and lower case count as the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub q: Option<String>,
    /// Only the resource with this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Only resources of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only resources like this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<OverviewFilter>,
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

/// Which resources an overview lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OverviewFilter {
    /// A claim has waited for longer than `stuck_after_ms`.
    Stuck,
    /// It has been held for much longer than is usual for its kind.
    Unusual,
    /// An operator has paused it.
    Paused,
    /// It cannot be read.
    Unreadable,
    /// The process of a holder does not exist any more.
    Gone,
    /// A lock of another program holds it.
    Foreign,
    /// It is part of a possible deadlock.
    Deadlocked,
    /// Claims wait for it.
    Waiting,
    /// It is held.
    Held,
    /// Its holder has published a note, as the leader of an election does.
    Leading,
    /// It is only kept closed after a release, as a tick of a schedule is.
    Kept,
}

/// The answer. The numbers are about all resources that the caller may see, whatever the query asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OverviewReply {
    /// The age of the sample.
    pub sampled_ms_ago: u64,
    /// The time between two samples now: longer than the server was told if a sample takes long.
    pub every_ms: u64,
    /// Since when this server has sampled without a break, for people: RFC 3339.
    pub since: String,
    /// The id of the newest change before this sample: the `Last-Event-ID` from which `GET /v1/events` goes on.
    pub event_id: String,
    /// The kind of error with which the newest sample failed. What is shown is the sample before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// The store has more resources than a sample.
    pub truncated: bool,
    /// Resources that are held.
    pub held: u64,
    /// Claims that wait.
    pub waiting: u64,
    /// Resources for which a claim has waited longer than `stuck_after_ms`. Without those in `led`.
    pub stuck: u64,
    /// Resources for which a claim has waited longer than `stuck_after_ms`, while their one holder renews and has published a note. They
    /// count as elections with candidates, not as stuck: a store does not tell an election from another holder with a note (ADR 0092).
    #[serde(default)]
    pub led: u64,
    /// From when on a resource counts as stuck.
    pub stuck_after_ms: u64,
    /// Resources that an operator has paused.
    pub paused: u64,
    /// Resources that cannot be read.
    pub unreadable: u64,
    /// Resources that are only kept closed after a release.
    #[serde(default)]
    pub kept: u64,
    /// Resources that have been held for much longer than is usual for their kind.
    pub unusual: u64,
    /// Resources with a holder whose process does not exist any more.
    pub gone: u64,
    /// Resources that a lock of another program holds.
    pub foreign: u64,
    /// Possible deadlocks: `GET /v1/deadlocks`.
    pub deadlocks: u64,
    /// What happened in the last hour, or since `since` if that is later.
    pub last_hour: LastHourBody,
    /// The same by minute.
    pub rates: RatesBody,
    /// The kinds with the most resources: at most 100. Without what only stays closed after a release.
    pub kinds: Vec<KindBody>,
    /// The health of the store.
    pub store: StoreSummary,
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

/// How many changes there were. A change that starts and ends between two samples is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct LastHourBody {
    /// Leases that ended before their holder released them: expired, and evicted.
    pub lost: u64,
    /// Leases that ran out: they were not renewed.
    pub expired: u64,
    /// Those of them where another claim held the resource in the next sample.
    pub taken_over: u64,
    /// Leases that an operator ended.
    pub evicted: u64,
    /// Leases that an operator ordered to end at their expiry.
    pub evicting: u64,
    /// Holders that an operator asked to finish.
    pub asked: u64,
    /// Leases that ended, and the samples cannot tell whether they were released or expired. They are not in `lost`.
    #[serde(default)]
    pub ended: u64,
    /// Grants.
    pub granted: u64,
}

/// Changes by minute, oldest first: at most 60 numbers. The last minute is not over yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct RatesBody {
    /// The width of a bucket.
    pub minute_ms: u64,
    /// Grants.
    pub granted: Vec<u64>,
    /// Releases.
    pub released: Vec<u64>,
    /// Leases that expired or were evicted.
    pub lost: Vec<u64>,
    /// Leases that were released or expired: the samples cannot tell which.
    #[serde(default)]
    pub ended: Vec<u64>,
    /// Times that a queue had become longer.
    pub queued: Vec<u64>,
}

/// The resources of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct KindBody {
    /// The kind.
    pub kind: String,
    /// All of them.
    pub resources: u64,
    /// Those that are held.
    pub held: u64,
    /// Claims that wait for them.
    pub waiting: u64,
    /// Those that are stuck.
    pub stuck: u64,
}

/// The health of the store: a part of `GET /v1/store`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct StoreSummary {
    /// Its state now.
    pub state: StoreState,
    /// The same for people: `redis, healthy`.
    pub sentence: String,
    /// How many of its servers it needs: of a Redlock set, which names all of them. `None` while nothing is known.
    pub quorum: Option<QuorumBody>,
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
    /// How it is shared. `None` while it is not in use.
    pub mode: Option<ShareMode>,
    /// The first holders, by token.
    pub holders: Vec<OverviewHolder>,
    /// The number of all holders.
    pub holder_count: u32,
    /// All holders whose process does not exist any more, the one with the most time left first: at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<OverviewHolder>,
    /// How many more of them there are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gone_more: u32,
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
    /// A claim has waited longer than `stuck_after_ms`, and `led` is false.
    pub stuck: bool,
    /// Its one holder renews and has published a note, as the leader of an election does: waits for it do not count as stuck.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub led: bool,
    /// The time until an operator's pause ends.
    pub paused_for_ms: Option<u64>,
    /// Why it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// It has been held for much longer than is usual for its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unusual_hold: Option<UnusualHoldBody>,
    /// The resources of the possible deadlock that it is part of, as people write them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadlock: Option<Vec<String>>,
    /// What to do now: one of `steps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<StepBody>,
    /// What can be done: first about the holders in `gone`, then the mildest first. Empty for a resource that needs nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepBody>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// How a resource is shared, as its capacity tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ShareMode {
    /// One holder.
    Exclusive,
    /// Many readers, or one writer.
    ReadWrite,
    /// Several holders, up to the capacity.
    Shared,
    /// A mode of a later version.
    #[serde(other)]
    Unknown,
}

impl ShareMode {
    /// The mode of a resource with this capacity. `None` if it is not in use.
    pub const fn of(capacity: u32) -> Option<ShareMode> {
        match capacity {
            0 => None,
            1 => Some(ShareMode::Exclusive),
            u32::MAX => Some(ShareMode::ReadWrite),
            _ => Some(ShareMode::Shared),
        }
    }
}

/// A hold that is longer than usual: more than three times as long as 99 of 100 holds of its namespace and kind that this server saw end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct UnusualHoldBody {
    /// 99 of 100 holds were at most so long.
    pub usual_ms: u64,
    /// How long this one is.
    pub held_ms: u64,
}

/// Something that can be done about a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct StepBody {
    /// What kind of step.
    pub step: StepName,
    /// What it is, in one sentence. It names the holder.
    pub text: String,
    /// The command, for a shell of the operator. `WHY` stands for the reason. `None` if there is nothing to run.
    pub command: Option<String>,
    /// What follows from it, in one sentence.
    pub consequence: String,
    /// The grant that it is for: send it with the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenText>,
    /// The lock of another program that it is for: send it with the order `evict-foreign`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_hash: Option<String>,
}

/// A kind of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StepName {
    /// Wait: it ends by itself.
    Wait,
    /// Ask the holder to finish.
    Ask,
    /// Evict the holder at the end of its lease.
    Evict,
    /// Evict the holder at once: two may run.
    EvictNow,
    /// Remove the lock of another program: two may run.
    EvictForeign,
    /// End a pause.
    Resume,
    /// Look more closely.
    Inspect,
    /// A step of a later version.
    #[serde(other)]
    Unknown,
}

/// A holder, and whether it still renews.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OverviewHolder {
    /// The holder.
    #[serde(flatten)]
    pub held_by: HeldByBody,
    /// `renewing`, `late` or `silent`, where that can be told; `gone` if its process was on the server's host and does not exist any
    /// more.
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

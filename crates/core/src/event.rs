//! Events: what happened to the claims of this client. Logs, metrics, a dashboard and tests all read this one stream.

use std::{fmt, time::Duration};

use crate::{
    clock::WallTime,
    error::{Error, ErrorKind},
    resource::Resource,
    token::FencingToken,
    verdict::{FinishRequest, Released},
};

/// Something that happened to a claim of this client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event {
    /// The time, by the wall clock of this host.
    pub at: WallTime,
    /// The resource.
    pub resource: Resource,
    /// The first digits of the owner token.
    pub owner_prefix: String,
    /// The token, once there is a grant.
    pub token: Option<FencingToken>,
    /// What happened.
    pub kind: EventKind,
}

impl Event {
    /// An event that does not name its claim yet.
    pub fn new(at: WallTime, resource: Resource, kind: EventKind) -> Event {
        Event { at, resource, owner_prefix: String::new(), token: None, kind }
    }

    /// Names the claim.
    #[must_use]
    pub fn of(mut self, owner_prefix: String, token: Option<FencingToken>) -> Event {
        self.owner_prefix = owner_prefix;
        self.token = token;
        self
    }
}

/// What can happen to a claim.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The claim was granted.
    Acquired {
        /// The time since the claim was made.
        waited: Duration,
        /// How many claims were ahead in the queue when it was first blocked.
        behind: u32,
        /// Another claim of this client handed the resource over, without releasing it in between.
        handed_over: bool,
        /// How many replicas acknowledged the grant, where that is known.
        acks: Option<u32>,
    },
    /// The claim was not granted: another one holds the resource, and the time to wait ran out.
    Contended {
        /// The time since the claim was made.
        waited: Duration,
    },
    /// The claim was not granted: the backend failed.
    Failed {
        /// The time since the claim was made.
        waited: Duration,
        /// The error of the backend.
        error: Error,
    },
    /// The lease was renewed.
    Renewed {
        /// How much time was left before the lease would have been lost.
        margin: Duration,
        /// More than half of the ttl had passed.
        late: bool,
    },
    /// A renewal failed. It is tried again.
    RenewalFailed {
        /// The kind of the error.
        error: ErrorKind,
        /// How many renewals have failed in a row.
        failures: u32,
        /// The time until the lease is given up.
        left: Duration,
    },
    /// An operator asks the holder to finish.
    Asked(FinishRequest),
    /// An operator evicted the holder: the lease is no longer renewed.
    Evicting,
    /// The lease ended without being released.
    Lost {
        /// The reason.
        why: EndReason,
        /// The time since the grant.
        held_for: Duration,
    },
    /// The lease was released.
    Released {
        /// The reply of the backend. `AlreadyGone` means that the lease had expired: a stale release.
        answer: Released,
        /// The handle was dropped without a call of `release`.
        dropped: bool,
        /// The time since the grant.
        held_for: Duration,
    },
    /// The caller dropped its request, and the claim was cancelled at the backend.
    Cancelled,
    /// A claim could not be released: it stays until its ttl ends.
    Leaked {
        /// The kind of the last error.
        error: ErrorKind,
    },
    /// A fence refused a stale token.
    StaleTokenRefused {
        /// The token that was presented.
        presented: FencingToken,
        /// The highest token that the fence has seen.
        highest: FencingToken,
        /// The system that refused it.
        downstream: &'static str,
    },
}

impl EventKind {
    /// A stable name, for programs and logs.
    pub const fn as_str(&self) -> &'static str {
        match self {
            EventKind::Acquired { .. } => "acquired",
            EventKind::Contended { .. } => "contended",
            EventKind::Failed { .. } => "failed",
            EventKind::Renewed { .. } => "renewed",
            EventKind::RenewalFailed { .. } => "renewal_failed",
            EventKind::Asked(_) => "asked",
            EventKind::Evicting => "evicting",
            EventKind::Lost { .. } => "lost",
            EventKind::Released { .. } => "released",
            EventKind::Cancelled => "cancelled",
            EventKind::Leaked { .. } => "leaked",
            EventKind::StaleTokenRefused { .. } => "stale_token_refused",
        }
    }
}

/// Why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndReason {
    /// It was released.
    Released,
    /// It was detached, so that another process can adopt it.
    Detached,
    /// No renewal succeeded in time.
    Expired,
    /// The backend said that this owner does not hold it any more.
    NotOurs,
    /// An operator evicted it.
    Evicted,
    /// It was held for as long as its `max_hold` allows.
    MaxHold,
    /// The work did not report progress in time.
    NoProgress,
}

impl EndReason {
    /// Whether the lease was lost: it ended, and was neither released nor detached.
    pub const fn is_loss(self) -> bool {
        !matches!(self, EndReason::Released | EndReason::Detached)
    }

    /// A stable name, for programs and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            EndReason::Released => "released",
            EndReason::Detached => "detached",
            EndReason::Expired => "expired",
            EndReason::NotOurs => "not_ours",
            EndReason::Evicted => "evicted",
            EndReason::MaxHold => "max_hold",
            EndReason::NoProgress => "no_progress",
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EndReason::Released => "it was released",
            EndReason::Detached => "it was detached",
            EndReason::Expired => "no renewal succeeded in time",
            EndReason::NotOurs => "the backend says that this client does not hold it any more",
            EndReason::Evicted => "an operator evicted it",
            EndReason::MaxHold => "it was held for as long as max_hold allows",
            EndReason::NoProgress => "the work reported no progress in time",
        })
    }
}

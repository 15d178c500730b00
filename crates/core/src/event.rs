//! What happened. Logs, metrics, a dashboard, an audit trail and tests all read this one stream.

use std::{fmt, time::Duration};

use crate::{
    clock::WallTime,
    error::{Error, ErrorKind},
    resource::Resource,
    token::FencingToken,
    verdict::{FinishRequest, Released},
};

/// Something happened to a claim of this client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event {
    /// When, by this host's calendar.
    pub at: WallTime,
    /// To what.
    pub resource: Resource,
    /// The first digits of the owner token.
    pub owner_prefix: String,
    /// Of the grant, once there is one.
    pub token: Option<FencingToken>,
    /// What.
    pub kind: EventKind,
}

impl Event {
    /// Something that happened.
    pub fn new(at: WallTime, resource: Resource, kind: EventKind) -> Event {
        Event { at, resource, owner_prefix: String::new(), token: None, kind }
    }

    /// To the claim of this owner.
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
    /// Granted.
    Acquired {
        /// Since the claim was made.
        waited: Duration,
        /// How many were ahead in the line when it was first blocked.
        behind: u32,
        /// It was handed over by another waiter of this client, without being free in between.
        handed_over: bool,
        /// How many replicas acknowledged it, where known.
        acks: Option<u32>,
    },
    /// Not granted: someone else holds it and the patience ran out.
    Contended {
        /// Since the claim was made.
        waited: Duration,
    },
    /// Not granted: the backend failed.
    Failed {
        /// Since the claim was made.
        waited: Duration,
        /// How.
        error: Error,
    },
    /// Renewed.
    Renewed {
        /// How much was left before the lease would have been lost.
        margin: Duration,
        /// More than half of the ttl had passed.
        late: bool,
    },
    /// One renewal failed; it is tried again.
    RenewalFailed {
        /// How.
        error: ErrorKind,
        /// In a row.
        failures: u32,
        /// Until the lease is given up.
        left: Duration,
    },
    /// An operator asks the holder to finish.
    Asked(FinishRequest),
    /// An operator lets the lease run out.
    Evicting,
    /// The lease ended without being released.
    Lost {
        /// Why.
        why: EndReason,
        /// Since the grant.
        held_for: Duration,
    },
    /// The lease was released.
    Released {
        /// What the backend said. `AlreadyGone` means that it had expired: a stale release.
        answer: Released,
        /// The handle was dropped, not released by name.
        dropped: bool,
        /// Since the grant.
        held_for: Duration,
    },
    /// A claim whose caller went away part-way was buried.
    Cancelled,
    /// A claim could not be given back: it stays until its ttl ends.
    Leaked {
        /// The last answer.
        error: ErrorKind,
    },
    /// A stale token was refused where the effect happens.
    StaleTokenRefused {
        /// The token shown.
        presented: FencingToken,
        /// The highest seen.
        highest: FencingToken,
        /// Who refused.
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

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndReason {
    /// It was given back.
    Released,
    /// It was handed out of this process, to be adopted elsewhere.
    Detached,
    /// No renewal succeeded in time.
    Expired,
    /// The backend said that it is not ours any more.
    NotOurs,
    /// An operator evicted it.
    Evicted,
    /// It was held as long as its `max_hold` allows.
    MaxHold,
    /// The work did not report progress in time.
    NoProgress,
}

impl EndReason {
    /// Every ending but a release and a detach is a loss.
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
            EndReason::NotOurs => "the backend says it is not ours any more",
            EndReason::Evicted => "an operator evicted it",
            EndReason::MaxHold => "it was held as long as max_hold allows",
            EndReason::NoProgress => "the work reported no progress in time",
        })
    }
}

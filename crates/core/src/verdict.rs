//! What a backend answers. Times are durations, measured when the request was executed.

use std::{sync::Arc, time::Duration};

use crate::{
    claim::{Cursor, Holder},
    clock::WallTime,
    error::Busy,
    resource::Resource,
    token::FencingToken,
};

/// The answer to a claim.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Yes.
    Granted(Grant),
    /// Not now.
    Blocked(Blocked),
    /// A farewell buried this owner: never.
    Cancelled,
    /// Others use the resource with another capacity.
    Mismatch {
        /// Theirs.
        capacity: u32,
    },
}

/// A yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Grows with every grant.
    pub token: FencingToken,
    /// How much of the lease was left when the request was executed.
    pub remaining: Duration,
    /// How many replicas have acknowledged it, where that is known.
    pub acks: Option<u32>,
}

impl Grant {
    /// A yes.
    pub fn new(token: FencingToken, remaining: Duration) -> Grant {
        Grant { token, remaining, acks: None }
    }

    /// Known to this many replicas.
    #[must_use]
    pub fn acknowledged(mut self, acks: u32) -> Grant {
        self.acks = Some(acks);
        self
    }
}

/// A not-now.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Blocked {
    /// Whether the claim has a place in the line.
    pub queued: bool,
    /// Live places ahead of it: exact up to [`admission::WINDOW`](crate::admission::WINDOW), an upper bound beyond.
    pub ahead: u32,
    /// Some of the holders, the one that ends soonest first; at most [`Blocked::HOLDERS_MAX`].
    pub holders: Vec<HeldBy>,
    /// When something changes without anyone's doing: the next expiry or the end of a pause.
    pub changes_in: Option<Duration>,
    /// An operator has paused the resource.
    pub paused: bool,
    /// From where to [wait](crate::Backend::wait).
    pub cursor: Cursor,
}

impl Blocked {
    /// How many holders are listed at the most.
    pub const HOLDERS_MAX: usize = 3;

    /// In the words of an error.
    pub fn into_busy(self) -> Busy {
        let Blocked { holders, ahead, changes_in, paused, .. } = self;
        Busy { holders, ahead, retry_after: changes_in, paused }
    }
}

/// A holder, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldBy {
    /// Who.
    pub holder: Arc<Holder>,
    /// Of its grant.
    pub token: FencingToken,
    /// Its share of the capacity.
    pub weight: u32,
    /// Since its grant.
    pub held_for: Duration,
    /// Until it ends, unless renewed.
    pub remaining: Duration,
    /// What it wants others to know.
    pub note: Option<Arc<[u8]>>,
    /// How many times in a row the seat was handed over to get here.
    pub handovers: u32,
    /// What an operator asked of it.
    pub asked: Option<FinishRequest>,
    /// It is not renewed any more.
    pub evicting: bool,
    /// Nobody is there; it stays closed.
    pub kept: bool,
}

impl HeldBy {
    /// A holder of nothing special.
    pub fn new(holder: Arc<Holder>, token: FencingToken, weight: u32) -> HeldBy {
        HeldBy {
            holder,
            token,
            weight,
            held_for: Duration::ZERO,
            remaining: Duration::ZERO,
            note: None,
            handovers: 0,
            asked: None,
            evicting: false,
            kept: false,
        }
    }
}

/// The answer to one renewal.
#[derive(Clone, Debug)]
pub enum Renewal {
    /// It holds.
    Renewed(Renewed),
    /// It waits in line for this long, unless kept again.
    Queued {
        /// Of the place.
        remaining: Duration,
    },
    /// It neither holds nor waits.
    Gone {
        /// Why, as far as the backend knows.
        why: GoneReason,
    },
}

/// It holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewed {
    /// Of the grant.
    pub token: FencingToken,
    /// How much was left when the request was executed.
    pub remaining: Duration,
    /// An operator asks it to finish.
    pub asked: Option<FinishRequest>,
    /// It was not extended, and will not be: an operator lets it run out.
    pub evicting: bool,
}

impl Renewed {
    /// It holds, and nobody asks anything of it.
    pub fn new(token: FencingToken, remaining: Duration) -> Renewed {
        Renewed { token, remaining, asked: None, evicting: false }
    }
}

/// An operator's wish that the holder finish.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FinishRequest {
    /// How long it has.
    pub within: Duration,
    /// Who asks.
    pub by: Arc<str>,
    /// Why.
    pub why: Arc<str>,
}

impl FinishRequest {
    /// A wish.
    pub fn new(within: Duration, by: impl Into<Arc<str>>, why: impl Into<Arc<str>>) -> FinishRequest {
        FinishRequest { within, by: by.into(), why: why.into() }
    }
}

/// Why a claim is no longer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GoneReason {
    /// It expired, was released, or was never there.
    NotThere,
    /// An operator evicted it.
    Evicted,
    /// It was buried.
    Cancelled,
}

/// The answer to a farewell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Released {
    /// It held or waited, and does so no longer.
    Now,
    /// There was nothing of it. Not an error: it may have expired, or the farewell is a repeat.
    AlreadyGone,
    /// A reentrant handle, and others of its scope are still alive. No backend says this; the engine does.
    StillHeld,
}

/// The answer to an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandOutcome {
    /// Done, and recorded.
    Done,
    /// The grant that was meant is not there any more; nothing was done.
    HolderChanged {
        /// Who is there instead, if anyone: the newest grant.
        token: Option<FencingToken>,
    },
}

/// The answer to a query.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Page {
    /// Of one resource, or of many.
    Resources {
        /// In key order.
        snapshots: Vec<Snapshot>,
        /// Where to go on, if there are more.
        next: Option<String>,
    },
    /// Of the audit trail.
    Audit {
        /// Newest first.
        records: Vec<AuditRecord>,
        /// Where to go on, if there are more.
        next: Option<String>,
    },
    /// Of keys that would never end, our own or others'.
    Leaks {
        /// In the order in which the store shows its keys. May be empty although there are more: a large store is
        /// looked through in steps.
        found: Vec<Leak>,
        /// Where to go on, if there are more.
        next: Option<String>,
    },
}

impl Page {
    /// The resources of the page; none, of an audit page.
    pub fn into_snapshots(self) -> Vec<Snapshot> {
        if let Page::Resources { snapshots, .. } = self { snapshots } else { Vec::new() }
    }

    /// The audit records of the page; none, of a page of resources.
    pub fn into_records(self) -> Vec<AuditRecord> {
        if let Page::Audit { records, .. } = self { records } else { Vec::new() }
    }
}

/// A key that would never end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leak {
    /// As the store has it; bytes that are no text are replaced.
    pub key: String,
    /// What the store keeps there, in its own word: `string`, `hash`. Never the value: it may be somebody's
    /// capability to release.
    pub form: String,
    /// Since it was last read or written, where the store knows.
    pub idle: Option<Duration>,
}

impl Leak {
    /// A key.
    pub fn new(key: impl Into<String>, form: impl Into<String>) -> Leak {
        Leak { key: key.into(), form: form.into(), idle: None }
    }
}

/// One resource as it is now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// Which.
    pub resource: Resource,
    /// While anyone is there.
    pub capacity: u32,
    /// The holders, by token; at most [`Snapshot::LISTED_MAX`].
    pub holders: Vec<HeldBy>,
    /// How many there are.
    pub holder_count: u32,
    /// The head of the line; at most [`Snapshot::LISTED_MAX`].
    pub queue: Vec<QueueEntry>,
    /// How many wait.
    pub queue_length: u32,
    /// The newest token given out, where it is remembered.
    pub last_token: Option<FencingToken>,
    /// An operator's pause ends after this long.
    pub paused_for: Option<Duration>,
    /// From where to [wait](crate::Backend::wait) for a change.
    pub cursor: Cursor,
}

impl Snapshot {
    /// How many holders and how many places are listed at the most.
    pub const LISTED_MAX: usize = 100;

    /// A resource where nobody is.
    pub fn empty(resource: Resource) -> Snapshot {
        Snapshot {
            resource,
            capacity: 0,
            holders: Vec::new(),
            holder_count: 0,
            queue: Vec::new(),
            queue_length: 0,
            last_token: None,
            paused_for: None,
            cursor: Cursor::default(),
        }
    }
}

/// A waiting claim, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueEntry {
    /// Who.
    pub holder: Arc<Holder>,
    /// The share that it wants.
    pub weight: u32,
    /// Since it took its place.
    pub waited: Duration,
    /// Until the place is lost, unless kept.
    pub remaining: Duration,
}

impl QueueEntry {
    /// A place.
    pub fn new(holder: Arc<Holder>, weight: u32, waited: Duration, remaining: Duration) -> QueueEntry {
        QueueEntry { holder, weight, waited, remaining }
    }
}

/// What an operator did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditRecord {
    /// When, by the backend's calendar clock.
    pub at: WallTime,
    /// To what.
    pub resource: Resource,
    /// The grant that was meant.
    pub token: Option<FencingToken>,
    /// Who.
    pub by: String,
    /// Why.
    pub why: String,
    /// The command, by its stable name.
    pub command: String,
    /// Whether it was done; false if the grant was not there any more.
    pub done: bool,
}

impl AuditRecord {
    /// What an order did.
    pub fn of(order: &crate::OperatorCommand, at: WallTime, done: bool) -> AuditRecord {
        AuditRecord {
            at,
            resource: order.resource.clone(),
            token: order.token,
            by: order.by.clone(),
            why: order.why.clone(),
            command: order.action.as_str().to_owned(),
            done,
        }
    }

    /// A record read back from storage; the rest is filled in by its fields.
    pub fn new(at: WallTime, resource: Resource, command: impl Into<String>, done: bool) -> AuditRecord {
        let (by, why) = (String::new(), String::new());
        AuditRecord { at, resource, token: None, by, why, command: command.into(), done }
    }
}

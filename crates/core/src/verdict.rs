//! The replies of a backend. Times are durations, measured when the request was executed.

use std::{sync::Arc, time::Duration};

use crate::{
    claim::{Cursor, Holder, ValueHash},
    clock::WallTime,
    error::Busy,
    resource::Resource,
    token::FencingToken,
};

/// The reply to a claim.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The claim holds the resource.
    Granted(Grant),
    /// The claim cannot be granted now.
    Blocked(Blocked),
    /// The claim was cancelled: its owner has a tombstone, so it is never granted.
    Cancelled,
    /// Other claims use the resource with another capacity.
    Mismatch {
        /// The capacity that they use.
        capacity: u32,
    },
}

/// A grant of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The fencing token. It grows with every grant.
    pub token: FencingToken,
    /// How much of the lease was left when the backend executed the request.
    pub remaining: Duration,
    /// How many replicas have acknowledged it, where that is known.
    pub acks: Option<u32>,
}

impl Grant {
    /// A grant whose replicas are not known.
    pub fn new(token: FencingToken, remaining: Duration) -> Grant {
        Grant { token, remaining, acks: None }
    }

    /// This many replicas have acknowledged it.
    #[must_use]
    pub fn acknowledged(mut self, acks: u32) -> Grant {
        self.acks = Some(acks);
        self
    }
}

/// Why a claim cannot be granted now, and when to ask again.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Blocked {
    /// Whether the claim has a place in the queue.
    pub queued: bool,
    /// Live claims ahead of it in the queue: exact up to [`admission::WINDOW`](crate::admission::WINDOW), an upper bound beyond.
    pub ahead: u32,
    /// Some of the holders, the one that expires soonest first; at most [`Blocked::HOLDERS_MAX`].
    pub holders: Vec<HeldBy>,
    /// The lock of another program that holds the resource, if there is one.
    pub foreign: Option<ForeignLock>,
    /// When the state changes without a request: at the next expiry or at the end of a pause.
    pub changes_in: Option<Duration>,
    /// An operator has paused the resource.
    pub paused: bool,
    /// The time until the pause ends, if the resource is paused and the backend says so.
    pub pause_ends_in: Option<Duration>,
    /// The position from which to [wait](crate::Backend::wait).
    pub cursor: Cursor,
}

impl Blocked {
    /// How many holders are listed at most.
    pub const HOLDERS_MAX: usize = 3;

    /// What an error of kind `Contended` tells its caller.
    ///
    /// `changes_in` tells the engine when to ask again: it may be the end of a place in the queue, even of the claim's own.
    /// A caller wants to know until when the resource is taken. So `retry_after` is the first expiry of a holder, or the end of
    /// the pause while the resource is paused. If neither is known, it is `changes_in`.
    pub fn into_busy(self) -> Busy {
        let Blocked { holders, foreign, ahead, changes_in, paused, pause_ends_in, .. } = self;
        let foreign_end = foreign.as_ref().and_then(|lock| lock.remaining);
        let expiries = holders.iter().map(|by| by.remaining).chain(foreign_end);
        let taken_for = if paused { pause_ends_in } else { expiries.min() };
        Busy { holders, foreign, ahead, retry_after: taken_for.or(changes_in), paused }
    }
}

/// A holder as other processes see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldBy {
    /// The process, for people to read.
    pub holder: Arc<Holder>,
    /// The token of its grant.
    pub token: FencingToken,
    /// Its share of the capacity.
    pub weight: u32,
    /// The time since its grant.
    pub held_for: Duration,
    /// The time until it expires, unless it is renewed.
    pub remaining: Duration,
    /// The ttl of its claim, where the backend stores it. The difference to `remaining` is the time since it was last renewed,
    /// unless its ttl was changed later.
    pub ttl: Option<Duration>,
    /// The note that it wrote for others to read.
    pub note: Option<Arc<[u8]>>,
    /// How many times in a row the grant was handed over inside one client.
    pub handovers: u32,
    /// An operator's request that it finish.
    pub asked: Option<FinishRequest>,
    /// An operator evicted it at its expiry: it is no longer renewed.
    pub evicting: bool,
    /// It was released with `keep_for`: nobody holds the resource, and it stays closed.
    pub kept: bool,
}

impl HeldBy {
    /// A holder with default values in all other fields.
    pub fn new(holder: Arc<Holder>, token: FencingToken, weight: u32) -> HeldBy {
        HeldBy {
            holder,
            token,
            weight,
            held_for: Duration::ZERO,
            remaining: Duration::ZERO,
            ttl: None,
            note: None,
            handovers: 0,
            asked: None,
            evicting: false,
            kept: false,
        }
    }
}

/// A lock of another program, which holds the resource. It has no token, and nothing is known about the process behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignLock {
    /// The key in the store.
    pub key: String,
    /// What it is, in the words of the store: `string`, `hash`, `node`. Never its value: that may be the secret that releases the
    /// lock.
    pub form: String,
    /// A hash of its value, which names it in [`OperatorAction::EvictForeign`](crate::OperatorAction::EvictForeign).
    pub value_hash: ValueHash,
    /// The time until it expires, or ends with its session. `None` if it never does: it stays until its program or an operator
    /// removes it.
    pub remaining: Option<Duration>,
}

impl ForeignLock {
    /// A lock that does not expire.
    pub fn new(key: impl Into<String>, form: impl Into<String>, value_hash: ValueHash) -> ForeignLock {
        ForeignLock { key: key.into(), form: form.into(), value_hash, remaining: None }
    }

    /// The lock expires after this time.
    #[must_use]
    pub fn expiring(mut self, remaining: Option<Duration>) -> ForeignLock {
        self.remaining = remaining;
        self
    }
}

/// The reply to one renewal.
#[derive(Clone, Debug)]
pub enum Renewal {
    /// The lease was renewed.
    Renewed(Renewed),
    /// The claim is queued, and its place was renewed.
    Queued {
        /// The time until the place expires.
        remaining: Duration,
    },
    /// The claim neither holds the resource nor is queued.
    Gone {
        /// The reason, as far as the backend knows.
        why: GoneReason,
    },
}

/// A renewed lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewed {
    /// The token of the grant.
    pub token: FencingToken,
    /// How much time was left when the backend executed the request.
    pub remaining: Duration,
    /// An operator's request that the holder finish.
    pub asked: Option<FinishRequest>,
    /// An operator evicted the holder: this lease was not extended, and will not be.
    pub evicting: bool,
}

impl Renewed {
    /// A renewed lease, without an operator's request.
    pub fn new(token: FencingToken, remaining: Duration) -> Renewed {
        Renewed { token, remaining, asked: None, evicting: false }
    }
}

/// An operator's request that the holder finish.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FinishRequest {
    /// How much time the holder has.
    pub within: Duration,
    /// The operator.
    pub by: Arc<str>,
    /// The reason.
    pub why: Arc<str>,
}

impl FinishRequest {
    /// A request to finish within this time.
    pub fn new(within: Duration, by: impl Into<Arc<str>>, why: impl Into<Arc<str>>) -> FinishRequest {
        FinishRequest { within, by: by.into(), why: why.into() }
    }
}

/// Why a claim no longer exists at the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GoneReason {
    /// It expired, was released, or never existed.
    NotThere,
    /// An operator evicted it.
    Evicted,
    /// It was cancelled: its owner has a tombstone.
    Cancelled,
}

/// The reply to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Released {
    /// The claim held the resource or was queued, and this request ended it.
    Now,
    /// There was no such claim. Not an error: it may have expired, or the request was sent twice.
    AlreadyGone,
    /// A reentrant handle was released, and others of its scope still hold the lease. Only the engine says this.
    StillHeld,
}

impl Released {
    /// A stable name, for programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Released::Now => "released",
            Released::AlreadyGone => "already_gone",
            Released::StillHeld => "still_held",
        }
    }
}

/// The reply to an operator's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandOutcome {
    /// It was carried out and written to the audit trail.
    Done,
    /// The grant that the command names is gone. Nothing was done.
    HolderChanged {
        /// The token of the newest grant, if there is one.
        token: Option<FencingToken>,
    },
}

/// The reply to a query.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Page {
    /// One resource, or many.
    Resources {
        /// In key order.
        snapshots: Vec<Snapshot>,
        /// Where the next page begins, if there is one.
        next: Option<String>,
    },
    /// Records of the audit trail.
    Audit {
        /// Newest first.
        records: Vec<AuditRecord>,
        /// Where the next page begins, if there is one.
        next: Option<String>,
    },
    /// Keys without an expiry, of leasehold or of other programs.
    Leaks {
        /// In the order in which the store lists its keys. May be empty although there are more pages: a large store is
        /// searched in steps.
        found: Vec<Leak>,
        /// Where the next page begins, if there is one.
        next: Option<String>,
    },
    /// The servers of the store, in the order in which its address names them.
    Nodes(Vec<NodeStatus>),
}

/// One server of the store, as it was found a moment ago.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Its name, for people: an address without secrets.
    pub name: String,
    /// Whether it counts now: it answers, and of a quorum it has a vote.
    pub counts: bool,
    /// It does not count by design, and nothing is wrong with it: a standby, a learner, an observer.
    pub stands_by: bool,
    /// Why it does not count.
    pub why: Option<String>,
    /// How long its answer took.
    pub round_trip: Option<Duration>,
    /// The time on its clock when it answered, which was in the middle of the round trip, and ours at that time.
    pub clocks: Option<(WallTime, WallTime)>,
}

impl NodeStatus {
    /// A server of which nothing is known yet.
    pub fn named(name: impl Into<String>) -> NodeStatus {
        NodeStatus { name: name.into(), ..NodeStatus::default() }
    }
}

impl Page {
    /// The servers of the page. Empty for other pages.
    pub fn into_nodes(self) -> Vec<NodeStatus> {
        if let Page::Nodes(nodes) = self { nodes } else { Vec::new() }
    }

    /// The resources of the page. Empty for other pages.
    pub fn into_snapshots(self) -> Vec<Snapshot> {
        if let Page::Resources { snapshots, .. } = self { snapshots } else { Vec::new() }
    }

    /// The audit records of the page. Empty for other pages.
    pub fn into_records(self) -> Vec<AuditRecord> {
        if let Page::Audit { records, .. } = self { records } else { Vec::new() }
    }
}

/// A key without an expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leak {
    /// The key in the store. Bytes that are not UTF-8 are replaced.
    pub key: String,
    /// The type of the value, in the words of the store: `string`, `hash`. Never the value itself: it may be the secret that
    /// releases the lock.
    pub form: String,
    /// The time since it was last read or written, where the store knows it.
    pub idle: Option<Duration>,
}

impl Leak {
    /// A key with a value of this type.
    pub fn new(key: impl Into<String>, form: impl Into<String>) -> Leak {
        Leak { key: key.into(), form: form.into(), idle: None }
    }
}

/// One resource as it is now: its holders and its queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The resource.
    pub resource: Resource,
    /// The capacity, while the resource is in use.
    pub capacity: u32,
    /// The holders, by token; at most [`Snapshot::LISTED_MAX`].
    pub holders: Vec<HeldBy>,
    /// The number of all holders. Locks of other programs are not counted.
    pub holder_count: u32,
    /// Locks of other programs that hold the resource.
    pub foreign: Vec<ForeignLock>,
    /// The head of the queue; at most [`Snapshot::LISTED_MAX`].
    pub queue: Vec<QueueEntry>,
    /// The number of all queued claims.
    pub queue_length: u32,
    /// The newest token of the resource, where the backend remembers it.
    pub last_token: Option<FencingToken>,
    /// The time until an operator's pause ends.
    pub paused_for: Option<Duration>,
    /// The position from which to [wait](crate::Backend::wait) for a change.
    pub cursor: Cursor,
    /// Why the resource cannot be read: which key is corrupt, and what was found in it. Then nothing else is known about it. Only
    /// in a list of resources; a query for this resource alone fails with `Corrupt`.
    pub unreadable: Option<String>,
}

impl Snapshot {
    /// How many holders and how many queued claims are listed at most.
    pub const LISTED_MAX: usize = 100;

    /// A resource that is not in use.
    pub fn empty(resource: Resource) -> Snapshot {
        Snapshot {
            resource,
            capacity: 0,
            holders: Vec::new(),
            holder_count: 0,
            foreign: Vec::new(),
            queue: Vec::new(),
            queue_length: 0,
            last_token: None,
            paused_for: None,
            cursor: Cursor::default(),
            unreadable: None,
        }
    }

    /// A resource that cannot be read, and why.
    pub fn unreadable(resource: Resource, why: impl Into<String>) -> Snapshot {
        Snapshot { unreadable: Some(why.into()), ..Snapshot::empty(resource) }
    }

    /// Whether a list of resources shows it: something holds it, waits for it or pauses it, or it cannot be read.
    pub fn is_in_use(&self) -> bool {
        let is_held = self.holder_count > 0 || !self.foreign.is_empty();
        is_held || self.queue_length > 0 || self.paused_for.is_some() || self.unreadable.is_some()
    }
}

/// A queued claim as other processes see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueEntry {
    /// The process, for people to read.
    pub holder: Arc<Holder>,
    /// The part of the capacity that it wants.
    pub weight: u32,
    /// The time since it joined the queue.
    pub waited: Duration,
    /// The time until its place expires, unless it is renewed.
    pub remaining: Duration,
    /// It could have been granted and did not answer: it is passed over until it does.
    pub silent: bool,
    /// A lock of another program waits here. Nothing is known about the process behind it.
    pub foreign: bool,
}

impl QueueEntry {
    /// A queued claim that is not silent.
    pub fn new(holder: Arc<Holder>, weight: u32, waited: Duration, remaining: Duration) -> QueueEntry {
        QueueEntry { holder, weight, waited, remaining, silent: false, foreign: false }
    }

    /// The claim is silent, or not.
    #[must_use]
    pub fn with_silent(mut self, silent: bool) -> QueueEntry {
        self.silent = silent;
        self
    }
}

/// One entry of the audit trail: what an operator did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditRecord {
    /// The time, by the wall clock of the backend.
    pub at: WallTime,
    /// The resource.
    pub resource: Resource,
    /// The token that the command named.
    pub token: Option<FencingToken>,
    /// The process, for people to read.
    pub by: String,
    /// The reason.
    pub why: String,
    /// The command, by its stable name.
    pub command: String,
    /// Whether it was carried out. False if the named grant was gone.
    pub done: bool,
}

impl AuditRecord {
    /// The record of a command.
    pub fn of(command: &crate::OperatorCommand, at: WallTime, done: bool) -> AuditRecord {
        AuditRecord {
            at,
            resource: command.resource.clone(),
            token: command.token,
            by: command.by.clone(),
            why: command.why.clone(),
            command: command.action.as_str().to_owned(),
            done,
        }
    }

    /// A record read from storage. The caller fills in the other fields.
    pub fn new(at: WallTime, resource: Resource, command: impl Into<String>, done: bool) -> AuditRecord {
        let (by, why) = (String::new(), String::new());
        AuditRecord { at, resource, token: None, by, why, command: command.into(), done }
    }
}

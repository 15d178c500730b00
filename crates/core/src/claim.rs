//! What a backend is asked.
//!
//! These types are `#[non_exhaustive]`: a backend reads them and they may grow; the engine and tests build them
//! with the constructors here.

use std::{fmt, num::NonZeroU32, str::FromStr, sync::Arc, time::Duration};

use crate::{
    error::{Error, ErrorKind, Result},
    resource::Resource,
    token::{FencingToken, OwnerToken},
};

/// Weight of a capacity: 1 of 1, 2 of 5, MAX of MAX.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Share {
    weight: u32,
    capacity: u32,
}

impl Share {
    /// 1 of 1: an exclusive lease.
    pub const WHOLE: Share = Share { weight: 1, capacity: 1 };
    /// 1 of MAX: a reader.
    pub const READ: Share = Share { weight: 1, capacity: u32::MAX };
    /// MAX of MAX: a writer.
    pub const WRITE: Share = Share { weight: u32::MAX, capacity: u32::MAX };

    /// `weight` of `capacity`.
    ///
    /// # Errors
    /// `Invalid` unless 1 ≤ weight ≤ capacity.
    pub fn new(weight: u32, capacity: u32) -> Result<Share> {
        if weight == 0 || weight > capacity {
            let message = format!("{weight} of {capacity} is not a share: take at least 1 and at most all");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(Share { weight, capacity })
    }

    /// How much of the capacity is taken.
    pub const fn weight(self) -> u32 {
        self.weight
    }

    /// How much there is in all.
    pub const fn capacity(self) -> u32 {
        self.capacity
    }

    /// Whether nobody else can be there at the same time.
    pub const fn is_exclusive(self) -> bool {
        self.weight == self.capacity
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Share::READ => f.write_str("read"),
            Share::WRITE => f.write_str("write"),
            Share { weight, capacity } => write!(f, "{weight} of {capacity}"),
        }
    }
}

/// What a claim does when it cannot be granted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WhenBlocked {
    /// Leaves no trace.
    Leave,
    /// Takes a place in the line, or keeps the one it has.
    Queue,
}

/// Who holds or waits, for people: never used to decide anything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Holder {
    /// The host's name.
    pub host: String,
    /// The process id there.
    pub pid: u32,
    /// What for, in the caller's words; may be empty.
    pub label: String,
}

impl Holder {
    /// The longest host name and the longest label kept, in bytes; longer ones are cut.
    pub const TEXT_MAX: usize = 256;

    /// Control characters become spaces and long texts are cut: this is shown on terminals.
    pub fn new(host: &str, pid: u32, label: &str) -> Holder {
        let host = clean(host).replace([' ', '@'], "-");
        Holder { host, pid, label: clean(label).trim().to_owned() }
    }
}

fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(Holder::TEXT_MAX));
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if out.len() + c.len_utf8() > Holder::TEXT_MAX {
            break;
        }
        out.push(c);
    }
    out
}

impl fmt::Display for Holder {
    /// `1234@host label`, which [`Holder::from_str`] reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.pid, self.host)?;
        if self.label.is_empty() { Ok(()) } else { write!(f, " {}", self.label) }
    }
}

impl FromStr for Holder {
    type Err = std::convert::Infallible;
    /// Reads what `Display` wrote. Any other text becomes the label of an unknown process: it is for people.
    fn from_str(text: &str) -> Result<Holder, Self::Err> {
        let (who, label) = text.split_once(' ').unwrap_or((text, ""));
        let known = who.split_once('@').and_then(|(pid, host)| Some((pid.parse().ok()?, host)));
        Ok(known.map_or_else(|| Holder::new("", 0, text), |(pid, host)| Holder::new(host, pid, label)))
    }
}

/// Whom a claim takes over from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Handover {
    /// The owner token of the predecessor: a holder, or a place in the line.
    pub owner: OwnerToken,
    /// Leave a tombstone for the predecessor this long: an attempt of its claim went unanswered, so the server may
    /// execute it yet.
    pub tombstone: Option<Duration>,
}

impl Handover {
    /// Takes over from this owner, all of whose requests were answered.
    pub fn from(owner: OwnerToken) -> Handover {
        Handover { owner, tombstone: None }
    }

    /// Takes over from this owner and buries it.
    pub fn with_tombstone(owner: OwnerToken, keep: Duration) -> Handover {
        Handover { owner, tombstone: Some(keep) }
    }
}

/// One caller's request for a share of a resource.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// Of what.
    pub resource: Resource,
    /// Chosen before sending; the claim is idempotent on it.
    pub owner: OwnerToken,
    /// How much.
    pub share: Share,
    /// For how long, unless renewed.
    pub ttl: Duration,
    /// How long a place in the line lives, unless kept.
    pub place_ttl: Duration,
    /// What to do when it cannot be granted now.
    pub when_blocked: WhenBlocked,
    /// Whom it takes over from.
    pub takes_over_from: Option<Handover>,
    /// The highest token that this client has seen for the resource: mint above it.
    pub floor: Option<FencingToken>,
    /// A few bytes that others can read: an election's value.
    pub note: Option<Arc<[u8]>>,
    /// Who asks, for people.
    pub holder: Arc<Holder>,
}

impl Claim {
    /// How long a place lives unless told otherwise: a dead waiter costs at most this much.
    pub const PLACE_TTL: Duration = Duration::from_secs(6);

    /// A claim that leaves when blocked.
    pub fn new(
        resource: Resource,
        owner: OwnerToken,
        share: Share,
        ttl: Duration,
        holder: Arc<Holder>,
    ) -> Claim {
        Claim {
            resource,
            owner,
            share,
            ttl,
            place_ttl: Claim::PLACE_TTL,
            when_blocked: WhenBlocked::Leave,
            takes_over_from: None,
            floor: None,
            note: None,
            holder,
        }
    }

    /// Takes a place in the line when blocked.
    #[must_use]
    pub fn queued(mut self) -> Claim {
        self.when_blocked = WhenBlocked::Queue;
        self
    }

    /// Takes over from someone.
    #[must_use]
    pub fn taking_over(mut self, from: Handover) -> Claim {
        self.takes_over_from = Some(from);
        self
    }

    /// Mints above this token.
    #[must_use]
    pub fn above(mut self, floor: FencingToken) -> Claim {
        self.floor = Some(floor);
        self
    }

    /// Carries a note.
    #[must_use]
    pub fn with_note(mut self, note: impl Into<Arc<[u8]>>) -> Claim {
        self.note = Some(note.into());
        self
    }

    /// The claim's name.
    pub fn reference(&self) -> ClaimRef {
        ClaimRef { resource: self.resource.clone(), owner: self.owner }
    }
}

/// The name of a claim: which resource, which owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimRef {
    /// Of what.
    pub resource: Resource,
    /// Whose.
    pub owner: OwnerToken,
}

/// A holder's or a place's wish to go on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewRequest {
    /// Of what.
    pub resource: Resource,
    /// Whose.
    pub owner: OwnerToken,
    /// From now on; of a place, its place ttl.
    pub ttl: Duration,
    /// Replaces the note, if there is one here.
    pub note: Option<Arc<[u8]>>,
}

impl RenewRequest {
    /// Goes on for this long, with the same note.
    pub fn new(claim: ClaimRef, ttl: Duration) -> RenewRequest {
        RenewRequest { resource: claim.resource, owner: claim.owner, ttl, note: None }
    }

    /// Goes on with another note.
    #[must_use]
    pub fn with_note(mut self, note: impl Into<Arc<[u8]>>) -> RenewRequest {
        self.note = Some(note.into());
        self
    }
}

/// The end of a claim, whether it holds, waits or was never seen.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// Of what.
    pub resource: Resource,
    /// Whose.
    pub owner: OwnerToken,
    /// Leave a tombstone this long: a request of this owner that is executed late comes to nothing.
    pub tombstone: Option<Duration>,
    /// If it holds: stay closed this long, for nobody.
    pub keep_for: Option<Duration>,
}

impl ReleaseRequest {
    /// Leaves.
    pub fn new(claim: ClaimRef) -> ReleaseRequest {
        ReleaseRequest { resource: claim.resource, owner: claim.owner, tombstone: None, keep_for: None }
    }

    /// Leaves a tombstone.
    #[must_use]
    pub fn with_tombstone(mut self, keep: Duration) -> ReleaseRequest {
        self.tombstone = Some(keep);
        self
    }

    /// Stays closed for a while.
    #[must_use]
    pub fn keeping(mut self, keep_for: Duration) -> ReleaseRequest {
        self.keep_for = Some(keep_for);
        self
    }

    /// How long a tombstone must stand for a claim of this ttl: longer than any request of it can be under way.
    pub fn tombstone_ttl(ttl: Duration) -> Duration {
        (ttl * 2).max(Duration::from_secs(180))
    }
}

/// A place in the history of a resource, meaningful only to the backend that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Cursor(pub u64);

/// What an operator says to a resource. Every order leaves an [audit record](crate::AuditRecord).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OperatorCommand {
    /// To what.
    pub resource: Resource,
    /// The grant that is meant, so that a newer holder is never hit by mistake. Without one: whoever is there, or
    /// the resource itself.
    pub token: Option<FencingToken>,
    /// Who says so.
    pub by: String,
    /// Why.
    pub why: String,
    /// What to do.
    pub action: OperatorAction,
}

impl OperatorCommand {
    /// The longest `by` and `why`, in bytes.
    pub const TEXT_MAX: usize = 1024;

    /// An order.
    pub fn new(resource: Resource, action: OperatorAction, by: &str, why: &str) -> OperatorCommand {
        OperatorCommand { resource, token: None, by: by.to_owned(), why: why.to_owned(), action }
    }

    /// Means this grant and no other.
    #[must_use]
    pub fn for_token(mut self, token: FencingToken) -> OperatorCommand {
        self.token = Some(token);
        self
    }
}

/// The operator's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperatorAction {
    /// Asks the holder to finish within this time. It sees it as an event; nothing is taken from it.
    Ask {
        /// How long it has.
        within: Duration,
    },
    /// Ends a holder.
    Evict(Eviction),
    /// Grants nothing for this long; holders stay.
    Pause {
        /// How long.
        lasting: Duration,
    },
    /// Grants again.
    Resume,
    /// Changes the capacity of what is in use.
    Resize {
        /// To this.
        capacity: NonZeroU32,
    },
}

impl OperatorAction {
    /// A stable name, for programs and the audit trail.
    pub const fn as_str(self) -> &'static str {
        match self {
            OperatorAction::Ask { .. } => "ask",
            OperatorAction::Evict(Eviction::AtExpiry) => "evict",
            OperatorAction::Evict(Eviction::Now) => "evict-now",
            OperatorAction::Pause { .. } => "pause",
            OperatorAction::Resume => "resume",
            OperatorAction::Resize { .. } => "resize",
        }
    }
}

/// How a holder is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// It is not renewed any more, is told so, and runs out. Nobody else is granted before.
    AtExpiry,
    /// It is gone at once. It may still be at work: **two may run** until it learns of it.
    Now,
}

/// What to look at.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Query {
    /// One resource, whole.
    One(Resource),
    /// Resources in key order, a page at a time.
    Resources(Listing),
    /// The audit trail, newest first, a page at a time.
    Audit(Listing),
    /// Keys of our own that would never end, a page at a time. A backend whose every entry ends by itself, because
    /// nothing without an end can be written there, answers an empty page.
    Leaks(Listing),
    /// Locks of other programs in the same store that would never end, a page at a time. `Unsupported` where only
    /// leasehold keeps anything.
    Foreign {
        /// Which keys, as a glob of the store's own: `lock:*`.
        pattern: String,
        /// Which part; its prefix is not used.
        listing: Listing,
    },
}

/// Which part of a long answer.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// Only resources whose key begins so.
    pub prefix: String,
    /// Where the page before said to go on.
    pub after: Option<String>,
    /// At most this many; the backend's page limit if it is zero or more than that.
    pub limit: u32,
}

impl Listing {
    /// Everything whose key begins so.
    pub fn of(prefix: &str) -> Listing {
        Listing { prefix: prefix.to_owned(), ..Listing::default() }
    }

    /// Goes on where the page before ended.
    #[must_use]
    pub fn after(mut self, next: String) -> Listing {
        self.after = Some(next);
        self
    }

    /// At most this many.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Listing {
        self.limit = limit;
        self
    }
}

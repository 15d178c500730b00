//! The requests to a backend: claims, renewals, releases, operators' commands, queries.
//!
//! These types are `#[non_exhaustive]`: a backend reads them and they may grow; the engine and tests build them
//! with the constructors here.

use std::{
    fmt,
    num::{NonZeroU32, NonZeroU64},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use crate::{
    clock::Environment,
    error::{Error, ErrorKind, Result},
    resource::Resource,
    token::{FencingToken, OwnerToken},
};

/// How much of a resource a claim wants: a weight, out of a capacity. 1 of 1, 2 of 5, MAX of MAX.
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
            let message =
                format!("{weight} of {capacity} is not a share: the weight must be from 1 to the capacity");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(Share { weight, capacity })
    }

    /// The part of the capacity that the claim takes.
    pub const fn weight(self) -> u32 {
        self.weight
    }

    /// The whole.
    pub const fn capacity(self) -> u32 {
        self.capacity
    }

    /// Whether no other claim can hold the resource at the same time.
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
    /// It leaves nothing behind.
    Leave,
    /// It takes a place in the queue, or renews the one it has.
    Queue,
}

/// A description of the process that holds or waits, for people to read. No decision depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Holder {
    /// The host's name.
    pub host: String,
    /// The process id there.
    pub pid: u32,
    /// The purpose, in the caller's words. May be empty.
    pub label: String,
    /// Who a server took the caller for: the subject of its token or certificate. Empty if the claim came by no server, or by one
    /// that asks for no token. The rest of a holder is what the process says of itself.
    pub subject: String,
}

impl Holder {
    /// The longest host name and the longest label kept, in bytes; longer ones are cut.
    pub const TEXT_MAX: usize = 256;

    /// Replaces control characters by spaces and cuts long texts: this is shown on terminals.
    pub fn new(host: &str, pid: u32, label: &str) -> Holder {
        Holder { host: word(host), pid, label: clean(label).trim().to_owned(), subject: String::new() }
    }

    /// Adds who a server took the caller for.
    #[must_use]
    pub fn with_subject(mut self, subject: &str) -> Holder {
        self.subject = word(subject);
        self
    }

    /// `1234@host~subject`, without the label.
    fn write_process(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.pid, self.host)?;
        if self.subject.is_empty() { Ok(()) } else { write!(f, "~{}", self.subject) }
    }

    /// Reads what [`write_process`](Holder::write_process) wrote.
    fn read_process(process: &str, label: &str) -> Option<Holder> {
        let (pid, place) = process.split_once('@')?;
        let (host, subject) = place.split_once('~').unwrap_or((place, ""));
        Some(Holder::new(host, pid.parse().ok()?, label).with_subject(subject))
    }
}

/// A holder as backends store it: the process, and the ttl of its claim. With the ttl, others can tell from the time that remains
/// when it was last renewed.
///
/// As text it is `1234@host#30000 label`, with the ttl in milliseconds, or `1234@host~subject#30000 label`. A text without a ttl is
/// read, too.
///
/// ```
/// use leasehold_core::StoredHolder;
/// let Ok(stored) = "1234@host-a#30000 nightly".parse::<StoredHolder>();
/// assert_eq!(stored.ttl, Some(std::time::Duration::from_secs(30)));
/// assert_eq!(stored.holder.to_string(), "1234@host-a nightly");
/// assert_eq!(stored.to_string(), "1234@host-a#30000 nightly");
///
/// let Ok(by_server) = "1234@host-a~ci#30000 nightly".parse::<StoredHolder>();
/// assert_eq!((&*by_server.holder.host, &*by_server.holder.subject), ("host-a", "ci"));
/// assert_eq!(by_server.to_string(), "1234@host-a~ci#30000 nightly");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredHolder {
    /// The process.
    pub holder: Arc<Holder>,
    /// The ttl of its claim, if it is stored.
    pub ttl: Option<Duration>,
}

impl fmt::Display for StoredHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.holder.write_process(f)?;
        if let Some(ttl) = self.ttl {
            write!(f, "#{}", ttl.as_millis())?;
        }
        if self.holder.label.is_empty() { Ok(()) } else { write!(f, " {}", self.holder.label) }
    }
}

impl FromStr for StoredHolder {
    type Err = std::convert::Infallible;
    /// Reads what `Display` wrote. Any other text becomes the label of an unknown process: it is for people.
    fn from_str(text: &str) -> Result<StoredHolder, Self::Err> {
        let (process, label) = text.split_once(' ').unwrap_or((text, ""));
        let with_ttl = process.rsplit_once('#').and_then(|(process, ttl)| Some((process, ttl.parse().ok()?)));
        let Some((process, ttl_ms)) = with_ttl else {
            let Ok(holder) = text.parse::<Holder>();
            return Ok(StoredHolder { holder: Arc::new(holder), ttl: None });
        };
        let holder = Holder::read_process(process, label).unwrap_or_else(|| Holder::new("", 0, text));
        Ok(StoredHolder { holder: Arc::new(holder), ttl: Some(Duration::from_millis(ttl_ms)) })
    }
}

/// A text without the characters that separate the parts of a stored holder.
fn word(text: &str) -> String {
    clean(text).replace([' ', '@', '#', '~'], "-")
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
    /// `1234@host label`, or `1234@host~subject label`, which [`Holder::from_str`] reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_process(f)?;
        if self.label.is_empty() { Ok(()) } else { write!(f, " {}", self.label) }
    }
}

impl FromStr for Holder {
    type Err = std::convert::Infallible;
    /// Reads what `Display` wrote. Any other text becomes the label of an unknown process: it is for people.
    fn from_str(text: &str) -> Result<Holder, Self::Err> {
        let (process, label) = text.split_once(' ').unwrap_or((text, ""));
        Ok(Holder::read_process(process, label).unwrap_or_else(|| Holder::new("", 0, text)))
    }
}

/// A random id of one client: of one connection of a process to its backend. The claims of a client fall silent together: see
/// [`queue`](crate::queue).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(NonZeroU64);

impl ClientId {
    /// A new id, from the random numbers of the environment.
    pub fn fresh(environment: &dyn Environment) -> ClientId {
        let mut bytes = [0; 8];
        environment.fill(&mut bytes);
        ClientId(NonZeroU64::new(u64::from_ne_bytes(bytes)).unwrap_or(NonZeroU64::MIN))
    }

    /// The id as a number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The id with this number; `None` for zero.
    pub const fn from_number(number: u64) -> Option<ClientId> {
        match NonZeroU64::new(number) {
            Some(number) => Some(ClientId(number)),
            None => None,
        }
    }
}

impl fmt::Display for ClientId {
    /// 16 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientId({self})")
    }
}

/// Says that a claim takes over from another claim of the same client, in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Handover {
    /// The owner token of the predecessor, which holds the resource or is queued for it.
    pub owner: OwnerToken,
    /// Leave a tombstone for the predecessor, for this long. Needed if a request of it went unanswered: the server may still
    /// execute that request. ADR 0004.
    pub tombstone: Option<Duration>,
}

impl Handover {
    /// Takes over from this owner. All requests of that owner were answered.
    pub fn from(owner: OwnerToken) -> Handover {
        Handover { owner, tombstone: None }
    }

    /// Takes over from this owner and leaves a tombstone for it.
    pub fn with_tombstone(owner: OwnerToken, keep: Duration) -> Handover {
        Handover { owner, tombstone: Some(keep) }
    }
}

/// A request for a share of a resource: what [`Backend::acquire`](crate::Backend::acquire) takes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// The resource.
    pub resource: Resource,
    /// The id of this claim. The client chooses it before it sends the claim, so sending the claim again is harmless.
    pub owner: OwnerToken,
    /// How much of the resource.
    pub share: Share,
    /// How long the grant lasts unless it is renewed.
    pub ttl: Duration,
    /// How long a place in the queue lasts unless it is renewed.
    pub place_ttl: Duration,
    /// What to do when it cannot be granted now.
    pub when_blocked: WhenBlocked,
    /// The claim that this one takes over from, if any.
    pub takes_over_from: Option<Handover>,
    /// The highest token that this client has seen for the resource: the new one must be above it.
    pub floor: Option<FencingToken>,
    /// A few bytes that others can read, such as the value of an election.
    pub note: Option<Arc<[u8]>>,
    /// The process that asks, for people to read.
    pub holder: Arc<Holder>,
    /// The client that asks. Without one, the claim has nothing to do with any other claim.
    pub client: Option<ClientId>,
}

impl Claim {
    /// The default of `place_ttl`. After that time, nothing is left of a waiter that died.
    pub const PLACE_TTL: Duration = Duration::from_secs(6);
    /// The shortest `place_ttl` that [`Claim::short_place_ttl`] gives.
    pub const PLACE_TTL_MIN: Duration = Duration::from_secs(2);

    /// The `place_ttl` for a claim of this ttl where a dead waiter blocks the queue until its place expires: the same, but at
    /// least 2 s and at most 6 s.
    pub fn short_place_ttl(ttl: Duration) -> Duration {
        ttl.clamp(Claim::PLACE_TTL_MIN, Claim::PLACE_TTL)
    }

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
            client: None,
        }
    }

    /// The client that asks.
    #[must_use]
    pub fn by_client(mut self, client: ClientId) -> Claim {
        self.client = Some(client);
        self
    }

    /// The claim queues when it is blocked.
    #[must_use]
    pub fn queued(mut self) -> Claim {
        self.when_blocked = WhenBlocked::Queue;
        self
    }

    /// The claim takes over from another one.
    #[must_use]
    pub fn taking_over(mut self, from: Handover) -> Claim {
        self.takes_over_from = Some(from);
        self
    }

    /// The new token must be above this one.
    #[must_use]
    pub fn above(mut self, floor: FencingToken) -> Claim {
        self.floor = Some(floor);
        self
    }

    /// Adds a note.
    #[must_use]
    pub fn with_note(mut self, note: impl Into<Arc<[u8]>>) -> Claim {
        self.note = Some(note.into());
        self
    }

    /// What a backend stores about the process that asks.
    pub fn stored_holder(&self) -> StoredHolder {
        StoredHolder { holder: Arc::clone(&self.holder), ttl: Some(self.ttl) }
    }

    /// Names this claim.
    pub fn reference(&self) -> ClaimRef {
        ClaimRef { resource: self.resource.clone(), owner: self.owner }
    }
}

/// Names a claim: its resource and its owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimRef {
    /// The resource.
    pub resource: Resource,
    /// The owner token of the claim.
    pub owner: OwnerToken,
}

/// A request to renew a lease, or a place in the queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewRequest {
    /// The resource.
    pub resource: Resource,
    /// The owner token of the claim.
    pub owner: OwnerToken,
    /// The new ttl, counted from now; for a place in the queue, its place ttl.
    pub ttl: Duration,
    /// Replaces the note, if given.
    pub note: Option<Arc<[u8]>>,
}

impl RenewRequest {
    /// Renews for this long and keeps the note.
    pub fn new(claim: ClaimRef, ttl: Duration) -> RenewRequest {
        RenewRequest { resource: claim.resource, owner: claim.owner, ttl, note: None }
    }

    /// Replaces the note.
    #[must_use]
    pub fn with_note(mut self, note: impl Into<Arc<[u8]>>) -> RenewRequest {
        self.note = Some(note.into());
        self
    }
}

/// A request to end a claim, whether it holds the resource, is queued, or never reached the backend.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// The resource.
    pub resource: Resource,
    /// The owner token of the claim.
    pub owner: OwnerToken,
    /// Leave a tombstone for this long: a delayed request of this owner is refused.
    pub tombstone: Option<Duration>,
    /// If the claim holds the resource: keep it closed for this long, with no holder.
    pub keep_for: Option<Duration>,
}

impl ReleaseRequest {
    /// Ends this claim.
    pub fn new(claim: ClaimRef) -> ReleaseRequest {
        ReleaseRequest { resource: claim.resource, owner: claim.owner, tombstone: None, keep_for: None }
    }

    /// Leaves a tombstone for this long.
    #[must_use]
    pub fn with_tombstone(mut self, keep: Duration) -> ReleaseRequest {
        self.tombstone = Some(keep);
        self
    }

    /// Keeps the resource closed for this long.
    #[must_use]
    pub fn keeping(mut self, keep_for: Duration) -> ReleaseRequest {
        self.keep_for = Some(keep_for);
        self
    }

    /// How long a tombstone must last for a claim of this ttl: longer than any request of it can be delayed.
    pub fn tombstone_ttl(ttl: Duration) -> Duration {
        (ttl * 2).max(Duration::from_secs(180))
    }
}

/// A position in the history of a resource. Only the backend that gave it can interpret it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Cursor(pub u64);

/// A command of an operator for one resource. Every command leaves an [audit record](crate::AuditRecord).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OperatorCommand {
    /// The resource.
    pub resource: Resource,
    /// The token of the grant that the command is for, so that it never hits a newer holder by mistake. Without one, the
    /// command is for the newest grant, or for the resource itself.
    pub token: Option<FencingToken>,
    /// The operator.
    pub by: String,
    /// The reason.
    pub why: String,
    /// What to do with the resource or its holder.
    pub action: OperatorAction,
}

impl OperatorCommand {
    /// The longest `by` and `why`, in bytes.
    pub const TEXT_MAX: usize = 1024;

    /// A command that is not bound to a token.
    pub fn new(resource: Resource, action: OperatorAction, by: &str, why: &str) -> OperatorCommand {
        OperatorCommand { resource, token: None, by: by.to_owned(), why: why.to_owned(), action }
    }

    /// Binds the command to this grant.
    #[must_use]
    pub fn for_token(mut self, token: FencingToken) -> OperatorCommand {
        self.token = Some(token);
        self
    }
}

/// What an operator can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperatorAction {
    /// Asks the holder to finish within this time. The holder gets an event and keeps the lease.
    Ask {
        /// How much time the holder has.
        within: Duration,
    },
    /// Ends the holder's lease.
    Evict(Eviction),
    /// Removes the lock of another program, if its value still has this hash. Its holder is not told and may still be working:
    /// **two may run**. `HolderChanged` if the lock is gone or has changed.
    EvictForeign {
        /// What [`ForeignLock::value_hash`](crate::ForeignLock::value_hash) said.
        value: ValueHash,
    },
    /// Grants nothing for this long. Holders keep their leases.
    Pause {
        /// The length of the pause.
        lasting: Duration,
    },
    /// Ends a pause.
    Resume,
    /// Changes the capacity of a resource that is in use.
    Resize {
        /// The new capacity.
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
            OperatorAction::EvictForeign { .. } => "evict-foreign",
            OperatorAction::Pause { .. } => "pause",
            OperatorAction::Resume => "resume",
            OperatorAction::Resize { .. } => "resize",
        }
    }
}

/// A hash of the value of a [`ForeignLock`](crate::ForeignLock). It names one lock of another program without showing its value,
/// which may be the secret that releases the lock. Only the backend that gave it can interpret it.
///
/// As text it is 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValueHash([u8; 8]);

impl ValueHash {
    /// The hash of these bytes.
    pub fn of(value: &[u8]) -> ValueHash {
        use sha2::{Digest as _, Sha256};
        let digest = Sha256::digest(value);
        ValueHash(digest[..8].try_into().expect("the slice has eight bytes"))
    }
}

impl fmt::Display for ValueHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for ValueHash {
    type Err = crate::Error;
    fn from_str(text: &str) -> Result<ValueHash, Self::Err> {
        let wrong = || {
            let message = "the hash of a value has 16 hexadecimal digits, as `leasehold show` prints it";
            crate::Error::new(crate::ErrorKind::Invalid, message)
        };
        if text.len() != 16 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let number = u64::from_str_radix(text, 16).map_err(|_| wrong())?;
        Ok(ValueHash(number.to_be_bytes()))
    }
}

/// How an operator ends a holder's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// The lease is no longer renewed and expires. The holder is told. Nobody else is granted before that.
    AtExpiry,
    /// The lease ends at once. Its holder may still be working: **two may run** until it finds out.
    Now,
}

/// What to read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Query {
    /// One resource, with all its holders and its queue.
    One(Resource),
    /// Resources in key order, a page at a time.
    Resources(Listing),
    /// The audit trail, newest first, a page at a time.
    Audit(Listing),
    /// Keys of leasehold that have no expiry, a page at a time. A backend where nothing can be written without an expiry
    /// answers with an empty page.
    Leaks(Listing),
    /// Locks of other programs in the same store that have no expiry, a page at a time. `Unsupported` where only leasehold
    /// uses the store.
    Foreign {
        /// Which keys, as a glob pattern of the store: `lock:*`.
        pattern: String,
        /// Which page. Its prefix is not used.
        listing: Listing,
    },
    /// The servers of the store: which answer, and what their clocks say. `Unsupported` where there is no server.
    Nodes,
}

/// Which page of a long result.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// Only resources whose key begins with this.
    pub prefix: String,
    /// The position that the page before gave as `next`.
    pub after: Option<String>,
    /// At most this many entries. If this is zero, or above the backend's page limit, that limit counts.
    pub limit: u32,
}

impl Listing {
    /// Everything whose key begins with this prefix.
    pub fn of(prefix: &str) -> Listing {
        Listing { prefix: prefix.to_owned(), ..Listing::default() }
    }

    /// Continues after the page before.
    #[must_use]
    pub fn after(mut self, next: String) -> Listing {
        self.after = Some(next);
        self
    }

    /// At most this many entries.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Listing {
        self.limit = limit;
        self
    }
}

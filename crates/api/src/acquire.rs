//! `POST /v1/acquire`: asks for a grant.

use std::{sync::Arc, time::Duration};

use leasehold_core::{
    Blocked, Claim, ClaimRef, ClientId, Error, FencingToken, Grant, Guarantee, Handover, Holder, OwnerToken,
    Pass, Resource, Result, Share, Verdict, WhenBlocked,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    fields::{self, ClaimName, OwnerText, StoreId, TokenText, invalid},
    inspect::{ForeignLockBody, HeldByBody},
    list::{self, Entry, OneOrMany, Unreadable},
    problem::{Problem, RefusedVerdict},
};

/// A claim, as a client sends it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(
    feature = "openapi",
    derive(schemars::JsonSchema),
    schemars(extend("oneOf" = crate::openapi::one_name()))
)]
#[serde(deny_unknown_fields)]
pub struct ClaimBody {
    /// The resource, as people write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<crate::openapi::ResourceName>"))]
    pub resource: Option<String>,
    /// The resource by its key: for hashed ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<crate::openapi::ResourceKey>"))]
    pub key: Option<String>,
    /// The owner token: 32 random hex digits, chosen by the client. Sending the claim again is harmless.
    pub owner: OwnerText,
    /// How long the grant lasts unless it is renewed. A store's limit may shorten it: the answer says what was given.
    #[cfg_attr(feature = "openapi", schemars(extend("minimum" = 1)))]
    pub ttl_ms: u64,
    /// How long the server waits on the caller's behalf. Only in a single claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(extend("maximum" = crate::bounds::WAIT_MS)))]
    pub wait_ms: Option<u64>,
    /// How much of the resource. Without it: exclusive.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "list::no_array")]
    pub share: Option<ShareBody>,
    /// What the claim does when it is blocked, at the end of its wait: `leave` is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_blocked: Option<WhenBlockedBody>,
    /// How long a place in the queue lasts unless it is renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(extend("minimum" = 1, "maximum" = crate::bounds::PLACE_TTL_MS)))]
    pub place_ttl_ms: Option<u64>,
    /// The claim that this one takes over from.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "list::no_array")]
    pub succeeds: Option<SucceedsBody>,
    /// The highest token that the client has seen: the new one will be above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<TokenText>,
    /// A note that others can read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// A note that is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note_base64: Option<String>,
    /// Refuse a store that promises less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<LevelBody>,
    /// The host of the caller, for people to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The process id of the caller, for people to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The purpose, for people to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// A random id of the client, 16 hex digits: its claims fall silent together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(extend("pattern" = "^[0-9a-fA-F]{16}$")))]
    pub process: Option<String>,
    /// What happens if the connection ends while the claim waits. `leave`: this owner token is in no other request, so cancel
    /// the claim at once. Without it, its place ends by itself. Only in a single claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hangup: Option<HangupBody>,
}

/// How much of a resource: `"read"`, `"write"`, or a weight of a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "share must be \"read\", \"write\" or {\"weight\":2,\"capacity\":5}")]
pub enum ShareBody {
    /// Reader or writer.
    Named(ShareName),
    /// A weight of a capacity.
    Parts(ShareParts),
}

/// A share of a read-write lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ShareName {
    /// 1 of MAX.
    Read,
    /// MAX of MAX.
    Write,
}

/// A weight of a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ShareParts {
    /// The part that the claim takes.
    #[cfg_attr(feature = "openapi", schemars(extend("minimum" = 1)))]
    pub weight: u32,
    /// The whole.
    #[cfg_attr(feature = "openapi", schemars(extend("minimum" = 1)))]
    pub capacity: u32,
}

impl ShareBody {
    /// The form of this share. `None` for an exclusive one.
    pub fn of(share: Share) -> Option<ShareBody> {
        match share {
            Share::WHOLE => None,
            Share::READ => Some(ShareBody::Named(ShareName::Read)),
            Share::WRITE => Some(ShareBody::Named(ShareName::Write)),
            share => {
                Some(ShareBody::Parts(ShareParts { weight: share.weight(), capacity: share.capacity() }))
            }
        }
    }

    fn to_core(self) -> Result<Share> {
        match self {
            ShareBody::Named(ShareName::Read) => Ok(Share::READ),
            ShareBody::Named(ShareName::Write) => Ok(Share::WRITE),
            ShareBody::Parts(parts) => Share::new(parts.weight, parts.capacity),
        }
    }
}

/// What a claim does when it is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WhenBlockedBody {
    /// It leaves nothing behind.
    Leave,
    /// It has a place in the queue, which the client keeps by renewing it or by asking again.
    Queue,
}

/// What happens if the connection ends while the claim waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HangupBody {
    /// The claim is cancelled.
    Leave,
}

/// The claim that another one takes over from.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SucceedsBody {
    /// Its owner token.
    pub owner: OwnerText,
    /// Leave a tombstone for it, for this long: one of its requests went unanswered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(extend("maximum" = crate::bounds::BURY_MS)))]
    pub bury_ms: Option<u64>,
}

/// How far a store can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LevelBody {
    /// A failover can grant twice.
    BestEffort,
    /// A majority of independent nodes.
    Quorum,
    /// A transaction log on one durable node.
    Database,
    /// A consensus protocol.
    Consensus,
}

impl LevelBody {
    /// The form of this guarantee.
    pub fn of(guarantee: Guarantee) -> LevelBody {
        match guarantee {
            Guarantee::Quorum => LevelBody::Quorum,
            Guarantee::Database => LevelBody::Database,
            Guarantee::Consensus => LevelBody::Consensus,
            // The weakest, also for a level that this version does not know.
            _ => LevelBody::BestEffort,
        }
    }

    /// The guarantee.
    pub fn to_core(self) -> Guarantee {
        match self {
            LevelBody::BestEffort => Guarantee::BestEffort,
            LevelBody::Quorum => Guarantee::Quorum,
            LevelBody::Database => Guarantee::Database,
            LevelBody::Consensus => Guarantee::Consensus,
        }
    }
}

impl From<&Claim> for ClaimBody {
    /// The claim as a client sends it: without waiting.
    fn from(claim: &Claim) -> ClaimBody {
        let (resource, key) = fields::write_resource(&claim.resource);
        let (note, note_base64) = fields::write_note(claim.note.as_deref());
        let queue = claim.when_blocked == WhenBlocked::Queue;
        let succeeds = claim.takes_over_from.map(|from| SucceedsBody {
            owner: OwnerText(from.owner),
            bury_ms: from.tombstone.map(fields::ms_up),
        });
        ClaimBody {
            resource,
            key,
            owner: OwnerText(claim.owner),
            ttl_ms: fields::ttl_ms(claim.ttl),
            wait_ms: None,
            share: ShareBody::of(claim.share),
            when_blocked: queue.then_some(WhenBlockedBody::Queue),
            place_ttl_ms: queue.then(|| fields::ttl_ms(claim.place_ttl)),
            succeeds,
            floor: claim.floor.map(TokenText),
            note,
            note_base64,
            level: None,
            host: Some(claim.holder.host.clone()),
            pid: Some(claim.holder.pid),
            label: Some(claim.holder.label.clone()).filter(|label| !label.is_empty()),
            process: claim.client.map(|client| client.to_string()),
            hangup: None,
        }
    }
}

impl ClaimBody {
    /// Reads the body of a request: one claim, or `{"claims":[…]}`.
    ///
    /// # Errors
    /// If it is neither.
    pub fn read(body: &[u8]) -> Result<OneOrMany<ClaimBody>, Unreadable> {
        OneOrMany::read(body, "claims")
    }

    /// The body of a request with many claims.
    pub fn write_many(claims: &[ClaimBody], timeout_ms: Option<u64>) -> Value {
        list::write_many("claims", claims, timeout_ms)
    }

    /// The claim for the store. Checks the form, not the bounds.
    ///
    /// # Errors
    /// `Invalid` if a value is not in the grammar of core, or if fields contradict each other.
    pub fn claim(&self) -> Result<Claim> {
        let resource = fields::read_resource(self.resource.as_deref(), self.key.as_deref())?;
        let share = self.share.map_or(Ok(Share::WHOLE), ShareBody::to_core)?;
        let (host, label) = (self.host.as_deref().unwrap_or(""), self.label.as_deref().unwrap_or(""));
        let holder = Arc::new(Holder::new(host, self.pid.unwrap_or(0), label));
        let ttl = Duration::from_millis(self.ttl_ms);
        let mut claim = Claim::new(resource, self.owner.0, share, ttl, holder);
        if self.when_blocked == Some(WhenBlockedBody::Queue) {
            claim = claim.queued();
        }
        if let Some(place_ttl_ms) = self.place_ttl_ms {
            claim.place_ttl = Duration::from_millis(place_ttl_ms);
        }
        claim.takes_over_from = self.succeeds.map(|from| match from.bury_ms {
            None => Handover::from(from.owner.0),
            Some(bury_ms) => Handover::with_tombstone(from.owner.0, Duration::from_millis(bury_ms)),
        });
        claim.floor = self.floor.map(|floor| floor.0);
        claim.note = fields::read_note(self.note.as_deref(), self.note_base64.as_deref())?;
        claim.client = self.process.as_deref().map(read_client).transpose()?;
        Ok(claim)
    }
}

fn read_client(text: &str) -> Result<ClientId> {
    let is_id = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let number = is_id.then(|| u64::from_str_radix(text, 16).ok()).flatten();
    number.and_then(ClientId::from_number).ok_or_else(|| invalid("`process` has 16 hex digits, not all zero"))
}

/// The answer to a claim that was granted or queued.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum AcquireReply {
    /// 200: the claim holds the resource.
    Granted(GrantedReply),
    /// 202: the claim has a place in the queue.
    Queued(QueuedReply),
}

/// A grant.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct GrantedReply {
    /// The claim.
    #[serde(flatten)]
    pub claim: ClaimName,
    /// The fencing token of an exclusive grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenText>,
    /// The number of a shared grant: it orders nothing, so it is not called a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<TokenText>,
    /// What the holder of an exclusive grant presents to a fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<String>,
    /// The ttl that was given: renew by this.
    pub ttl_ms: u64,
    /// How much of the lease was left when the store executed the request.
    pub remaining_ms: u64,
    /// The time from the server's reading the request to its sending the store call that granted. The lease ends at: when the
    /// client sent the request + `waited_ms` less 1 % + `remaining_ms`.
    pub waited_ms: u64,
    /// How many replicas have acknowledged it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acks: Option<u32>,
}

/// A place in the queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct QueuedReply {
    /// The claim.
    #[serde(flatten)]
    pub claim: ClaimName,
    /// How long the place lasts: ask again or renew within this time.
    pub place_ms: u64,
    /// Live claims ahead in the queue.
    pub ahead: u32,
    /// Some of the holders.
    #[serde(default)]
    pub holders: Vec<HeldByBody>,
    /// The lock of another program that holds the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign: Option<ForeignLockBody>,
    /// An operator has paused the resource.
    #[serde(default)]
    pub paused: bool,
    /// When the pause ends, where the store says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ends_in_ms: Option<u64>,
    /// When the state changes without a request.
    pub changes_in_ms: Option<u64>,
    /// Where to wait from.
    pub cursor: String,
    /// How long the server waited for the caller.
    #[serde(default)]
    pub waited_ms: u64,
}

/// What the server answers to this claim. `waited`: see [`GrantedReply::waited_ms`].
pub fn reply(
    claim: &Claim,
    verdict: Result<Verdict>,
    waited: Duration,
    store: &StoreId,
) -> Entry<AcquireReply> {
    let about = |problem: Problem| problem.about(&claim.resource, claim.owner);
    let problem = match verdict {
        Ok(Verdict::Granted(grant)) => {
            return Entry::Reply(200, AcquireReply::Granted(granted(claim, &grant, waited)));
        }
        Ok(Verdict::Blocked(blocked)) if blocked.queued => {
            return Entry::Reply(202, AcquireReply::Queued(queued(claim, &blocked, waited, store)));
        }
        Ok(Verdict::Blocked(blocked)) => {
            let mut problem = Problem::blocked(blocked, store);
            problem.waited_ms = Some(fields::ms_down(waited));
            problem
        }
        Ok(Verdict::Cancelled) => {
            Problem::gone(leasehold_core::GoneReason::Cancelled, RefusedVerdict::Cancelled)
        }
        Ok(Verdict::Mismatch { capacity }) => {
            Problem::from(&Error::mismatch(capacity, claim.share.capacity()))
                .with_verdict(RefusedVerdict::Mismatch)
        }
        Err(error) => Problem::from(&error),
    };
    about(problem).into()
}

fn granted(claim: &Claim, grant: &Grant, waited: Duration) -> GrantedReply {
    let exclusive = claim.share.is_exclusive();
    let pass = || Pass::new(claim.resource.clone(), grant.token).owned_by(claim.owner).to_string();
    GrantedReply {
        claim: ClaimName::of(&claim.resource, claim.owner),
        token: exclusive.then_some(TokenText(grant.token)),
        number: (!exclusive).then_some(TokenText(grant.token)),
        pass: exclusive.then(pass),
        ttl_ms: fields::ms_down(claim.ttl),
        remaining_ms: fields::ms_down(grant.remaining),
        waited_ms: fields::ms_down(waited),
        acks: grant.acks,
    }
}

fn queued(claim: &Claim, blocked: &Blocked, waited: Duration, store: &StoreId) -> QueuedReply {
    QueuedReply {
        claim: ClaimName::of(&claim.resource, claim.owner),
        place_ms: fields::ms_down(claim.place_ttl),
        ahead: blocked.ahead,
        holders: blocked.holders.iter().map(HeldByBody::from).collect(),
        foreign: blocked.foreign.as_ref().map(ForeignLockBody::from),
        paused: blocked.paused,
        pause_ends_in_ms: blocked.pause_ends_in.map(fields::ms_up),
        changes_in_ms: blocked.changes_in.map(fields::ms_up),
        cursor: fields::write_cursor(blocked.cursor, store),
        waited_ms: fields::ms_down(waited),
    }
}

/// What the answer means for the client that sent this claim.
///
/// # Errors
/// The error that a problem stands for. `Unavailable` with the effect unknown if the answer names another claim: then it was meant
/// for another request, and the connection must not be used again.
pub fn outcome(claim: &Claim, entry: Entry<AcquireReply>) -> Result<Verdict> {
    let asked = claim.reference();
    match entry.into_result() {
        Ok(AcquireReply::Granted(granted)) => {
            check_name(&asked, &granted.claim)?;
            let token =
                granted.token.or(granted.number).ok_or_else(|| unreadable("a grant without a token"))?;
            let grant = Grant::new(token.0, Duration::from_millis(granted.remaining_ms));
            Ok(Verdict::Granted(granted.acks.map_or(grant, |acks| grant.acknowledged(acks))))
        }
        Ok(AcquireReply::Queued(queued)) => {
            check_name(&asked, &queued.claim)?;
            Ok(Verdict::Blocked(queued.to_core()))
        }
        Err(problem) => {
            check_problem(&asked, &problem)?;
            match (problem.verdict, problem.capacity) {
                (Some(RefusedVerdict::Blocked), _) => Ok(Verdict::Blocked(problem.blocked_facts())),
                (Some(RefusedVerdict::Cancelled), _) => Ok(Verdict::Cancelled),
                (Some(RefusedVerdict::Mismatch), Some(capacity)) => Ok(Verdict::Mismatch { capacity }),
                _ => Err(Error::from(&*problem)),
            }
        }
    }
}

impl QueuedReply {
    fn to_core(&self) -> Blocked {
        let mut blocked = Blocked::default();
        (blocked.queued, blocked.ahead, blocked.paused) = (true, self.ahead, self.paused);
        blocked.holders = self.holders.iter().map(HeldByBody::to_core).collect();
        blocked.foreign = self.foreign.as_ref().and_then(ForeignLockBody::to_core);
        blocked.pause_ends_in = self.pause_ends_in_ms.map(Duration::from_millis);
        blocked.changes_in = self.changes_in_ms.map(Duration::from_millis);
        blocked.cursor = fields::cursor_of_answer(&self.cursor);
        blocked
    }
}

/// An answer that names another claim is an answer to another request.
pub(crate) fn check_name(asked: &ClaimRef, named: &ClaimName) -> Result<()> {
    if named.names(asked) {
        Ok(())
    } else {
        Err(unreadable("the server's answer names another claim").on(&asked.resource))
    }
}

pub(crate) fn check_problem(asked: &ClaimRef, problem: &Problem) -> Result<()> {
    if problem.names_another(asked) {
        return Err(unreadable("the server's answer names another claim").on(&asked.resource));
    }
    // A verdict always names its claim; a refusal of the whole request names none.
    if problem.verdict.is_some() && problem.owner_hash.is_none() {
        return Err(unreadable("the server's answer names no claim").on(&asked.resource));
    }
    Ok(())
}

pub(crate) fn unreadable(message: &'static str) -> Error {
    Error::new(leasehold_core::ErrorKind::Unavailable, message).with_effect(leasehold_core::Effect::Unknown)
}

/// Names a claim in a request: used by renew, release and wait.
pub(crate) fn read_claim(resource: Option<&str>, key: Option<&str>, owner: OwnerToken) -> Result<ClaimRef> {
    let resource: Resource = fields::read_resource(resource, key)?;
    Ok(ClaimRef { resource, owner })
}

impl GrantedReply {
    /// The token of an exclusive grant, or the number of a shared one.
    pub fn grant_number(&self) -> Option<FencingToken> {
        self.token.or(self.number).map(|token| token.0)
    }
}

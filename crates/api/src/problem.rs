//! Refusals, as RFC 9457 problem documents.
//!
//! A document gives back every part of an [`Error`]: kind, effect, message, verb, backend, resource, and what some kinds carry. The
//! same form refuses a claim (423), reports a lost lease (410) and so on: then `verdict` says which reply of the store it is.

use std::time::Duration;

use leasehold_core::{
    Blocked, Busy, ClaimRef, Effect, EndReason, Error, ErrorKind, GoneReason, OwnerToken, Resource, Verb,
};
use serde::{Deserialize, Serialize};

use crate::{
    fields::{self, ClaimName, StoreId, TokenText},
    inspect::{ForeignLockBody, HeldByBody},
};

/// Kinds of problems, with their status, title and hint.
macro_rules! kinds {
    ($($variant:ident $name:literal $status:literal $title:literal $hint:expr;)*) => {
        /// What went wrong: the kinds of [`ErrorKind`], and those of HTTP.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ProblemKind { $(
            #[doc = $title]
            $variant,
        )* }

        impl ProblemKind {
            /// All kinds.
            pub const ALL: &[ProblemKind] = &[$(ProblemKind::$variant),*];

            /// The stable name, for programs.
            pub const fn as_str(self) -> &'static str {
                match self { $(ProblemKind::$variant => $name,)* }
            }

            /// The HTTP status.
            pub const fn status(self) -> u16 {
                match self { $(ProblemKind::$variant => $status,)* }
            }

            /// A short text, the same for each problem of the kind.
            pub const fn title(self) -> &'static str {
                match self { $(ProblemKind::$variant => $title,)* }
            }

            /// What to do next, where the message does not say it.
            pub const fn hint(self) -> Option<&'static str> {
                match self { $(ProblemKind::$variant => $hint,)* }
            }
        }
    };
}

kinds! {
    Contended "contended" 423 "Another claim holds the resource"
        Some("ask again after retry_after_ms, with jitter, or wait with wait_ms");
    Lost "lost" 410 "The claim does not hold the resource, and is not queued"
        Some("stop the work, then acquire again with a new owner token");
    Mismatch "mismatch" 409 "Other claims use the resource with another capacity" None;
    NotThatOne "not_that_one" 412 "The grant that the command names is gone"
        Some("read the resource again, and send the token that it has now");
    StaleToken "stale_token" 412 "A higher token has been seen" None;
    TokenRequired "token_required" 428 "The command does not say which grant it means"
        Some("send the token of the holder that you mean, or \"any\":true");
    Malformed "malformed" 400 "The request is not well formed" None;
    TooSlow "too_slow" 408 "The request did not arrive in time" Some("send it again");
    NotFound "not_found" 404 "There is no such route" Some("see /openapi.json");
    MethodNotAllowed "method_not_allowed" 405 "The route does not take this method" Some("see /openapi.json");
    TooLarge "too_large" 413 "The request is too large" Some("send fewer entries in one request");
    NotJson "not_json" 415 "The body must be JSON" Some("send the header Content-Type: application/json");
    WrongHost "wrong_host" 421 "The server does not answer for this host"
        Some("use the address that the server listens on, or its --public-url");
    Invalid "invalid" 422 "The request is not valid" None;
    Unsupported "unsupported" 422 "The store cannot do that" None;
    GuaranteeTooWeak "guarantee_too_weak" 422 "The store promises less than the request demands" None;
    Limit "limit" 422 "A stated limit was reached" Some("ask for less, or try again later when fewer claims wait");
    Unauthenticated "unauthenticated" 401 "The request has no valid token"
        Some("send a token as Authorization: Bearer lh_…");
    Denied "denied" 403 "The caller may not do that" Some("use a token with the role and the namespace for it");
    Throttled "throttled" 429 "Too many requests" Some("wait for Retry-After, then send it again");
    Corrupt "corrupt" 500 "The store has a value that cannot be read" None;
    Internal "internal" 500 "The server failed" Some("see the log of the server");
    Unavailable "unavailable" 503 "The store does not answer" Some("try again; check the store");
    Draining "draining" 503 "The server is shutting down" Some("send it again, to another server");
    ShutDown "shut_down" 503 "The server's client of the store was shut down" Some("send it again, to another server");
}

impl ProblemKind {
    /// The kind with this name.
    pub fn named(name: &str) -> Option<ProblemKind> {
        ProblemKind::ALL.iter().copied().find(|kind| kind.as_str() == name)
    }

    /// The kind for an error of the library.
    pub fn of(kind: ErrorKind) -> ProblemKind {
        match kind {
            ErrorKind::Contended => ProblemKind::Contended,
            ErrorKind::Lost => ProblemKind::Lost,
            ErrorKind::Invalid => ProblemKind::Invalid,
            ErrorKind::Mismatch => ProblemKind::Mismatch,
            ErrorKind::Unsupported => ProblemKind::Unsupported,
            ErrorKind::GuaranteeTooWeak => ProblemKind::GuaranteeTooWeak,
            ErrorKind::Denied => ProblemKind::Denied,
            ErrorKind::Corrupt => ProblemKind::Corrupt,
            ErrorKind::StaleToken => ProblemKind::StaleToken,
            ErrorKind::ShutDown => ProblemKind::ShutDown,
            ErrorKind::Limit => ProblemKind::Limit,
            _ => ProblemKind::Unavailable,
        }
    }

    /// The kind of error that a client of the library gets.
    pub fn error_kind(self) -> ErrorKind {
        match self {
            ProblemKind::Contended => ErrorKind::Contended,
            ProblemKind::Lost => ErrorKind::Lost,
            ProblemKind::Mismatch => ErrorKind::Mismatch,
            ProblemKind::StaleToken => ErrorKind::StaleToken,
            ProblemKind::Unsupported | ProblemKind::NotFound | ProblemKind::MethodNotAllowed => {
                ErrorKind::Unsupported
            }
            ProblemKind::GuaranteeTooWeak => ErrorKind::GuaranteeTooWeak,
            ProblemKind::Limit | ProblemKind::TooLarge => ErrorKind::Limit,
            ProblemKind::Unauthenticated | ProblemKind::Denied => ErrorKind::Denied,
            ProblemKind::Corrupt => ErrorKind::Corrupt,
            ProblemKind::ShutDown => ErrorKind::ShutDown,
            ProblemKind::NotThatOne
            | ProblemKind::TokenRequired
            | ProblemKind::Malformed
            | ProblemKind::NotJson
            | ProblemKind::WrongHost
            | ProblemKind::Invalid => ErrorKind::Invalid,
            ProblemKind::TooSlow
            | ProblemKind::Throttled
            | ProblemKind::Internal
            | ProblemKind::Unavailable
            | ProblemKind::Draining => ErrorKind::Unavailable,
        }
    }
}

/// Which reply of the store a problem is, if it is one and not a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RefusedVerdict {
    /// The claim cannot be granted now, and has no place in the queue.
    Blocked,
    /// The claim's owner has a tombstone.
    Cancelled,
    /// Others use another capacity.
    Mismatch,
    /// The claim neither holds the resource nor is queued.
    Gone,
    /// The grant that an order names is gone.
    HolderChanged,
}

/// Why a claim is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LostReason {
    /// It expired, was released, or never existed.
    NotThere,
    /// An operator evicted it.
    Evicted,
    /// It was cancelled: the owner token is used up.
    Buried,
}

impl From<GoneReason> for LostReason {
    fn from(why: GoneReason) -> LostReason {
        match why {
            GoneReason::NotThere => LostReason::NotThere,
            GoneReason::Evicted => LostReason::Evicted,
            GoneReason::Cancelled => LostReason::Buried,
        }
    }
}

impl From<LostReason> for GoneReason {
    fn from(why: LostReason) -> GoneReason {
        match why {
            LostReason::NotThere => GoneReason::NotThere,
            LostReason::Evicted => GoneReason::Evicted,
            LostReason::Buried => GoneReason::Cancelled,
        }
    }
}

/// A problem document. Fields that say nothing are left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Problem {
    /// `urn:leasehold:` and the kind.
    #[serde(rename = "type")]
    pub urn: String,
    /// A short text, the same for each problem of the kind.
    pub title: String,
    /// The HTTP status.
    #[cfg_attr(feature = "openapi", schemars(extend("minimum" = 400, "maximum" = 599)))]
    pub status: u16,
    /// What went wrong, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The stable name of the kind: see [`ProblemKind`].
    #[cfg_attr(feature = "openapi", schemars(extend("enum" = crate::openapi::problem_kinds())))]
    pub kind: String,
    /// Whether the request may have changed something: `none` or `unknown`.
    #[cfg_attr(feature = "openapi", schemars(extend("enum" = ["none", "unknown"])))]
    pub effect: String,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Which reply of the store it is, if it is one and not a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<RefusedVerdict>,
    /// The verb of the store that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verb: Option<String>,
    /// The kind of store that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The resource, as people write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The key of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The hash of the owner token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_hash: Option<String>,
    /// `lost`: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<LostReason>,
    /// `lost`, of a failed request: the stable name of the reason why the lease ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<String>,
    /// `mismatch`: the capacity that others use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// `contended`: some of the holders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holders: Option<Vec<HeldByBody>>,
    /// `contended`: the lock of another program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign: Option<ForeignLockBody>,
    /// `contended`: live claims ahead in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u32>,
    /// `contended`: an operator has paused the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// `contended`: when the pause ends, where the store says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ends_in_ms: Option<u64>,
    /// `contended`, `throttled`: how long to wait at least, unless something changes before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// `contended`: when the state changes without a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes_in_ms: Option<u64>,
    /// `contended`: where to wait from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// `contended`: how long the server waited for the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// `not_that_one`: the token of the newest grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenText>,
    /// `stale_token`: the token that was presented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presented: Option<TokenText>,
    /// `stale_token`: the highest token that was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest: Option<TokenText>,
}

impl Problem {
    /// A problem of this kind, without an effect.
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Problem {
        Problem {
            urn: format!("urn:leasehold:{}", kind.as_str()),
            title: kind.title().to_owned(),
            status: kind.status(),
            detail: Some(detail.into()),
            kind: kind.as_str().to_owned(),
            effect: Effect::None.as_str().to_owned(),
            hint: kind.hint().map(str::to_owned),
            ..Problem::default()
        }
    }

    /// Sets what to do next.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }

    /// Sets whether the request may have changed something.
    #[must_use]
    pub fn with_effect(mut self, effect: Effect) -> Problem {
        effect.as_str().clone_into(&mut self.effect);
        self
    }

    /// Names the claim that the problem is about.
    #[must_use]
    pub fn about(mut self, resource: &Resource, owner: OwnerToken) -> Problem {
        let ClaimName { resource, key, owner_hash } = ClaimName::of(resource, owner);
        (self.resource, self.key, self.owner_hash) = (Some(resource), Some(key), Some(owner_hash));
        self
    }

    /// Names the resource that the problem is about.
    #[must_use]
    pub fn on(mut self, resource: &Resource) -> Problem {
        (self.resource, self.key) = (Some(resource.to_string()), Some(resource.key().to_owned()));
        self
    }

    pub(crate) fn with_verdict(mut self, verdict: RefusedVerdict) -> Problem {
        self.verdict = Some(verdict);
        self
    }

    /// The claim is blocked and has no place: 423.
    pub(crate) fn blocked(blocked: Blocked, store: &StoreId) -> Problem {
        let (changes_in, cursor, pause_ends_in) = (blocked.changes_in, blocked.cursor, blocked.pause_ends_in);
        let mut problem =
            Problem::from(&Error::contended(blocked.into_busy())).with_verdict(RefusedVerdict::Blocked);
        problem.changes_in_ms = changes_in.map(fields::ms_up);
        problem.pause_ends_in_ms = pause_ends_in.map(fields::ms_up);
        problem.cursor = Some(fields::write_cursor(cursor, store));
        problem
    }

    /// The claim neither holds the resource nor is queued: 410.
    pub(crate) fn gone(why: GoneReason, verdict: RefusedVerdict) -> Problem {
        let detail = match why {
            GoneReason::NotThere => "it expired, was released, or never existed",
            GoneReason::Evicted => "an operator evicted it",
            GoneReason::Cancelled => "it was cancelled: this owner token is used up",
        };
        let mut problem = Problem::new(ProblemKind::Lost, detail).with_verdict(verdict);
        problem.why = Some(why.into());
        problem
    }

    /// The kind. A kind that this version does not know is `internal` or `invalid`, by its status.
    pub fn problem_kind(&self) -> ProblemKind {
        let by_status = if self.status < 500 { ProblemKind::Invalid } else { ProblemKind::Internal };
        ProblemKind::named(&self.kind).unwrap_or(by_status)
    }

    /// The effect. Anything but `none` is unknown.
    pub fn effect(&self) -> Effect {
        if self.effect == Effect::None.as_str() { Effect::None } else { Effect::Unknown }
    }

    /// Whether the problem names another claim than this one. One that names no claim is about the whole request.
    pub fn names_another(&self, claim: &ClaimRef) -> bool {
        let ClaimName { key, owner_hash, .. } = ClaimName::of(&claim.resource, claim.owner);
        let differs =
            |named: &Option<String>, ours: String| named.as_ref().is_some_and(|named| *named != ours);
        differs(&self.key, key) || differs(&self.owner_hash, owner_hash)
    }

    pub(crate) fn blocked_facts(&self) -> Blocked {
        let busy = self.busy();
        let mut blocked = Blocked::default();
        (blocked.holders, blocked.foreign) = (busy.holders, busy.foreign);
        (blocked.ahead, blocked.paused) = (busy.ahead, busy.paused);
        blocked.changes_in = self.changes_in_ms.map(Duration::from_millis);
        blocked.pause_ends_in = self.pause_ends_in_ms.map(Duration::from_millis);
        blocked.cursor = self.cursor.as_deref().map(fields::cursor_of_answer).unwrap_or_default();
        blocked
    }

    fn busy(&self) -> Busy {
        let mut busy = Busy::default();
        busy.holders = self.holders.iter().flatten().map(HeldByBody::to_core).collect();
        busy.foreign = self.foreign.as_ref().and_then(ForeignLockBody::to_core);
        busy.ahead = self.ahead.unwrap_or(0);
        busy.retry_after = self.retry_after_ms.map(Duration::from_millis);
        busy.paused = self.paused.unwrap_or(false);
        busy
    }

    /// The message of the error: the detail, and for problems that only HTTP has, what to do next.
    fn message(&self) -> String {
        let kind = self.problem_kind();
        let detail = self.detail.clone().unwrap_or_else(|| self.title.clone());
        let of_library = ProblemKind::of(kind.error_kind()) == kind;
        match &self.hint {
            Some(hint) if !of_library => format!("{detail}: {hint}"),
            _ => detail,
        }
    }
}

impl From<&Error> for Problem {
    /// The document for an error of the store.
    ///
    /// A store that refuses the credentials of the server is not the caller's fault: `unavailable`, not `denied`.
    fn from(error: &Error) -> Problem {
        let (kind, detail) = match error.kind() {
            ErrorKind::Denied => {
                let detail = format!("the store refused the server: {}", error.message());
                (ProblemKind::Unavailable, detail)
            }
            kind => (ProblemKind::of(kind), error.message().to_owned()),
        };
        let mut problem = Problem::new(kind, detail).with_effect(error.effect());
        problem.verb = error.verb().map(|verb| verb.as_str().to_owned());
        problem.backend = error.backend().map(str::to_owned);
        if let Some(resource) = error.resource() {
            problem = problem.on(resource);
        }
        problem.ending = error.ending().map(|reason| reason.as_str().to_owned());
        problem.capacity = error.capacity();
        if let Some((presented, highest)) = error.stale_token() {
            (problem.presented, problem.highest) = (Some(TokenText(presented)), Some(TokenText(highest)));
        }
        if let Some(busy) = error.busy() {
            problem.holders = Some(busy.holders.iter().map(HeldByBody::from).collect());
            problem.foreign = busy.foreign.as_ref().map(ForeignLockBody::from);
            (problem.ahead, problem.paused) = (Some(busy.ahead), Some(busy.paused));
            problem.retry_after_ms = busy.retry_after.map(fields::ms_up);
        }
        problem
    }
}

impl From<&Problem> for Error {
    /// The error that the document stands for.
    fn from(problem: &Problem) -> Error {
        let kind = problem.problem_kind().error_kind();
        let mut error = match (kind, problem.presented.zip(problem.highest), problem.capacity) {
            (ErrorKind::Contended, ..) => Error::contended(problem.busy()),
            (ErrorKind::StaleToken, Some((presented, highest)), _) => Error::stale(presented.0, highest.0),
            (ErrorKind::Mismatch, _, Some(capacity)) => {
                Error::mismatch(capacity, capacity).with_message(problem.message())
            }
            _ => Error::new(kind, problem.message()),
        };
        if let Some(reason) = problem.ending.as_deref().and_then(end_reason) {
            error = error.with_ending(reason);
        }
        if let (Some(verb), Some(backend)) = (problem.verb.as_deref().and_then(verb), &problem.backend) {
            error = error.at(verb, fields::backend_name(backend));
        }
        if let Some(resource) = problem.key.as_deref().and_then(|key| Resource::from_key(key).ok()) {
            error = error.on(&resource);
        }
        error.with_effect(problem.effect())
    }
}

fn end_reason(name: &str) -> Option<EndReason> {
    use EndReason::{Detached, Evicted, Expired, MaxHold, NoProgress, NotOurs, Released};
    let all = [Released, Detached, Expired, NotOurs, Evicted, MaxHold, NoProgress];
    all.into_iter().find(|reason| reason.as_str() == name)
}

fn verb(name: &str) -> Option<Verb> {
    let all = [Verb::Acquire, Verb::Renew, Verb::Release, Verb::Wait, Verb::Inspect, Verb::Order];
    all.into_iter().find(|verb| verb.as_str() == name)
}

//! Errors: what went wrong, and whether the request may have had an effect.

use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc, time::Duration};

use crate::{
    event::EndReason,
    resource::Resource,
    token::FencingToken,
    verdict::{ForeignLock, HeldBy},
};

/// The result of everything in leasehold.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of leasehold: its kind, whether the request may have taken effect, and where it happened.
///
/// Cloning is cheap, because one failure of a backend may be the result of many waiters. No text of an error contains a
/// password or a whole owner token.
///
/// ```
/// use leasehold_core::{Effect, Error, ErrorKind};
///
/// let error = Error::new(ErrorKind::Unavailable, "the server did not answer").with_effect(Effect::Unknown);
/// assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
/// assert!(error.is_retryable());
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    effect: Effect,
    message: Cow<'static, str>,
    verb: Option<Verb>,
    backend: Option<&'static str>,
    resource: Option<Resource>,
    detail: Detail,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// Numbers and names that some kinds carry for programs to read.
#[derive(Clone)]
enum Detail {
    None,
    Busy(Box<Busy>),
    Capacity(u32),
    Stale { presented: FencingToken, highest: FencingToken },
    Ended(EndReason),
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another claim holds the resource, and the time or the attempts ran out. See [`Error::busy`].
    Contended,
    /// The lease is lost: this client can no longer guarantee that it holds it. See [`Error::ending`].
    Lost,
    /// The request is not valid: a bad name, a ttl out of bounds, more permits than there are.
    Invalid,
    /// Other claims use this resource with another capacity. See [`Error::capacity`].
    Mismatch,
    /// This backend cannot do that. The message says why, and which backend can.
    Unsupported,
    /// The request is for correctness, and the guarantee of this backend is too weak for that.
    GuaranteeTooWeak,
    /// The backend did not reply, or replied that it cannot serve requests now.
    Unavailable,
    /// The backend refused the credentials, this user lacks a permission, or the certificate of the backend is not accepted.
    Denied,
    /// The backend contains a value that leasehold cannot read, or a last token above which there is none. The message names the
    /// key.
    Corrupt,
    /// A fence has seen a higher token than the one that was presented. See [`Error::stale_token`].
    StaleToken,
    /// The client was shut down, or its runtime has stopped.
    ShutDown,
    /// A stated limit was reached: queue, note, batch.
    Limit,
}

impl ErrorKind {
    /// A stable name, for programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Contended => "contended",
            ErrorKind::Lost => "lost",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Mismatch => "mismatch",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::GuaranteeTooWeak => "guarantee_too_weak",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Denied => "denied",
            ErrorKind::Corrupt => "corrupt",
            ErrorKind::StaleToken => "stale_token",
            ErrorKind::ShutDown => "shut_down",
            ErrorKind::Limit => "limit",
        }
    }
}

/// Whether a failed request may have changed anything at the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Effect {
    /// It changed nothing, and will not.
    None,
    /// It may have changed something, or may do so later: the reply did not arrive.
    Unknown,
}

impl Effect {
    /// A stable name, for programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Effect::None => "none",
            Effect::Unknown => "unknown",
        }
    }
}

/// The verb of the [`Backend`](crate::Backend) that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// `acquire`
    Acquire,
    /// `renew`
    Renew,
    /// `release`
    Release,
    /// `wait`
    Wait,
    /// `inspect`
    Inspect,
    /// `order`
    Order,
}

impl Verb {
    /// A stable name, for programs and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verb::Acquire => "acquire",
            Verb::Renew => "renew",
            Verb::Release => "release",
            Verb::Wait => "wait",
            Verb::Inspect => "inspect",
            Verb::Order => "order",
        }
    }
}

/// Why a resource is busy: its holders, and when to try again.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Busy {
    /// Some of the holders, the one that expires soonest first.
    pub holders: Vec<HeldBy>,
    /// The lock of another program that holds the resource, if there is one.
    pub foreign: Option<ForeignLock>,
    /// How many claims are ahead in the queue.
    pub ahead: u32,
    /// How long the resource is taken at most, unless it is renewed: the time until the first of the holders expires, or until
    /// the next change of a resource that is paused or that nobody holds.
    pub retry_after: Option<Duration>,
    /// An operator has paused the resource.
    pub paused: bool,
}

impl Error {
    /// An error without an effect.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Error {
        Error(Arc::new(Inner {
            kind,
            effect: Effect::None,
            message: message.into(),
            verb: None,
            backend: None,
            resource: None,
            detail: Detail::None,
            source: None,
        }))
    }

    /// Another claim holds the resource.
    pub fn contended(busy: Busy) -> Error {
        let mut message = match (busy.holders.first(), &busy.foreign) {
            _ if busy.paused => "an operator has paused it".to_owned(),
            (Some(by), _) => format!("held by {} for {} more", by.holder, seconds(by.remaining)),
            (None, Some(lock)) => {
                let until = match lock.remaining {
                    Some(left) => format!("for {} more", seconds(left)),
                    None => "without an expiry".to_owned(),
                };
                format!("held by a lock of another program (key {}) {until}", lock.key)
            }
            (None, None) => "another claim holds it".to_owned(),
        };
        if busy.ahead > 0 {
            message.push_str(&format!(", {} ahead in the queue", busy.ahead));
        }
        Error::new(ErrorKind::Contended, message).with(|inner| inner.detail = Detail::Busy(Box::new(busy)))
    }

    /// Other claims use the resource with another capacity.
    pub fn mismatch(theirs: u32, ours: u32) -> Error {
        let name = |capacity| match capacity {
            1 => "an exclusive lease".to_owned(),
            u32::MAX => "a read-write lock".to_owned(),
            n => format!("a semaphore of {n}"),
        };
        let message = format!(
            "others use it as {}, this claim as {}: agree on one, or let an operator resize it",
            name(theirs),
            name(ours)
        );
        Error::new(ErrorKind::Mismatch, message).with(|inner| inner.detail = Detail::Capacity(theirs))
    }

    /// A token is below the highest one that a fence has seen.
    pub fn stale(presented: FencingToken, highest: FencingToken) -> Error {
        let message = format!("token {presented} is stale: {highest} has been seen");
        let detail = Detail::Stale { presented, highest };
        Error::new(ErrorKind::StaleToken, message).with(|inner| inner.detail = detail)
    }

    /// A claim's floor is more than a year ahead of the backend's clock.
    pub fn floor_too_high(floor: FencingToken) -> Error {
        let message = format!(
            "the claim's floor {floor} is more than a year ahead of the backend's clock; \
             check where the client got this token, and the clock of the server"
        );
        Error::new(ErrorKind::Invalid, message)
    }

    fn with(mut self, change: impl FnOnce(&mut Inner)) -> Error {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Sets whether the request may have had an effect.
    #[must_use]
    pub fn with_effect(self, effect: Effect) -> Error {
        self.with(|inner| inner.effect = effect)
    }

    /// Replaces the message.
    #[must_use]
    pub fn with_message(self, message: impl Into<Cow<'static, str>>) -> Error {
        self.with(|inner| inner.message = message.into())
    }

    /// Adds why the lease ended, to an error of kind `Lost`.
    #[must_use]
    pub fn with_ending(self, reason: EndReason) -> Error {
        self.with(|inner| inner.detail = Detail::Ended(reason))
    }

    /// Adds the verb and the backend that failed.
    #[must_use]
    pub fn at(self, verb: Verb, backend: &'static str) -> Error {
        self.with(|inner| (inner.verb, inner.backend) = (Some(verb), Some(backend)))
    }

    /// Adds the resource.
    #[must_use]
    pub fn on(self, resource: &Resource) -> Error {
        self.with(|inner| inner.resource = Some(resource.clone()))
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(self, source: impl StdError + Send + Sync + 'static) -> Error {
        self.with(|inner| inner.source = Some(Arc::new(source)))
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the request may have changed anything.
    pub fn effect(&self) -> Effect {
        self.0.effect
    }

    /// What went wrong, in words: without the resource, the verb and the backend, which `Display` adds.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The verb that failed, if it came from a backend.
    pub fn verb(&self) -> Option<Verb> {
        self.0.verb
    }

    /// The name of the backend that failed, if it came from one.
    pub fn backend(&self) -> Option<&'static str> {
        self.0.backend
    }

    /// The resource, if the error is about one.
    pub fn resource(&self) -> Option<&Resource> {
        self.0.resource.as_ref()
    }

    /// The holders and when to try again, for an error of kind `Contended`.
    pub fn busy(&self) -> Option<&Busy> {
        if let Detail::Busy(busy) = &self.0.detail { Some(busy) } else { None }
    }

    /// The capacity that others use, for an error of kind `Mismatch`.
    pub fn capacity(&self) -> Option<u32> {
        if let Detail::Capacity(capacity) = self.0.detail { Some(capacity) } else { None }
    }

    /// The token that was presented and the highest one seen, for an error of kind `StaleToken`.
    pub fn stale_token(&self) -> Option<(FencingToken, FencingToken)> {
        if let Detail::Stale { presented, highest } = self.0.detail {
            Some((presented, highest))
        } else {
            None
        }
    }

    /// Why the lease ended, for an error of kind `Lost`, where that is known.
    ///
    /// A program can tell by it what to do next: [`Evicted`](EndReason::Evicted) means that an operator wants it to stop,
    /// [`Expired`](EndReason::Expired) that it may try again.
    pub fn ending(&self) -> Option<EndReason> {
        if let Detail::Ended(reason) = self.0.detail { Some(reason) } else { None }
    }

    /// Whether the same request may succeed later: the backend was unavailable, or another claim held the resource.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind(), ErrorKind::Unavailable | ErrorKind::Contended)
    }
}

/// A duration as people say it: `3s`, `1.5s`, `20ms`.
fn seconds(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        return format!("{}ms", duration.as_millis());
    }
    let tenths = duration.as_millis() / 100;
    if tenths.is_multiple_of(10) {
        format!("{}s", tenths / 10)
    } else {
        format!("{}.{}s", tenths / 10, tenths % 10)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        if let Some(resource) = &inner.resource {
            write!(f, "{resource}: ")?;
        }
        f.write_str(&inner.message)?;
        if let (Some(verb), Some(backend)) = (inner.verb, inner.backend) {
            write!(f, " ({backend} {})", verb.as_str())?;
        }
        Ok(())
    }
}
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, effect {:?}: {self}", self.0.kind, self.0.effect)?;
        self.0.source.as_ref().map_or(Ok(()), |source| write!(f, ": {source}"))
    }
}
impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

//! A request for a lease: one owned type for every primitive.

use std::{future::Future, marker::PhantomData, sync::Arc, time::Duration};

use leasehold_core::{
    Busy, Claim, Error, ErrorKind, FencingToken, Holder, OwnerToken, Resource, Result, Share,
};
use leasehold_support::race::{Either, first};

use crate::{
    advice::{self, Purpose},
    client::{Client, TokenKind},
    engine::{Ask, Outcome, Patience, Terms},
    lease::{Lease, LeaseView},
    primitives::{Reentry, Scope},
};

/// A request for a lease. Owned: it may be stored, moved into a task, put in an array with others.
///
/// A bad name or setting is reported by `acquire`, like every other error.
#[must_use = "a request does nothing until `.acquire()`, `.try_acquire()` or `.run(…)`"]
#[derive(Clone, Debug)]
pub struct LeaseRequest<T = FencingToken> {
    client: Client,
    resource: Result<Resource>,
    share: Share,
    ttl: Duration,
    patience: Patience,
    fair: bool,
    note: Option<Arc<[u8]>>,
    label: Option<String>,
    purpose: Purpose,
    fenced: bool,
    terms: Terms,
    scope: Option<Scope>,
    kind: PhantomData<fn() -> T>,
}

/// The answer to a single [attempt](LeaseRequest::attempt).
#[derive(Debug)]
pub enum Attempt<T = FencingToken> {
    /// Yes.
    Granted(Lease<T>),
    /// Not now: who is in the way, and when to try again.
    Busy(Busy),
}

impl LeaseRequest {
    pub(crate) fn exclusive(client: &Client, resource: Result<Resource>) -> LeaseRequest {
        LeaseRequest::of(client, resource, Ok(Share::WHOLE))
    }
}

impl<T: TokenKind> LeaseRequest<T> {
    /// The shortest ttl.
    pub const TTL_MIN: Duration = Duration::from_millis(300);
    /// The longest ttl.
    pub const TTL_MAX: Duration = Duration::from_secs(24 * 3600);
    /// The ttl unless told otherwise.
    pub const TTL: Duration = Duration::from_secs(30);
    /// How long `acquire` waits unless told otherwise.
    pub const WAIT: Duration = Duration::from_secs(10);

    pub(crate) fn of(client: &Client, resource: Result<Resource>, share: Result<Share>) -> LeaseRequest<T> {
        let (resource, share) = match (resource, share) {
            (Ok(resource), Ok(share)) => (Ok(resource), share),
            (Err(error), _) | (_, Err(error)) => (Err(error), Share::WHOLE),
        };
        LeaseRequest {
            client: client.clone(),
            resource,
            share,
            ttl: Self::TTL,
            patience: Patience::AtMost(Self::WAIT),
            fair: false,
            note: None,
            label: None,
            purpose: Purpose::Efficiency,
            fenced: false,
            terms: Terms::default(),
            scope: None,
            kind: PhantomData,
        }
    }

    /// How long the lease lasts unless renewed, which happens by itself at a third of it. Default 30 s; 300 ms to
    /// 24 h. A crashed holder is in the way for this long.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long `acquire` waits if someone else holds it. Default 10 s.
    pub fn wait(mut self, at_most: Duration) -> Self {
        self.patience = Patience::AtMost(at_most);
        self
    }

    /// Waits as long as it takes. Default: [`LeaseRequest::wait`] of 10 s.
    pub fn wait_forever(mut self) -> Self {
        self.patience = Patience::Forever;
        self
    }

    /// Asks this often, with pauses that grow from 50 ms to 2 s, and without a place in line. At least once.
    pub fn attempts(mut self, most: u32) -> Self {
        self.patience = Patience::Attempts(most.max(1));
        self
    }

    /// Strict arrival order across processes. Without it, waiters of one client take short turns among themselves
    /// (at most 16 while others wait), which is faster.
    pub fn fair(mut self) -> Self {
        self.fair = true;
        self
    }

    /// Whether it is renewed by itself. Default true. If not, the holder is told to stop when a sixth of the ttl is
    /// left.
    pub fn renew(mut self, renew: bool) -> Self {
        self.terms.fixed = !renew;
        self
    }

    /// The longest time to hold it, however well renewals go. Default: none. The holder is told, and the lease is
    /// not renewed any more.
    pub fn max_hold(mut self, at_most: Duration) -> Self {
        self.terms.max_hold = Some(at_most);
        self
    }

    /// Renews only while the work makes progress: it must call [`LeaseView::progress`] at least this often. Default:
    /// none. For work that may hang while its process is fine.
    pub fn progress_within(mut self, at_most: Duration) -> Self {
        self.terms.progress_within = Some(at_most);
        self
    }

    /// After a release, stays closed until this much time has passed since the grant. Default: none. For work that
    /// must not be done again too soon.
    pub fn at_least(mut self, duration: Duration) -> Self {
        self.terms.at_least = Some(duration);
        self
    }

    /// A few bytes that others can read. Default: none.
    pub fn note(mut self, note: impl AsRef<[u8]>) -> Self {
        self.note = Some(note.as_ref().into());
        self
    }

    /// What for, in your words, for people who look at who holds it. Default: the client's label.
    pub fn label(mut self, label: &str) -> Self {
        self.label = Some(label.to_owned());
        self
    }

    /// What the lease is for. Default: [`Purpose::Efficiency`].
    pub fn purpose(mut self, purpose: Purpose) -> Self {
        self.purpose = purpose;
        self
    }

    /// States that the effect checks the fencing token, so that a weak backend cannot make it wrong.
    pub fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// The id must not be seen: it is hashed with the client's secret before it reaches a key, a log or a label.
    pub fn sensitive(mut self) -> Self {
        self.resource = self.resource.and_then(|resource| self.client.hashed(&resource));
        self
    }

    /// Re-enters if this scope holds it already: counted in the process, no round trip, the same token.
    pub fn within(mut self, scope: &Scope) -> Self {
        self.scope = Some(scope.clone());
        self
    }

    /// The resource that is asked for.
    ///
    /// # Errors
    /// `Invalid` if its name was bad.
    pub fn resource(&self) -> Result<&Resource> {
        self.resource.as_ref().map_err(Clone::clone)
    }

    /// Acquires the lease, waiting if someone else holds it.
    ///
    /// One round trip when it is free. While it waits, it has a place in line and is woken when its turn comes.
    ///
    /// # Guarantees
    /// Nobody else holds it until the lease ends, as far as the backend's promise goes ([`Client::info`]). The token
    /// is above that of every earlier grant.
    ///
    /// # Fairness
    /// In order of arrival, but waiters of one client share a place; see [`LeaseRequest::fair`].
    ///
    /// # Cancel safety
    /// Dropped at any point, nothing stays held, and the place in line goes to the next waiter of this client.
    ///
    /// # Errors
    /// `Contended` if the wait ran out, saying who holds it; `Invalid`, `Mismatch`, `Unsupported`,
    /// `GuaranteeTooWeak` for what cannot be; `Unavailable` if the backend does not answer for 10 s (less if the
    /// wait is shorter); `ShutDown`.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use std::time::Duration;
    ///
    /// let leases = leasehold::connect("memory:").await?;
    /// let lease = leases.lease("report", "42").ttl(Duration::from_secs(30)).acquire().await?;
    /// println!("holding {} with {:?}", lease.resource(), lease.token());
    /// lease.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn acquire(mut self) -> Result<Lease<T>> {
        match self.seek().await? {
            Attempt::Granted(lease) => Ok(lease),
            Attempt::Busy(busy) => Err(Error::contended(busy).on(self.resource()?)),
        }
    }

    /// Acquires the lease if it is free now; `None` if someone else holds it or waits for it.
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    /// As [`LeaseRequest::acquire`].
    ///
    /// # Errors
    /// As [`LeaseRequest::acquire`], but never `Contended`.
    pub async fn try_acquire(self) -> Result<Option<Lease<T>>> {
        match self.attempt().await? {
            Attempt::Granted(lease) => Ok(Some(lease)),
            Attempt::Busy(_) => Ok(None),
        }
    }

    /// Like [`LeaseRequest::try_acquire`], and says who is in the way.
    ///
    /// # Cancel safety
    /// As [`LeaseRequest::acquire`].
    ///
    /// # Errors
    /// As [`LeaseRequest::try_acquire`].
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::Attempt;
    ///
    /// let leases = leasehold::connect("memory:").await?;
    /// let _held = leases.lease("report", "42").label("nightly").acquire().await?;
    /// match leases.lease("report", "42").attempt().await? {
    ///     Attempt::Granted(lease) => lease.release().await.map(drop)?,
    ///     Attempt::Busy(busy) => assert_eq!(busy.holders[0].holder.label, "nightly"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn attempt(mut self) -> Result<Attempt<T>> {
        self.patience = Patience::Attempts(1);
        self.seek().await
    }

    /// Acquires, works and releases: the form that most programs want.
    ///
    /// The work is dropped at its next await point when the lease is lost. A release that fails is repeated in the
    /// background: the work is done, so its output is returned.
    ///
    /// # Cancel safety
    /// The work is dropped and the lease is released.
    ///
    /// # Errors
    /// As [`LeaseRequest::acquire`]; `Lost` if the lease was lost before the work was done.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let leases = leasehold::connect("memory:").await?;
    /// let pages = leases.lease("report", "43").run(async |lease| lease.token().get() * 2).await?;
    /// # assert!(pages > 0);
    /// # Ok(()) }
    /// ```
    pub async fn run<F, W>(self, work: F) -> Result<W::Output>
    where
        F: FnOnce(LeaseView<T>) -> W,
        W: Future,
    {
        let lease = self.acquire().await?;
        let output = lease.hold(work(lease.view())).await?;
        drop(lease.release().await); // reported as an event, and repeated
        Ok(output)
    }

    async fn seek(&mut self) -> Result<Attempt<T>> {
        let resource = self.resource.clone()?;
        self.check(&resource).map_err(|error| error.on(&resource))?;
        if let Patience::AtMost(Duration::ZERO) = self.patience {
            self.patience = Patience::Attempts(1);
        }
        match self.scope.take() {
            None => self.seek_anew(&resource).await,
            Some(scope) => Box::pin(self.seek_within(scope, &resource)).await,
        }
    }

    async fn seek_within(&mut self, scope: Scope, resource: &Resource) -> Result<Attempt<T>> {
        let entering = scope.enter(resource, self.share);
        // Another task of the scope may just be acquiring: an attempt does not wait for that.
        let limit = match self.patience {
            Patience::Attempts(_) => Duration::ZERO,
            Patience::AtMost(at_most) => at_most,
            Patience::Forever => Duration::MAX,
        };
        let reentry = match limit {
            Duration::ZERO => first(entering, std::future::ready(())).await,
            Duration::MAX => Either::Left(entering.await),
            limit => first(entering, self.client.engine.environment.sleep(limit)).await,
        };
        let Either::Left(reentry) = reentry else { return Ok(Attempt::Busy(Busy::default())) };
        match reentry? {
            Reentry::Again(handle) => Ok(Attempt::Granted(Lease::new(handle))),
            Reentry::First(mut seat) => {
                let attempt = self.seek_anew(resource).await?;
                if let Attempt::Granted(lease) = &attempt {
                    seat.remember(lease.tenure());
                }
                Ok(attempt)
            }
        }
    }

    async fn seek_anew(&mut self, resource: &Resource) -> Result<Attempt<T>> {
        let engine = &self.client.engine;
        let holder = match &self.label {
            None => Arc::clone(&engine.holder),
            Some(label) => Arc::new(Holder::new(&engine.holder.host, engine.holder.pid, label)),
        };
        let owner = OwnerToken::fresh(&*engine.environment);
        // Where a session keeps what it holds, nobody can vouch for longer than the session lasts.
        let ttl = self.ttl.min(engine.backend.info().limits.ttl);
        let mut claim = Claim::new(resource.clone(), owner, self.share, ttl, holder);
        claim.note = self.note.take();
        let terms = std::mem::take(&mut self.terms);
        let ask = Ask { claim, terms, patience: self.patience, fair: self.fair };
        let outcome = engine.acquire(ask).await.map_err(|error| error.on(resource))?;
        Ok(match outcome {
            Outcome::Granted(handle) => Attempt::Granted(Lease::new(handle)),
            Outcome::Busy(busy) => Attempt::Busy(busy),
        })
    }

    fn check(&self, resource: &Resource) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        let unsupported = |what: &str| {
            let message = format!("{} has no {what}", self.client.info().name);
            Err(Error::new(ErrorKind::Unsupported, message))
        };
        if self.ttl < Self::TTL_MIN || self.ttl > Self::TTL_MAX {
            return invalid(format!("a ttl is 300 ms to 24 h, this one is {:?}", self.ttl));
        }
        if self.ttl > advice::LONG {
            tracing::warn!(
                target: "leasehold",
                kind = resource.kind(),
                ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX),
                "a lease this long blocks everyone if its holder dies: consider a durable job instead"
            );
        }
        let zero = |duration: Option<Duration>| duration.is_some_and(|duration| duration.is_zero());
        if zero(self.terms.max_hold) || zero(self.terms.progress_within) {
            return invalid("max_hold and progress_within are longer than nothing".to_owned());
        }
        let can = &self.client.info().capabilities;
        if self.share != Share::WHOLE && !can.shares {
            return unsupported("semaphores and read-write locks");
        }
        if self.fair && !can.queue {
            return unsupported("line, so it cannot be fair");
        }
        if self.terms.at_least.is_some() && !can.keep_for {
            return unsupported("way to stay closed after a release");
        }
        let (most, note) = (self.client.info().limits.note, self.note.as_ref().map_or(0, |note| note.len()));
        if note > most {
            let message = format!("a note has at most {most} bytes here, this one has {note}");
            return Err(Error::new(ErrorKind::Limit, message));
        }
        self.check_purpose()
    }

    fn check_purpose(&self) -> Result<()> {
        let info = self.client.info();
        let least = self.purpose.least();
        if info.guarantee >= least || self.fenced {
            return Ok(());
        }
        let message = format!(
            "{} promises {} ({}), too little for work that must be right: use {}, or check the fencing token where \
             the effect happens and say .fenced()",
            info.name,
            info.guarantee,
            info.because,
            advice::backends(least)
        );
        Err(Error::new(ErrorKind::GuaranteeTooWeak, message))
    }

    pub(crate) fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    pub(crate) fn with_kind<U: TokenKind>(self) -> LeaseRequest<U> {
        let LeaseRequest {
            client,
            resource,
            share,
            ttl,
            patience,
            fair,
            note,
            label,
            purpose,
            fenced,
            terms,
            scope,
            ..
        } = self;
        let kind = PhantomData;
        LeaseRequest {
            client,
            resource,
            share,
            ttl,
            patience,
            fair,
            note,
            label,
            purpose,
            fenced,
            terms,
            scope,
            kind,
        }
    }
}

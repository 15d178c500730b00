//! [`LeaseRequest`]: the one type of request, for every primitive.

mod check;

use std::{future::Future, marker::PhantomData, sync::Arc, time::Duration};

use leasehold_core::{Busy, Claim, Error, FencingToken, Holder, OwnerToken, Resource, Result, Share};
use leasehold_support::race::{Either, first};

use crate::{
    advice::Purpose,
    client::{Client, TokenKind},
    engine::{AcquireOutcome, AcquireRequest, LeaseOptions, WaitLimit},
    lease::{Lease, LeaseView},
    primitives::{Scope, ScopeEntry},
};

/// A request for a lease. It borrows nothing: it can be stored, moved into a task, or put into an array with others.
///
/// An invalid name or setting is reported by `acquire`, like every other error.
#[must_use = "a request does nothing until `.acquire()`, `.try_acquire()` or `.run(…)`"]
#[derive(Clone, Debug)]
pub struct LeaseRequest<T = FencingToken> {
    client: Client,
    resource: Result<Resource>,
    share: Share,
    ttl: Duration,
    wait_limit: WaitLimit,
    fair: bool,
    note: Option<Arc<[u8]>>,
    label: Option<String>,
    purpose: Purpose,
    fenced: bool,
    options: LeaseOptions,
    scope: Option<Scope>,
    kind: PhantomData<fn() -> T>,
}

/// The outcome of a single [attempt](LeaseRequest::attempt).
#[derive(Debug)]
#[non_exhaustive]
pub enum Attempt<T = FencingToken> {
    /// The lease was free.
    Granted(Lease<T>),
    /// It was not free: who holds it, and when to try again.
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
    /// The default ttl.
    pub const TTL: Duration = Duration::from_secs(30);
    /// How long `acquire` waits by default.
    pub const WAIT: Duration = Duration::from_secs(10);

    pub(crate) fn of(client: &Client, resource: Result<Resource>, share: Result<Share>) -> LeaseRequest<T> {
        // A builder returns no error: `acquire` reports the first one.
        let (resource, share) = match (resource, share) {
            (Ok(resource), Ok(share)) => (Ok(resource), share),
            (Err(error), _) | (_, Err(error)) => (Err(error), Share::WHOLE),
        };
        LeaseRequest {
            client: client.clone(),
            resource,
            share,
            ttl: Self::TTL,
            wait_limit: WaitLimit::AtMost(Self::WAIT),
            fair: false,
            note: None,
            label: None,
            purpose: Purpose::Efficiency,
            fenced: false,
            options: LeaseOptions::default(),
            scope: None,
            kind: PhantomData,
        }
    }

    /// How long the lease lasts without a renewal. Default 30 s; from 300 ms to 24 h.
    ///
    /// It is renewed automatically after a third of this time. A holder that crashed blocks others for this long.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long `acquire` waits if the lease is not free. Default 10 s.
    pub fn wait(mut self, at_most: Duration) -> Self {
        self.wait_limit = WaitLimit::AtMost(at_most);
        self
    }

    /// Waits without a limit. Default: [`LeaseRequest::wait`] of 10 s.
    pub fn wait_forever(mut self) -> Self {
        self.wait_limit = WaitLimit::Forever;
        self
    }

    /// Asks this many times, at least once, without a place in the queue. The pauses grow from 50 ms to 2 s.
    pub fn attempts(mut self, most: u32) -> Self {
        self.wait_limit = WaitLimit::Attempts(most.max(1));
        self
    }

    /// Grants in strict arrival order across processes, among the waiters that answer within a second. Default: waiters of one client hand the lease over among
    /// themselves, at most 16 times while other clients wait, which is faster.
    pub fn fair(mut self) -> Self {
        self.fair = true;
        self
    }

    /// Whether it is renewed automatically. Default true. Without renewals, the lease is over when a sixth of the ttl is
    /// left.
    pub fn renew(mut self, renew: bool) -> Self {
        self.options.fixed = !renew;
        self
    }

    /// The longest time to hold it, even if renewals succeed. Default: no limit; must be greater than 0.
    pub fn max_hold(mut self, at_most: Duration) -> Self {
        self.options.max_hold = Some(at_most);
        self
    }

    /// Renews only while the work makes progress: the work must call [`LeaseView::progress`] at least this often. Default:
    /// no limit; must be greater than 0. For work that can hang while its process runs on.
    pub fn progress_within(mut self, at_most: Duration) -> Self {
        self.options.progress_within = Some(at_most);
        self
    }

    /// After a release, the resource stays closed until this much time has passed since the grant. Default: it is free at
    /// once. For work that must not be done again too soon.
    pub fn at_least(mut self, duration: Duration) -> Self {
        self.options.at_least = Some(duration);
        self
    }

    /// A few bytes that other clients can read while the lease is held. Default: none.
    pub fn note(mut self, note: impl AsRef<[u8]>) -> Self {
        self.note = Some(note.as_ref().into());
        self
    }

    /// A text for people who look up the holder: what the lease is for. Default: the client's label.
    pub fn label(mut self, label: &str) -> Self {
        self.label = Some(label.to_owned());
        self
    }

    /// Whether the lease saves work or protects correctness. Default: [`Purpose::Efficiency`].
    pub fn purpose(mut self, purpose: Purpose) -> Self {
        self.purpose = purpose;
        self
    }

    /// States that the place of the effect checks the fencing token. Then [`Purpose::Correctness`] accepts a backend with
    /// any guarantee. Default: not fenced.
    pub fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// Hashes the id with the client's secret before it is used in a key, a log or a label. Default: the id is used as it
    /// is.
    pub fn sensitive(mut self) -> Self {
        self.resource = self.resource.and_then(|resource| self.client.hashed(&resource));
        self
    }

    /// Enters the lease again if this scope holds it: counted in the process, no round trip, the same token. Default: no
    /// scope.
    pub fn within(mut self, scope: &Scope) -> Self {
        self.scope = Some(scope.clone());
        self
    }

    /// The resource.
    ///
    /// # Errors
    /// `Invalid` if its name is invalid.
    pub fn resource(&self) -> Result<&Resource> {
        self.resource.as_ref().map_err(Clone::clone)
    }

    /// Acquires the lease, and waits if it is not free.
    ///
    /// One round trip when it is free. While it waits, it has a place in the queue and is woken when it can be granted.
    ///
    /// # Guarantees
    /// No other claim is granted until the lease ends, as far as the backend guarantees it ([`Client::info`]). The token
    /// is greater than that of every earlier grant.
    ///
    /// # Fairness
    /// In order of arrival, but waiters of one client share one place; see [`LeaseRequest::fair`].
    ///
    /// # Cancel safety
    /// If it is dropped at any point, nothing stays held. Its place in the queue goes to the next waiter of this client.
    ///
    /// # Errors
    /// `Contended`, with the holders, if the wait limit is used up; `Invalid`, `Mismatch`, `Unsupported` or
    /// `GuaranteeTooWeak` if the request cannot be granted at all; `Unavailable` if the backend does not answer for 10 s
    /// (or for the wait limit, if that is shorter); `ShutDown` after [`Client::shutdown`].
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use std::time::Duration;
    ///
    /// let leases = leasehold::connect("memory:").await?;
    /// let lease = leases.lease("report", "42").ttl(Duration::from_secs(30)).acquire().await?;
    /// lease.run(async |lease| println!("holding {} with {:?}", lease.resource(), lease.token())).await?;
    /// # Ok(()) }
    /// ```
    pub async fn acquire(mut self) -> Result<Lease<T>> {
        match self.acquire_or_busy().await? {
            Attempt::Granted(lease) => Ok(lease),
            Attempt::Busy(busy) => Err(Error::contended(busy).on(self.resource()?)),
        }
    }

    /// Acquires the lease if it is free now; `None` if another claim holds it or waits for it.
    ///
    /// One round trip.
    ///
    /// # Guarantees
    /// As [`LeaseRequest::acquire`].
    ///
    /// # Fairness
    /// It does not overtake claims that wait, and has no place in the queue itself.
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

    /// Acquires the lease if it is free now, like [`LeaseRequest::try_acquire`]; otherwise says who holds it.
    ///
    /// One round trip.
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
    ///     Attempt::Granted(lease) => lease.run(async |_| println!("exporting")).await?,
    ///     Attempt::Busy(busy) => {
    ///         assert_eq!(busy.holders[0].holder.label, "nightly");
    ///         println!("held by {}, try again after {:?}", busy.holders[0].holder, busy.retry_after);
    ///     }
    ///     _ => println!("not granted"), // more outcomes may be added
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn attempt(mut self) -> Result<Attempt<T>> {
        self.wait_limit = WaitLimit::Attempts(1);
        self.acquire_or_busy().await
    }

    /// Acquires the lease, runs the work, and releases the lease: the form that most programs need.
    ///
    /// When the lease is lost, the work is dropped at its next await point. If the release fails, the output of the work
    /// is returned all the same, and the release is repeated in the background: an error would say that the work has
    /// failed, and it has not.
    ///
    /// # Guarantees
    /// As [`LeaseRequest::acquire`] and [`LeaseView::hold`].
    ///
    /// # Fairness
    /// As [`LeaseRequest::acquire`].
    ///
    /// # Cancel safety
    /// If it is dropped, the work is dropped and the lease is released in the background.
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
        self.acquire().await?.run(work).await
    }

    /// Checks the request, and acquires the lease through the scope if there is one.
    pub(crate) async fn acquire_or_busy(&mut self) -> Result<Attempt<T>> {
        let resource = self.resource.clone()?;
        self.check(&resource).map_err(|error| error.on(&resource))?;
        // Without time to wait, a place in the queue would be of no use, and would delay others.
        if let WaitLimit::AtMost(Duration::ZERO) = self.wait_limit {
            self.wait_limit = WaitLimit::Attempts(1);
        }
        match self.scope.take() {
            None => self.acquire_new(&resource).await,
            Some(scope) => Box::pin(self.acquire_in_scope(scope, &resource)).await,
        }
    }

    /// Enters the lease again if the scope holds it; otherwise acquires it for the scope.
    async fn acquire_in_scope(&mut self, scope: Scope, resource: &Resource) -> Result<Attempt<T>> {
        let entering = scope.enter(resource, self.share);
        // Another task of the scope may be acquiring the lease right now. A single attempt does not wait for that.
        let limit = match self.wait_limit {
            WaitLimit::Attempts(_) => Duration::ZERO,
            WaitLimit::AtMost(at_most) => at_most,
            WaitLimit::Forever => Duration::MAX,
        };
        let entry = match limit {
            Duration::ZERO => first(entering, std::future::ready(())).await,
            Duration::MAX => Either::Left(entering.await),
            limit => first(entering, self.client.engine.environment.sleep(limit)).await,
        };
        let Either::Left(entry) = entry else {
            let engine = &self.client.engine;
            return engine.local_queues.busy_on(resource, engine.environment.now()).map(Attempt::Busy);
        };
        match entry? {
            ScopeEntry::Again(handle) => Ok(Attempt::Granted(Lease::new(handle))),
            ScopeEntry::First(mut slot) => {
                let attempt = self.acquire_new(resource).await?;
                if let Attempt::Granted(lease) = &attempt {
                    slot.set_lease(lease.held());
                }
                Ok(attempt)
            }
        }
    }

    /// Makes a claim with a fresh owner token, and has the engine acquire it.
    async fn acquire_new(&mut self, resource: &Resource) -> Result<Attempt<T>> {
        let engine = &self.client.engine;
        let holder = match &self.label {
            None => Arc::clone(&engine.holder),
            Some(label) => Arc::new(Holder::new(&engine.holder.host, engine.holder.pid, label)),
        };
        let owner = OwnerToken::fresh(&*engine.environment);
        // Where a session keeps a lease alive, the lease cannot be promised for longer than the session lasts.
        let ttl = self.ttl.min(engine.backend.info().limits.ttl);
        let mut claim = Claim::new(resource.clone(), owner, self.share, ttl, holder).by_client(engine.client);
        if !engine.backend.info().capabilities.passes_over {
            claim.place_ttl = Claim::short_place_ttl(ttl);
        }
        claim.note = self.note.take();
        let options = std::mem::take(&mut self.options);
        let request = AcquireRequest { claim, options, wait: self.wait_limit, fair: self.fair };
        let outcome = engine.acquire(request).await.map_err(|error| error.on(resource))?;
        Ok(match outcome {
            AcquireOutcome::Granted(handle) => Attempt::Granted(Lease::new(handle)),
            AcquireOutcome::Busy(busy) => Attempt::Busy(busy),
        })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn with_wait_limit(mut self, wait_limit: WaitLimit) -> Self {
        self.wait_limit = wait_limit;
        self
    }

    /// The same request with another kind of token, so that an [`AllRequest`](crate::AllRequest) can hold both kinds.
    pub(crate) fn with_kind<U: TokenKind>(self) -> LeaseRequest<U> {
        // All fields are named, so that a new one cannot be forgotten here.
        let LeaseRequest {
            client,
            resource,
            share,
            ttl,
            wait_limit,
            fair,
            note,
            label,
            purpose,
            fenced,
            options,
            scope,
            ..
        } = self;
        let kind = PhantomData;
        LeaseRequest {
            client,
            resource,
            share,
            ttl,
            wait_limit,
            fair,
            note,
            label,
            purpose,
            fenced,
            options,
            scope,
            kind,
        }
    }
}

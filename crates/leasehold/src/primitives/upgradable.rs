//! Read-write locks with readers that can become the writer (ADR 0060).
//!
//! There are two resources: the lock itself, and its *intent*, which one claim at a time holds.
//!
//! 1. A plain reader holds 1 of MAX of the lock.
//! 2. An upgradeable reader holds the intent, and then 1 of MAX of the lock.
//! 3. To upgrade, it asks for the rest, MAX-1 of MAX, and keeps its own share meanwhile. Readers that come later wait behind
//!    this claim. When the readers before it have left, it holds all of the lock.
//! 4. A writer holds the intent, and then MAX of MAX of the lock.
//!
//! Every claim on the lock that others have to leave for belongs to the holder of the intent. So two of them never wait for
//! each other. The lock alone decides who reads and who writes: if a lease is lost, nothing else than that lease is.

use std::{future::Future, time::Duration};

use leasehold_core::{Error, ErrorKind, FencingToken, Pass, Resource, Result, Share, ShareNumber, Timestamp};

use crate::{
    client::{Client, TokenKind},
    engine::WaitLimit,
    lease::{Lease, SharedLease},
    request::LeaseRequest,
};

/// The end of the intent's id.
const INTENT: &str = ".upgrade";

/// A read-write lock of which one reader at a time can become the writer, without letting another writer in between.
///
/// All writers must use this type: a writer of the plain [`RwLock`](crate::RwLock) that waits makes an upgrade wait behind it,
/// until one of the two gives up. Plain readers may use either type.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let leases = leasehold::connect("memory:").await?;
/// let index = leases.rwlock("index", "main").upgradable();
///
/// let reader = index.upgradable_read().acquire().await?; // next to plain readers
/// let is_outdated = true; // what it has read
/// if is_outdated {
///     let writer = reader.upgrade().await?; // waits until the plain readers have left
///     assert!(index.read().try_acquire().await?.is_none());
///     writer.hold(async { /* write, with writer.token() */ }).await?;
///     writer.downgrade().await?; // a reader again
/// }
/// assert!(index.read().try_acquire().await?.is_some());
/// drop(reader.release().await); // the work is done, whatever the release says: see `Lease::release`
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct UpgradableRwLock {
    client: Client,
    resource: Result<Resource>,
}

/// A request for an upgradeable read lease, or for the write lease, of an [`UpgradableRwLock`].
#[must_use = "a request does nothing until `.acquire()` or `.try_acquire()`"]
#[derive(Clone, Debug)]
pub struct UpgradableRequest<T = ShareNumber> {
    client: Client,
    intent: LeaseRequest,
    lock: LeaseRequest<T>,
    wait_limit: WaitLimit,
}

/// A lease of an [`UpgradableRwLock`] with its intent: upgradeable reading, or writing. Dropping it releases both.
#[must_use = "dropping a lease releases it"]
#[derive(Debug)]
pub struct UpgradableLease<T = ShareNumber> {
    client: Client,
    intent: Lease,
    lock: Lease<T>,
    wait_limit: WaitLimit,
}

/// An upgradeable read lease that has become the write lease. Dropping it makes it a reader again, in the background.
#[must_use = "dropping it makes it a reader again"]
#[derive(Debug)]
pub struct UpgradedLease<'a> {
    reader: &'a UpgradableLease,
    rest: SharedLease,
}

impl UpgradableRwLock {
    pub(super) fn new(client: &Client, resource: Result<Resource>) -> UpgradableRwLock {
        UpgradableRwLock { client: client.clone(), resource }
    }

    /// A request for a plain read lease, which other readers can hold at the same time.
    pub fn read(&self) -> LeaseRequest<ShareNumber> {
        LeaseRequest::of(&self.client, self.resource.clone(), Ok(Share::READ))
    }

    /// A request for the upgradeable read lease. Plain readers can hold theirs at the same time; another upgradeable reader,
    /// or a writer, waits.
    pub fn upgradable_read(&self) -> UpgradableRequest {
        self.request(Share::READ)
    }

    /// A request for the write lease, which is exclusive.
    pub fn write(&self) -> UpgradableRequest<FencingToken> {
        self.request(Share::WRITE)
    }

    fn request<T: TokenKind>(&self, share: Share) -> UpgradableRequest<T> {
        UpgradableRequest {
            client: self.client.clone(),
            intent: LeaseRequest::exclusive(&self.client, self.intent()),
            lock: LeaseRequest::of(&self.client, self.resource.clone(), Ok(share)),
            wait_limit: WaitLimit::AtMost(LeaseRequest::<FencingToken>::WAIT),
        }
    }

    fn intent(&self) -> Result<Resource> {
        let lock = self.resource.clone()?;
        let intent = Resource::new(lock.kind(), &format!("{}{INTENT}", lock.id()))?;
        lock.namespace().map_or(Ok(intent.clone()), |namespace| intent.in_namespace(namespace))
    }
}

impl<T: TokenKind> UpgradableRequest<T> {
    /// How long the leases last without a renewal. As [`LeaseRequest::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        (self.intent, self.lock) = (self.intent.ttl(ttl), self.lock.ttl(ttl));
        self
    }

    /// How long `acquire`, and later `upgrade`, wait. Default 10 s.
    pub fn wait(mut self, at_most: Duration) -> Self {
        self.wait_limit = WaitLimit::AtMost(at_most);
        self
    }

    /// Waits without a limit. Default: [`UpgradableRequest::wait`] of 10 s.
    pub fn wait_forever(mut self) -> Self {
        self.wait_limit = WaitLimit::Forever;
        self
    }

    /// A text for people who look up the holder. As [`LeaseRequest::label`].
    pub fn label(mut self, label: &str) -> Self {
        (self.intent, self.lock) = (self.intent.label(label), self.lock.label(label));
        self
    }

    /// Acquires the lease, and waits if it is not free.
    ///
    /// Two round trips when it is free.
    ///
    /// # Guarantees
    /// As [`LeaseRequest::acquire`]: no writer, and no other upgradeable reader, is granted until the lease ends.
    ///
    /// # Fairness
    /// Upgradeable readers and writers are granted in order of arrival, and so are readers among each other. A reader that
    /// comes after a waiting writer waits behind it, as soon as that writer is the next.
    ///
    /// # Cancel safety
    /// If it is dropped at any point, nothing stays held.
    ///
    /// # Errors
    /// As [`LeaseRequest::acquire`].
    pub async fn acquire(self) -> Result<UpgradableLease<T>> {
        let UpgradableRequest { client, intent, lock, wait_limit } = self;
        let started = client.engine.environment.now();
        let intent = intent.with_wait_limit(wait_limit).acquire().await?;
        let rest = remaining(&client, wait_limit, started);
        // An early return drops the intent, which releases it.
        let lock = lock.with_wait_limit(rest).acquire().await?;
        let lease = UpgradableLease { client, intent, lock, wait_limit };
        lease.check()?;
        Ok(lease)
    }

    /// Acquires the lease if it is free now; `None` otherwise.
    ///
    /// # Cancel safety
    /// As [`UpgradableRequest::acquire`].
    ///
    /// # Errors
    /// As [`UpgradableRequest::acquire`], but never `Contended`.
    pub async fn try_acquire(self) -> Result<Option<UpgradableLease<T>>> {
        let UpgradableRequest { client, intent, lock, wait_limit } = self;
        let Some(intent) = intent.try_acquire().await? else { return Ok(None) };
        let Some(lock) = lock.try_acquire().await? else {
            intent.release().await?;
            return Ok(None);
        };
        Ok(Some(UpgradableLease { client, intent, lock, wait_limit }))
    }
}

/// What is left of a wait that began at this time.
fn remaining(client: &Client, wait_limit: WaitLimit, started: Timestamp) -> WaitLimit {
    match wait_limit {
        WaitLimit::AtMost(at_most) => {
            let waited = started.until(client.engine.environment.now());
            WaitLimit::AtMost(at_most.saturating_sub(waited))
        }
        other => other,
    }
}

impl<T: TokenKind> UpgradableLease<T> {
    /// The resource of the lock.
    pub fn resource(&self) -> &Resource {
        self.lock.resource()
    }

    /// Checks that it holds, by the clocks at this moment.
    ///
    /// # Errors
    /// `Lost` once it is over.
    pub fn check(&self) -> Result<()> {
        self.intent.check()?;
        self.lock.check()
    }

    /// Runs the work while the lease holds. When it is lost, the work is dropped at its next await point.
    ///
    /// # Cancel safety
    /// If it is dropped, the work is dropped with it. The lease stays.
    ///
    /// # Errors
    /// `Lost` if it was over before the work was done.
    pub async fn hold<W: Future>(&self, work: W) -> Result<W::Output> {
        self.intent.hold(self.lock.hold(work)).await?
    }

    /// Releases the lease.
    ///
    /// Two round trips.
    ///
    /// # Cancel safety
    /// If it is dropped part-way, the rest is released in the background.
    ///
    /// # Errors
    /// The backend's error; the release is then repeated in the background.
    pub async fn release(self) -> Result<()> {
        let lock = self.lock.release().await;
        self.intent.release().await.and(lock).map(drop)
    }
}

impl UpgradableLease {
    /// Becomes the writer: waits until the other readers have left, for as long as the request waits at most. Readers that
    /// come meanwhile wait.
    ///
    /// One round trip when there is no other reader.
    ///
    /// # Guarantees
    /// No writer is granted between the read lease and the write lease, and what was read has not been changed by another
    /// writer: this lease is held all the time.
    ///
    /// # Cancel safety
    /// If it is dropped at any point, the read lease stays as it was.
    ///
    /// # Errors
    /// `Contended` if readers did not leave in time: the read lease still holds, and other readers are let in again. `Lost`
    /// if the read lease is over.
    pub async fn upgrade(&self) -> Result<UpgradedLease<'_>> {
        self.check()?;
        let share = Share::new(Share::WRITE.weight() - Share::READ.weight(), Share::WRITE.capacity());
        let rest = LeaseRequest::of(&self.client, Ok(self.resource().clone()), share);
        let rest = rest.ttl(self.lock.ttl()).with_wait_limit(self.wait_limit).acquire().await?;
        let upgraded = UpgradedLease { reader: self, rest };
        // It may have been lost during the wait. Then another reader may hold its share.
        upgraded.check()?;
        Ok(upgraded)
    }

    /// Gives up the right to upgrade, and stays a plain reader.
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    /// If it is dropped part-way, everything is released in the background.
    ///
    /// # Errors
    /// `Lost` if the read lease is over. If the intent cannot be released now, that is repeated in the background.
    pub async fn downgrade(self) -> Result<SharedLease> {
        drop(self.intent.release().await);
        self.lock.check()?;
        Ok(self.lock)
    }
}

impl UpgradableLease<FencingToken> {
    /// The fencing token, which grows with every writer and every upgradeable reader. It belongs to the resource of
    /// [`UpgradableLease::pass`].
    pub fn token(&self) -> FencingToken {
        self.intent.token()
    }

    /// What a fence checks. It names the intent, a resource of its own with the id of the lock and `.upgrade`, because the
    /// intent orders writers and upgraded readers.
    pub fn pass(&self) -> Pass {
        self.intent.pass()
    }

    /// Turns the write lease into the upgradeable read lease. Plain readers can be granted from then on.
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    /// If it is dropped part-way, everything is released in the background.
    ///
    /// # Errors
    /// As [`Lease::downgrade`].
    pub async fn downgrade(self) -> Result<UpgradableLease> {
        let UpgradableLease { client, intent, lock, wait_limit } = self;
        let lock = lock.downgrade().await?;
        Ok(UpgradableLease { client, intent, lock, wait_limit })
    }
}

impl UpgradedLease<'_> {
    /// The fencing token, as [`UpgradableLease::token`] of a writer. It is the same for every upgrade of one reader.
    pub fn token(&self) -> FencingToken {
        self.reader.intent.token()
    }

    /// What a fence checks, as [`UpgradableLease::pass`] of a writer.
    pub fn pass(&self) -> Pass {
        self.reader.intent.pass()
    }

    /// Checks that it holds, by the clocks at this moment.
    ///
    /// # Errors
    /// `Lost` once it is over.
    pub fn check(&self) -> Result<()> {
        self.reader.check()?;
        self.rest.check()
    }

    /// Runs the work while the lease holds. When it is lost, the work is dropped at its next await point.
    ///
    /// # Cancel safety
    /// If it is dropped, the work is dropped with it. The lease stays.
    ///
    /// # Errors
    /// `Lost` if it was over before the work was done.
    pub async fn hold<W: Future>(&self, work: W) -> Result<W::Output> {
        self.reader.hold(self.rest.hold(work)).await?
    }

    /// Becomes an upgradeable reader again. Plain readers can be granted from then on.
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    /// If it is dropped part-way, this is completed in the background.
    ///
    /// # Errors
    /// `Lost` if the write lease was over; the backend's error, and the release is then repeated in the background.
    pub async fn downgrade(self) -> Result<()> {
        let resource = self.reader.resource().clone();
        match self.rest.release().await? {
            leasehold_core::Released::Now => self.reader.check(),
            _ => Err(Error::new(ErrorKind::Lost, "the write lease was over before it was given back")
                .on(&resource)),
        }
    }
}

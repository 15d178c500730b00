//! Countdown latches and barriers, made of permits that stay taken (ADR 0060).
//!
//! A latch of n parts is a semaphore of n permits. Counting a part down takes a permit whose note is the name of the part, and
//! releases it so that it stays taken for a day (`keep_for`). The latch is open when all permits are taken that way.
//!
//! A part is counted once, however often it is repeated:
//! 1. Take a permit, with the name of the part as its note. Then look at all permits.
//! 2. If the part has a permit that is kept, it is counted already: give the new one back.
//! 3. If another claim holds a permit of the same part with a lower number, that one is first: give this one back, wait, and
//!    begin again. It may die before it has counted.
//! 4. Otherwise keep the permit. A claim that comes later sees it.

use std::time::Duration;

use leasehold_core::{
    Backoff, Cursor, Error, ErrorKind, HeldBy, OwnerToken, Query, Released, Resource, Result, Share,
    ShareNumber, Snapshot, Verb, claim::ClaimRef,
};

use crate::{
    client::Client,
    request::{Attempt, LeaseRequest},
};

/// A latch that opens when each of its parts was counted down. It survives the processes that count, and those that wait.
///
/// Every part has a name, so that a part can be counted again after a crash or an error, and counts once. A latch is for one
/// use: give each use an id of its own. A part stays counted for [`CountDownLatch::LASTS`]; after that the latch is closed
/// again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let leases = leasehold::connect("memory:").await?;
/// let imported = leases.count_down_latch("import", "2026-07", 2);
/// assert_eq!(imported.count_down("customers").await?, 1);
/// assert_eq!(imported.count_down("customers").await?, 1, "a part counts once");
/// assert_eq!(imported.count_down("orders").await?, 0);
/// imported.wait().await?; // it is open
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct CountDownLatch {
    client: Client,
    resource: Result<Resource>,
    parts: u32,
}

/// A barrier: each of its parties waits until all of them have arrived. It can be used again, in rounds.
///
/// A party that crashed and arrives again in the same round is let through.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let leases = leasehold::connect("memory:").await?;
/// let barrier = leases.barrier("simulation", "7", 2);
/// for round in 0..3 {
///     let (first, second) = tokio::join!(barrier.arrive(round, "worker-1"), barrier.arrive(round, "worker-2"));
///     first.and(second)?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Barrier {
    client: Client,
    kind: String,
    id: String,
    parties: u32,
}

/// The longest time between two looks at a latch.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);
/// How long a permit lasts that was taken and not kept, because its process died.
const PERMIT_TTL: Duration = Duration::from_secs(5);

impl CountDownLatch {
    /// How long a part stays counted.
    pub const LASTS: Duration = LeaseRequest::<ShareNumber>::TTL_MAX;
    /// The most parts of a latch: so many holders of a resource can be listed.
    pub const PARTS_MAX: u32 = 100;

    pub(crate) fn new(client: &Client, resource: Result<Resource>, parts: u32) -> CountDownLatch {
        let checked = resource.and_then(|resource| {
            if (1..=CountDownLatch::PARTS_MAX).contains(&parts) {
                return Ok(resource);
            }
            let message = format!("a latch has 1 to {} parts, not {parts}", CountDownLatch::PARTS_MAX);
            Err(Error::new(ErrorKind::Invalid, message).on(&resource))
        });
        CountDownLatch { client: client.clone(), resource: checked, parts }
    }

    /// Counts a part down, and returns how many are left. A part that was counted before is not counted again.
    ///
    /// Three round trips.
    ///
    /// # Guarantees
    /// When it returns, the part is counted, as far as the backend guarantees it ([`Client::info`]).
    ///
    /// # Cancel safety
    /// If it is dropped part-way, the part may be counted or not. Call it again.
    ///
    /// # Errors
    /// `Invalid` if all parts are counted and this is none of them; `Mismatch` if the latch is used with another number of
    /// parts; `Unsupported` if the backend has no shares or cannot keep a resource closed (Redlock, ZooKeeper). After
    /// another error the part may be counted or not: call it again.
    pub async fn count_down(&self, part: &str) -> Result<u32> {
        let resource = self.checked()?;
        loop {
            let permit = LeaseRequest::<ShareNumber>::of(
                &self.client,
                Ok(resource.clone()),
                Share::new(1, self.parts),
            );
            match permit.note(part).ttl(PERMIT_TTL).attempt().await? {
                Attempt::Granted(lease) => {
                    let seen = self.look(&resource).await?;
                    let number = lease.token().get();
                    if let Some(left) = self.left_if_counted(&seen, part) {
                        // The part is counted, so a failed release is no error. It is repeated in the background.
                        if let Err(error) = lease.release().await {
                            tracing::debug!(resource = %resource.id_hash(), %error, "cannot give a spare permit back yet");
                        }
                        return Ok(left);
                    }
                    let is_first = claims_of(&seen, part).all(|by| by.token.get() >= number);
                    if !is_first {
                        lease.release().await?;
                    } else if lease.release_keeping(CountDownLatch::LASTS).await? == Released::Now {
                        return Ok(self.left(&self.look(&resource).await?));
                    }
                    self.pause(&resource, &seen.cursor).await;
                }
                Attempt::Busy(_) => {
                    let seen = self.look(&resource).await?;
                    if let Some(left) = self.left_if_counted(&seen, part) {
                        return Ok(left);
                    }
                    if self.left(&seen) == 0 {
                        let message = format!(
                            "all {} parts of the latch are counted, and {part:?} is none of them",
                            self.parts
                        );
                        return Err(Error::new(ErrorKind::Invalid, message).on(&resource));
                    }
                    self.pause(&resource, &seen.cursor).await;
                }
            }
        }
    }

    /// How many parts are left. The latch is open at 0.
    ///
    /// One round trip.
    ///
    /// # Errors
    /// The backend's error; `Invalid` or `Unsupported` as [`CountDownLatch::count_down`].
    pub async fn count(&self) -> Result<u32> {
        Ok(self.left(&self.look(&self.checked()?).await?))
    }

    /// Waits until all parts are counted. It waits without a limit: put it into a timeout.
    ///
    /// # Cancel safety
    /// It can be dropped at any point.
    ///
    /// # Errors
    /// The backend's error: call it again. `Invalid` or `Unsupported` as [`CountDownLatch::count_down`].
    pub async fn wait(&self) -> Result<()> {
        let resource = self.checked()?;
        loop {
            let seen = self.look(&resource).await?;
            if self.left(&seen) == 0 {
                return Ok(());
            }
            self.pause(&resource, &seen.cursor).await;
        }
    }

    /// The resource, if this backend can have latches.
    fn checked(&self) -> Result<Resource> {
        let resource = self.resource.clone()?;
        let info = self.client.info();
        if info.capabilities.shares && info.capabilities.keep_for {
            return Ok(resource);
        }
        let message =
            format!("{} has no latches: they need permits that stay taken after a release", info.name);
        Err(Error::new(ErrorKind::Unsupported, message).on(&resource))
    }

    fn left(&self, seen: &Snapshot) -> u32 {
        let counted = seen.holders.iter().filter(|by| by.kept).count();
        self.parts.saturating_sub(u32::try_from(counted).unwrap_or(u32::MAX))
    }

    fn left_if_counted(&self, seen: &Snapshot, part: &str) -> Option<u32> {
        claims_of(seen, part).any(|by| by.kept).then(|| self.left(seen))
    }

    async fn look(&self, resource: &Resource) -> Result<Snapshot> {
        let page = self.client.inspect(&Query::One(resource.clone())).await?;
        Ok(page.into_snapshots().pop().unwrap_or_else(|| Snapshot::empty(resource.clone())))
    }

    /// Returns when the latch may have changed, and after a second at most.
    async fn pause(&self, resource: &Resource, cursor: &Cursor) {
        let engine = &self.client.engine;
        // `wait` needs an owner token; this one never claims anything.
        let owner = OwnerToken::fresh(&*engine.environment);
        let claim = ClaimRef { resource: resource.clone(), owner };
        let call = engine.backend.wait(&claim, cursor, LOOK_EVERY_MAX);
        if engine.call(Verb::Wait, Some(resource), LOOK_EVERY_MAX * 5, call).await.is_err() {
            engine.environment.sleep(Backoff::FIRST).await;
        }
    }
}

/// The claims whose note is the name of this part.
fn claims_of<'a>(seen: &'a Snapshot, part: &'a str) -> impl Iterator<Item = &'a HeldBy> {
    seen.holders.iter().filter(move |by| by.note.as_deref() == Some(part.as_bytes()))
}

impl Barrier {
    pub(crate) fn new(client: &Client, kind: &str, id: &str, parties: u32) -> Barrier {
        Barrier { client: client.clone(), kind: kind.to_owned(), id: id.to_owned(), parties }
    }

    /// Arrives, and waits until all parties have arrived in this round. It waits without a limit: put it into a timeout.
    ///
    /// # Cancel safety
    /// If it is dropped, the party may have arrived or not. Call it again.
    ///
    /// # Errors
    /// As [`CountDownLatch::count_down`].
    pub async fn arrive(&self, round: u64, party: &str) -> Result<()> {
        let latch = self.client.count_down_latch(&self.kind, &format!("{}.{round}", self.id), self.parties);
        if latch.count_down(party).await? > 0 {
            latch.wait().await?;
        }
        Ok(())
    }
}

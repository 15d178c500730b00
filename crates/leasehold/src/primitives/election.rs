//! One leader, whom all can see.

use std::{future::Future, sync::Arc, time::Duration};

use leasehold_core::{
    Backoff, ClaimRef, Cursor, FencingToken, Holder, OwnerToken, Query, Resource, Result, Snapshot, Verb,
};

use crate::{client::Client, lease::LeaseView, request::LeaseRequest};

/// One leader at a time, with a value that all can see and that may change while it leads.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let leases = leasehold::connect("memory:").await?;
/// let scheduler = leases.election("scheduler", "eu");
/// let lead = scheduler.candidate("http://host-a").acquire().await?;
/// let mut observer = scheduler.observe()?;
/// let leader = observer.next().await?.expect("someone leads");
/// assert_eq!((leader.value(), leader.token), (Some("http://host-a"), lead.token()));
/// lead.set_note("http://host-a:8080").await?;
/// assert_eq!(observer.next().await?.expect("still").value(), Some("http://host-a:8080"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    client: Client,
    resource: Result<Resource>,
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// Of its grant.
    pub token: FencingToken,
    /// Who, for people.
    pub holder: Arc<Holder>,
    /// What it wants others to know.
    pub note: Option<Arc<[u8]>>,
}

impl Leader {
    /// The note, if it is text.
    pub fn value(&self) -> Option<&str> {
        self.note.as_deref().and_then(|note| std::str::from_utf8(note).ok())
    }
}

impl Election {
    pub(crate) fn new(client: &Client, resource: Result<Resource>) -> Election {
        Election { client: client.clone(), resource }
    }

    /// A request to lead, with the value that others are to see. It waits until it leads unless told otherwise.
    pub fn candidate(&self, value: impl AsRef<[u8]>) -> LeaseRequest {
        LeaseRequest::exclusive(&self.client, self.resource.clone()).note(value).wait_forever()
    }

    /// Stands for election, does the work while it leads, and stands again when the lead was lost, until the work has
    /// ended by itself.
    ///
    /// # Guarantees
    /// The work of a lost lead is dropped before anyone else can lead, as [`LeaseView::hold`] has it.
    ///
    /// # Cancel safety
    /// Dropped, it resigns.
    ///
    /// # Errors
    /// Whatever `acquire` says; a lead that was lost is no error.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let leases = leasehold::connect("memory:").await?;
    /// let scheduler = leases.election("scheduler", "eu");
    /// let planned = scheduler.lead("http://host-a", async |lead| lead.token().get()).await?;
    /// # assert!(planned > 0);
    /// # Ok(()) }
    /// ```
    pub async fn lead<F, W>(&self, value: impl AsRef<[u8]>, mut work: F) -> Result<W::Output>
    where
        F: FnMut(LeaseView) -> W,
        W: Future,
    {
        loop {
            let lead = self.candidate(value.as_ref()).acquire().await?;
            if let Ok(done) = lead.hold(work(lead.view())).await {
                drop(lead.release().await); // the work is done; what is not answered is repeated in the background
                return Ok(done);
            }
            drop(lead); // lost: given back in the background, if there is anything to give back
            self.client.engine.environment.sleep(Backoff::FIRST).await;
        }
    }

    /// Watches who leads.
    ///
    /// # Errors
    /// `Invalid` if the name was bad.
    pub fn observe(&self) -> Result<Observer> {
        let owner = OwnerToken::fresh(&*self.client.engine.environment); // a watcher, known to nobody
        let claim = ClaimRef { resource: self.resource.clone()?, owner };
        Ok(Observer { client: self.client.clone(), claim, seen: None })
    }
}

/// Sees who leads, and every change that lasts long enough to be seen.
#[derive(Debug)]
pub struct Observer {
    client: Client,
    claim: ClaimRef,
    seen: Option<(Cursor, Option<Leader>)>,
}

impl Observer {
    /// How long before it looks again, whatever the wake-ups say.
    const LOOK_AGAIN: Duration = Duration::from_secs(5);

    /// Who leads now, the first time; then whoever leads after the next change. `None`: nobody.
    ///
    /// # Cancel safety
    /// Nothing is forgotten: the next call goes on from the last answer.
    ///
    /// # Errors
    /// Whatever the backend says; asking again goes on.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        loop {
            if let Some((cursor, leader)) = &self.seen {
                self.wait(cursor, leader).await;
            }
            let snapshot = self.look().await?;
            let now = leader_of(&snapshot);
            let news = self.seen.as_ref().is_none_or(|(_, before)| *before != now);
            self.seen = Some((snapshot.cursor, now.clone()));
            if news {
                return Ok(now);
            }
        }
    }

    async fn wait(&self, cursor: &Cursor, leader: &Option<Leader>) {
        let engine = &self.client.engine;
        // While somebody leads, its expiry is a change that nobody announces.
        let at_most = if leader.is_some() { Duration::from_secs(1) } else { Observer::LOOK_AGAIN };
        let request = engine.backend.wait(&self.claim, cursor, at_most);
        let limit = at_most + Observer::LOOK_AGAIN;
        if engine.call(Verb::Wait, Some(&self.claim.resource), limit, request).await.is_err() {
            engine.environment.sleep(Backoff::FIRST).await;
        }
    }

    async fn look(&self) -> Result<Snapshot> {
        let resource = &self.claim.resource;
        let page = self.client.inspect(&Query::One(resource.clone())).await?;
        Ok(page.into_snapshots().pop().unwrap_or_else(|| Snapshot::empty(resource.clone())))
    }
}

fn leader_of(snapshot: &Snapshot) -> Option<Leader> {
    let by = snapshot.holders.iter().find(|by| !by.kept)?;
    Some(Leader { token: by.token, holder: Arc::clone(&by.holder), note: by.note.clone() })
}

//! Elections: one leader at a time, which all clients can see.

use std::{future::Future, sync::Arc, time::Duration};

use futures_core::Stream;
use leasehold_core::{
    Backoff, ClaimRef, Cursor, FencingToken, Holder, OwnerToken, Query, Resource, Result, Snapshot, Verb,
};

use leasehold_support::StopRequest;

use crate::{advice::Purpose, client::Client, lease::LeaseView, request::LeaseRequest, stream::unfold};

/// An election: one leader at a time, with a value that all clients can see. The leader can change its value.
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
    /// The request of each candidate, without its value.
    request: LeaseRequest,
}

/// The current leader.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The fencing token of its grant.
    pub token: FencingToken,
    /// The host, process and label of the leader, for people.
    pub holder: Arc<Holder>,
    /// Its value, as bytes.
    pub note: Option<Arc<[u8]>>,
}

impl Leader {
    /// Its value, if that is text.
    pub fn value(&self) -> Option<&str> {
        self.note.as_deref().and_then(|note| std::str::from_utf8(note).ok())
    }
}

impl Election {
    pub(crate) fn new(client: &Client, resource: Result<Resource>) -> Election {
        Election { request: LeaseRequest::exclusive(client, resource).wait_forever() }
    }

    /// How long a lead lasts without a renewal. Default 30 s, as [`LeaseRequest::ttl`]. A leader that crashed is followed
    /// after this time.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Election {
        Election { request: self.request.ttl(ttl) }
    }

    /// A text for people who look up the leader. Default: the client's label, as [`LeaseRequest::label`].
    #[must_use]
    pub fn label(self, label: &str) -> Election {
        Election { request: self.request.label(label) }
    }

    /// Whether leading saves work or protects correctness. Default: [`Purpose::Efficiency`], as
    /// [`LeaseRequest::purpose`].
    #[must_use]
    pub fn purpose(self, purpose: Purpose) -> Election {
        Election { request: self.request.purpose(purpose) }
    }

    /// States that what the leader writes to checks its token. Default: not fenced, as [`LeaseRequest::fenced`].
    #[must_use]
    pub fn fenced(self) -> Election {
        Election { request: self.request.fenced() }
    }

    /// A request to lead, with the value that other clients see. By default it waits without a limit.
    pub fn candidate(&self, value: impl AsRef<[u8]>) -> LeaseRequest {
        self.request.clone().note(value)
    }

    /// Waits until it leads, and runs the work. If the lead is lost, it waits again and starts the work anew. Returns when
    /// the work has finished.
    ///
    /// An outage of the backend does not end it: it goes on when the backend is back. The work may borrow from its
    /// surroundings; what it changes there needs a cell, an atomic or a lock, as in the example (ADR 0050).
    ///
    /// # Guarantees
    /// The work of a lost lead is dropped before another candidate can lead, as with [`LeaseView::hold`].
    ///
    /// # Fairness
    /// As [`LeaseRequest::acquire`].
    ///
    /// # Cancel safety
    /// If it is dropped, the work is dropped and the lead is released in the background.
    ///
    /// # Errors
    /// Only errors that will not pass by themselves: `Invalid`, `Mismatch`, `Unsupported`, `GuaranteeTooWeak`, `Denied`,
    /// `Corrupt`, `Limit`; `ShutDown` after [`Client::shutdown`]. Neither a lost lead nor an unavailable backend is an
    /// error.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let leases = leasehold::connect("memory:").await?;
    /// let scheduler = leases.election("scheduler", "eu");
    /// let terms = std::sync::atomic::AtomicU32::new(0); // the work borrows it
    /// let token = scheduler
    ///     .lead("http://host-a", async |lead| {
    ///         terms.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    ///         lead.token()
    ///     })
    ///     .await?;
    /// println!("led {terms:?} times, the last time with {token:?}");
    /// # assert_eq!(terms.into_inner(), 1);
    /// # Ok(()) }
    /// ```
    pub async fn lead<F, W>(&self, value: impl AsRef<[u8]>, work: F) -> Result<W::Output>
    where
        F: FnMut(LeaseView) -> W,
        W: Future,
    {
        let led = self.lead_until(std::future::pending::<()>(), value, work).await?;
        Ok(led.expect("nothing asks it to stop, so it returns only with the output of the work"))
    }

    /// As [`Election::lead`], until `stop` ends: a cancellation token, a signal, any future.
    ///
    /// If it does not lead then, it returns `None` at once, and leaves the queue. If it leads, the work goes on to its end,
    /// and its output is returned: tell the work to finish, as in the example. If the lead is lost after that, it returns
    /// `None` and does not stand again.
    ///
    /// # Guarantees
    /// As [`Election::lead`].
    ///
    /// # Fairness
    /// As [`LeaseRequest::acquire`].
    ///
    /// # Cancel safety
    /// As [`Election::lead`].
    ///
    /// # Errors
    /// As [`Election::lead`].
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use tokio_util::sync::CancellationToken;
    ///
    /// let leases = leasehold::connect("memory:").await?;
    /// let stop = CancellationToken::new(); // cancel it when the program is told to end
    /// # stop.cancel();
    /// let scheduler = leases.election("scheduler", "eu");
    /// let led = scheduler.lead_until(stop.cancelled(), "http://host-a", async |lead| {
    ///     while !stop.is_cancelled() {
    ///         /* one round of the leader's work */
    /// #       let _ = &lead;
    ///     }
    /// });
    /// if led.await?.is_none() {
    ///     println!("stopped while another candidate was leading");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn lead_until<F, W>(
        &self,
        stop: impl Future,
        value: impl AsRef<[u8]>,
        mut work: F,
    ) -> Result<Option<W::Output>>
    where
        F: FnMut(LeaseView) -> W,
        W: Future,
    {
        let mut stop = StopRequest::new(stop);
        loop {
            match stop.unless_asked(self.candidate(value.as_ref()).acquire()).await {
                None => return Ok(None),
                Some(Ok(lead)) => {
                    // Otherwise it is lost, and was dropped: it is released in the background, in case the backend still
                    // has it.
                    if let Ok(done) = lead.run(&mut work).await {
                        return Ok(Some(done));
                    }
                }
                Some(Err(error)) if error.is_retryable() => {
                    tracing::warn!(target: "leasehold", %error, "cannot stand for election, trying again");
                }
                Some(Err(error)) => return Err(error),
            }
            // Pause, so that a backend that refuses every renewal is not asked in a tight loop.
            stop.unless_asked(self.client().engine.environment.sleep(Backoff::FIRST)).await;
        }
    }

    fn client(&self) -> &Client {
        self.request.client()
    }

    /// An observer of the leader.
    ///
    /// # Errors
    /// `Invalid` if the name is invalid.
    pub fn observe(&self) -> Result<Observer> {
        let client = self.client();
        let owner = OwnerToken::fresh(&*client.engine.environment); // `wait` needs an owner token; this one never claims anything
        let claim = ClaimRef { resource: self.request.resource()?.clone(), owner };
        Ok(Observer { client: client.clone(), claim, seen: None })
    }
}

/// Observes who leads. A leader that leads only for a moment between two looks may be missed.
#[derive(Debug)]
pub struct Observer {
    client: Client,
    claim: ClaimRef,
    seen: Option<(Cursor, Option<Leader>)>,
}

impl Observer {
    /// The longest time between two looks while nobody leads, whatever wake-ups come.
    const LOOK_EVERY_MAX: Duration = Duration::from_secs(5);
    /// The longest time between two looks while somebody leads: nothing wakes the observer when the lead expires.
    const LOOK_WHILE_LED: Duration = Duration::from_secs(1);

    /// The first call returns the leader at once. Later calls wait until the leader or its value has changed. `None` if
    /// nobody leads.
    ///
    /// # Cancel safety
    /// No change is lost: the next call compares with the last leader that was returned.
    ///
    /// # Errors
    /// The backend's error. Call it again to go on.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        loop {
            if let Some((cursor, leader)) = &self.seen {
                self.wait(cursor, leader).await;
            }
            let snapshot = self.look().await?;
            let now = leader_of(&snapshot);
            let has_changed = self.seen.as_ref().is_none_or(|(_, before)| *before != now);
            self.seen = Some((snapshot.cursor, now.clone()));
            if has_changed {
                return Ok(now);
            }
        }
    }

    /// The leaders as a [`Stream`], for the combinators of other crates: the first one at once, then each change. It never
    /// ends; after an error, it goes on with the next item.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use futures_util::StreamExt as _;
    ///
    /// let leases = leasehold::connect("memory:").await?;
    /// let scheduler = leases.election("scheduler", "eu");
    /// let _lead = scheduler.candidate("http://host-a").acquire().await?;
    /// let mut leaders = scheduler.observe()?.into_stream();
    /// let leader = leaders.next().await.expect("it never ends")?.expect("someone leads");
    /// assert_eq!(leader.value(), Some("http://host-a"));
    /// # Ok(()) }
    /// ```
    pub fn into_stream(self) -> impl Stream<Item = Result<Option<Leader>>> + Send + Unpin + use<> {
        unfold(self, async |mut observer: Observer| {
            let next = observer.next().await;
            (observer, Some(next))
        })
    }

    async fn wait(&self, cursor: &Cursor, leader: &Option<Leader>) {
        let engine = &self.client.engine;
        let at_most = if leader.is_some() { Observer::LOOK_WHILE_LED } else { Observer::LOOK_EVERY_MAX };
        let request = engine.backend.wait(&self.claim, cursor, at_most);
        let limit = at_most + Observer::LOOK_EVERY_MAX;
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

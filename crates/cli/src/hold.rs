//! What a run holds: a lease of its own, or that of a run around it.

use std::{future::Future, pin::Pin, time::Duration};

use leasehold::{
    Clock as _, EndReason, Error, EventKind, Events, FinishRequest, Lease, OwnerToken, Released, SystemClock,
    Timestamp, TokenKind, async_trait,
};

/// An owned future.
pub(crate) type Later<T> = Pin<Box<dyn Future<Output = T>>>;

/// What a run holds.
#[async_trait(?Send)]
pub(crate) trait Hold {
    /// Of the grant.
    fn token(&self) -> String;
    /// The secret that renews it.
    fn owner(&self) -> OwnerToken;
    /// How long it lasts from one renewal to the next.
    fn ttl(&self) -> Duration;
    /// From when on someone else may be granted, unless it is renewed; none once it is over.
    fn deadline(&self) -> Option<Timestamp>;
    /// Resolves when it is over.
    fn ended(&self) -> Later<EndReason>;
    /// Resolves when an operator asks the holder to finish; none if it ends without that.
    fn asked(&self) -> Later<Option<FinishRequest>>;
    /// Resolves when the deadline may have moved.
    ///
    /// # Cancel safety
    /// A move may be missed; the next one is not.
    async fn moved(&mut self);
    /// An operator lets it run out.
    fn is_evicted(&self) -> bool {
        false
    }
    /// Gives it back, and keeps the resource closed for so long since the grant, if that is wished. A hold of
    /// someone else's is left to them.
    async fn release(self: Box<Self>, keep: Option<Duration>) -> Result<Released, Error>;
}

/// A lease of its own.
pub(crate) struct Leased<T> {
    lease: Lease<T>,
    events: Events,
    is_evicted: bool,
}

impl<T> Leased<T> {
    /// The events are those of the lease's client.
    pub(crate) fn new(lease: Lease<T>, events: Events) -> Leased<T> {
        Leased { lease, events, is_evicted: false }
    }
}

#[async_trait(?Send)]
impl<T: TokenKind> Hold for Leased<T> {
    fn token(&self) -> String {
        self.lease.token().to_string()
    }

    fn owner(&self) -> OwnerToken {
        self.lease.owner_token()
    }

    fn ttl(&self) -> Duration {
        self.lease.ttl()
    }

    fn deadline(&self) -> Option<Timestamp> {
        let now = SystemClock.now(); // before asking what remains: never too late
        Some(self.lease.remaining()).filter(|left| !left.is_zero()).map(|left| now.after(left))
    }

    fn ended(&self) -> Later<EndReason> {
        Box::pin(self.lease.ended())
    }

    fn asked(&self) -> Later<Option<FinishRequest>> {
        Box::pin(self.lease.asked())
    }

    async fn moved(&mut self) {
        loop {
            match self.events.next().await.map(|event| event.map(|event| event.kind)) {
                Some(Ok(EventKind::Evicting)) => self.is_evicted = true,
                Some(Ok(EventKind::Renewed { .. }) | Err(_)) => return,
                Some(Ok(_)) => {}
                None => std::future::pending().await,
            }
        }
    }

    fn is_evicted(&self) -> bool {
        self.is_evicted
    }

    async fn release(self: Box<Self>, keep: Option<Duration>) -> Result<Released, Error> {
        match keep {
            None => self.lease.release().await,
            Some(at_least) => self.lease.release_keeping(at_least).await,
        }
    }
}

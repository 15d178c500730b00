//! A lease that a command of `leasehold run` works under: a lease of its own ([`OwnLease`]), or the lease
//! of an outer `leasehold run` (`commands/run/nested.rs`). A run may have several ([`HeldLeases`](crate::held_leases)).

use std::{future::Future, pin::Pin, time::Duration};

use leasehold::{
    Clock as _, EndReason, Error, EventKind, Events, FinishRequest, Lease, OwnerToken, Released, State,
    SystemClock, Timestamp, TokenKind, async_trait,
};

/// A boxed future that borrows nothing.
pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// The lease that a command works under.
#[async_trait(?Send)]
pub(crate) trait RunLease {
    /// The fencing token of the grant.
    fn token(&self) -> String;
    /// The owner token: the secret that renews and releases the lease.
    fn owner(&self) -> OwnerToken;
    /// The time from one renewal to the deadline.
    fn ttl(&self) -> Duration;
    /// The time from which on the store may grant the resource to another client, unless the lease is
    /// renewed. `None` once the lease has ended.
    fn deadline(&self) -> Option<Timestamp>;
    /// Resolves when the lease has ended.
    fn ended(&self) -> BoxFuture<EndReason>;
    /// Resolves when an operator asks the holder to finish, or with `None` when the lease ends without such a
    /// request.
    fn finish_requested(&self) -> BoxFuture<Option<FinishRequest>>;
    /// Resolves when the deadline may have changed.
    ///
    /// # Cancel safety
    /// A change may be missed. Every call of `deadline` returns the current one.
    async fn deadline_changed(&mut self);
    /// Whether an operator has evicted the holder: the lease is not renewed any more and runs out.
    fn is_evicted(&self) -> bool {
        false
    }
    /// Counts and logs the loss of the lease, unless the engine has done so: the guardian stops the command a little earlier than
    /// the engine gives a lease up.
    fn report_loss(&self, _reason: EndReason) {}
    /// Releases the lease. With `keep`, the resource stays closed until so long after the grant. The lease of
    /// an outer run is left alone: the outer run releases it.
    async fn release(self: Box<Self>, keep: Option<Duration>) -> Result<Released, Error>;
}

/// A lease that this run has acquired itself.
pub(crate) struct OwnLease<T> {
    lease: Lease<T>,
    events: Events,
    /// The name of the backend, as in the metrics of the engine.
    backend: &'static str,
    is_evicted: bool,
}

impl<T> OwnLease<T> {
    /// `events` are the events of the client that acquired the lease.
    pub(crate) fn new(lease: Lease<T>, events: Events, backend: &'static str) -> OwnLease<T> {
        OwnLease { lease, events, backend, is_evicted: false }
    }
}

#[async_trait(?Send)]
impl<T: TokenKind> RunLease for OwnLease<T> {
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
        // Read the clock before `remaining`: a pause between the two makes the deadline earlier, never later.
        let now = SystemClock.now();
        Some(self.lease.remaining()).filter(|left| !left.is_zero()).map(|left| now.after(left))
    }

    fn ended(&self) -> BoxFuture<EndReason> {
        Box::pin(self.lease.ended())
    }

    fn finish_requested(&self) -> BoxFuture<Option<FinishRequest>> {
        Box::pin(self.lease.asked())
    }

    async fn deadline_changed(&mut self) {
        loop {
            match self.events.next().await.map(|event| event.map(|event| event.kind)) {
                Some(Ok(EventKind::Evicting)) => self.is_evicted = true,
                // `Err`: events were dropped, and a renewal may have been among them.
                Some(Ok(EventKind::Renewed { .. }) | Err(_)) => return,
                Some(Ok(_)) => {}
                None => std::future::pending().await,
            }
        }
    }

    fn is_evicted(&self) -> bool {
        self.is_evicted
    }

    fn report_loss(&self, reason: EndReason) {
        if matches!(self.lease.state(), State::Ended(_)) {
            return;
        }
        let (resource, reason) = (self.lease.resource(), reason.as_str());
        let (kind, backend) = (resource.kind().to_owned(), self.backend);
        metrics::counter!("leasehold_lost_total", "kind" => kind, "backend" => backend, "reason" => reason)
            .increment(1);
        let (kind, id_hash, token) = (resource.kind(), resource.id_hash(), self.token());
        tracing::warn!(target: "leasehold", event = "lost", kind, id_hash, token, backend, reason);
    }

    async fn release(self: Box<Self>, keep: Option<Duration>) -> Result<Released, Error> {
        match keep {
            None => self.lease.release().await,
            Some(at_least) => self.lease.release_keeping(at_least).await,
        }
    }
}

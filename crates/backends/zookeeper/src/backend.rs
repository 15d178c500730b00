//! The backend and its connection. Each verb is in the file of its name.

use std::{fmt, sync::Arc, time::Duration};

use leasehold_core::{
    Backend, BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Effect, Environment, FailureDomain,
    Guarantee, OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource,
    Result, Timestamp, Verb, Verdict, async_trait,
};
use leasehold_support::race::{Either, first};

use crate::{
    NAME, config::Config, connection::CurrentSession, error::StoreError, session::Session,
    together::carry_out_together,
};

/// How many claims may wait for one resource. A listing contains all their names, and servers refuse replies
/// of more than a megabyte (`jute.maxbuffer`).
const QUEUE_MAX: u32 = 10_000;

/// Leases in ZooKeeper.
///
/// ```no_run
/// # async fn example() -> Result<(), leasehold_core::Error> {
/// use leasehold::{Client, System};
/// use leasehold_zookeeper::{Config, ZooKeeper};
/// use std::sync::Arc;
///
/// let config = Config::parse("zookeeper://zk1,zk2,zk3/prod")?;
/// let zookeeper = ZooKeeper::connect(config, Arc::new(System::current())).await?;
/// let leases = Client::new(Arc::new(zookeeper));
/// leases.lease("report", "42").run(async |lease| println!("token {}", lease.token())).await?;
/// # Ok(()) }
/// ```
pub struct ZooKeeper {
    pub(crate) info: BackendInfo,
    environment: Arc<dyn Environment>,
    current_session: CurrentSession,
}

impl ZooKeeper {
    /// Connects to the ensemble and begins a session. When that session ends, the next call begins a new one.
    ///
    /// # Errors
    /// `Unavailable` if no server answers. `Denied` if the servers refuse the login, or the user may not use
    /// the chroot. `Unsupported` if the servers grant too short a session, or are older than 3.6.
    ///
    /// # Cancel safety
    /// If the future is dropped, a session may remain on the servers. It ends after its timeout.
    pub async fn connect(config: Config, environment: Arc<dyn Environment>) -> Result<ZooKeeper> {
        let current_session = CurrentSession::new(config, Arc::clone(&environment));
        let session = current_session.get().await.map_err(StoreError::into_error)?;
        Ok(ZooKeeper { info: info(session.lease_ttl), environment, current_session })
    }

    pub(crate) async fn session(&self) -> Result<Arc<Session>, StoreError> {
        self.current_session.get().await
    }

    pub(crate) fn config(&self) -> &Config {
        self.current_session.config()
    }

    pub(crate) fn environment(&self) -> &dyn Environment {
        &*self.environment
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.environment.now()
    }
}

fn info(lease_ttl: Duration) -> BackendInfo {
    let mut info = BackendInfo::new(NAME, Guarantee::Consensus);
    info.because = "a majority of the servers agrees on every change".into();
    info.tokens_break_when =
        "the ensemble is restored from an older snapshot, or the leases move to another store".into();
    // While others wait, the claim that takes over queues behind them (`takeover.rs`).
    info.capabilities.handover = false;
    info.capabilities.passes_over = false;
    // A node ends with its session and not after a time of its own, so nothing can stay closed after a
    // release, and a claim cannot have a ttl of its own.
    info.capabilities.keep_for = false;
    info.capabilities.own_ttl = false;
    // A waiter at the head of the queue holds the resource before it asks again (ADR 0025).
    info.capabilities.self_granting = true;
    info.limits.ttl = lease_ttl;
    info.limits.queue = QUEUE_MAX;
    // `gather` stays 1. Requests never wait for each other here: the driver writes those that come at once in
    // one packet, and the servers sync them to disk together. To gather them first would only delay them.
    info
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeper").field("session", &self.current_session).finish_non_exhaustive()
    }
}

impl ZooKeeper {
    async fn acquire_claim(&self, claim: &Claim) -> Result<Verdict> {
        let annotate = |error: StoreError| error.into_error().at(Verb::Acquire, NAME).on(&claim.resource);
        self.try_acquire(claim).await.map_err(annotate)
    }

    async fn release_claim(&self, request: &ReleaseRequest) -> Result<Released> {
        let annotate = |error: StoreError| error.into_error().at(Verb::Release, NAME).on(&request.resource);
        self.try_release(request).await.map_err(annotate)
    }
}

#[async_trait]
impl Backend for ZooKeeper {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    /// All resources fail together, because one session keeps all nodes of this client.
    fn failure_domain(&self, _: &Resource) -> FailureDomain {
        FailureDomain::default()
    }

    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        carry_out_together(claims, |claim| &claim.resource, |claim| self.acquire_claim(claim)).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let renewals = self.try_renew(requests).await;
        let annotate = |(request, renewal): (&RenewRequest, Result<Renewal>)| {
            renewal.map_err(|error| error.at(Verb::Renew, NAME).on(&request.resource))
        };
        requests.iter().zip(renewals).map(annotate).collect()
    }

    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        carry_out_together(requests, |request| &request.resource, |request| self.release_claim(request)).await
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        let changed = self.wait_for_change(claim, *since);
        match first(changed, self.environment.sleep(at_most)).await {
            // If the session has ended, the caller should ask again at once: that begins a new session.
            Either::Left(Err(error)) if !error.session_ended => {
                let error = error.into_error().with_effect(Effect::None);
                Err(error.at(Verb::Wait, NAME).on(&claim.resource))
            }
            _ => Ok(()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let annotate =
            |error: StoreError| error.into_error().with_effect(Effect::None).at(Verb::Inspect, NAME);
        self.try_inspect(query).await.map_err(annotate)
    }

    async fn order(&self, command: &OperatorCommand) -> Result<CommandOutcome> {
        let annotate = |error: StoreError| error.into_error().at(Verb::Order, NAME).on(&command.resource);
        self.try_order(command).await.map_err(annotate)
    }
}

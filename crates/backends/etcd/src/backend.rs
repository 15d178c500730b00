//! [`Etcd`], the backend. Each verb is in the file of its name.

use std::{fmt, sync::Arc, time::Duration};

use etcd_client::GetOptions;
use leasehold_core::{
    Backend, BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Effect, Environment, FailureDomain,
    Guarantee, OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource,
    Result, Verb, Verdict, async_trait,
};
use leasehold_support::race::{Either, first};

use crate::{
    NAME, config::Config, connection::Connections, contention::ContentionHints, error::StoreError,
    lease_pool::LeasePool, local_claims::LocalClaims, silence::CalledWaiters, transaction::NestedMax,
    verify_reply::KeyRange, wakeup_listener::WakeupListener,
};

/// The etcd backend: leases on one etcd cluster. How it works is in the [crate documentation](crate).
///
/// ```no_run
/// # async fn example() -> Result<(), leasehold_core::Error> {
/// use leasehold::{Client, System};
/// use leasehold_etcd::{Config, Etcd};
/// use std::sync::Arc;
///
/// let config = Config::parse("etcd://e1.internal,e2.internal,e3.internal")?;
/// let etcd = Etcd::connect(config, Arc::new(System::current())).await?;
/// let leases = Client::new(Arc::new(etcd));
/// leases.lease("report", "42").run(async |lease| println!("token {}", lease.token())).await?;
/// # Ok(()) }
/// ```
pub struct Etcd {
    pub(crate) info: BackendInfo,
    pub(crate) connections: Arc<Connections>,
    pub(crate) lease_pool: Arc<LeasePool>,
    pub(crate) local_claims: LocalClaims,
    pub(crate) contention_hints: ContentionHints,
    pub(crate) wakeup_listener: WakeupListener,
    pub(crate) called_waiters: CalledWaiters,
    pub(crate) nested_max: NestedMax,
    pub(crate) environment: Arc<dyn Environment>,
}

/// How many claims may wait for one resource. Each is a key, and etcd sorts them all with every read.
const QUEUE_MAX: u32 = 10_000;

/// How many claims travel in one transaction. etcd allows 128 operations by default; each claim is one, and
/// what it does is counted separately. A longer transaction keeps other requests waiting for longer.
const GATHER: usize = 16;
/// How many transactions of a verb are under way before the engine gathers.
const CALLS_IN_FLIGHT: usize = 2;

impl Etcd {
    /// Connects to the first member that replies. When a connection is lost later, the next request connects
    /// again, to the next member.
    ///
    /// # Errors
    /// `Unavailable` if no member replies; `Denied` if etcd refuses the user or the password, if the user has no
    /// permission, or if the certificate of the members is of an issuer that is not trusted or for another host
    /// name; `Unsupported` if the URL asks for TLS and this build has none; `Invalid` if a certificate cannot be
    /// read.
    ///
    /// # Cancel safety
    /// If the call is dropped, a connection may be left, and etcd closes it.
    pub async fn connect(config: Config, environment: Arc<dyn Environment>) -> Result<Etcd> {
        let connections = Arc::new(Connections::new(config, Arc::clone(&environment)));
        let etcd = Etcd {
            info: info(),
            lease_pool: LeasePool::new(Arc::clone(&connections)),
            local_claims: LocalClaims::default(),
            contention_hints: ContentionHints::default(),
            wakeup_listener: WakeupListener::new(Arc::clone(&connections)),
            called_waiters: CalledWaiters::default(),
            nested_max: NestedMax::new(GATHER),
            connections,
            environment,
        };
        // A read needs a leader and permission to read: better to fail here than with the first lease.
        let probe = KeyRange::one(etcd.connections.config.root.probe_key());
        let reading = etcd.connections.read_range(probe, GetOptions::new());
        reading.await.map_err(|error| error.into_error().with_effect(Effect::None))?;
        Ok(etcd)
    }

    /// How many claims may wait for one resource.
    pub(crate) fn queue_max(&self) -> usize {
        usize::try_from(self.info.limits.queue).unwrap_or(usize::MAX)
    }
}

fn info() -> BackendInfo {
    let mut info = BackendInfo::new(NAME, Guarantee::Consensus);
    info.because = "a grant is written by a majority of the members before it is given".into();
    info.tokens_break_when =
        "the cluster is restored from an older snapshot, or its data moves to another cluster".into();
    // A lease is handed over only while no other claim waits: see `PlanBuilder::take_over` in
    // `acquire/decide.rs`.
    info.capabilities.handover = false;
    // The order of the queue is the order of tokens, so a silent waiter cannot keep its place (ADR 0064).
    (info.capabilities.passes_over, info.capabilities.removes_silent) = (false, true);
    info.limits.queue = QUEUE_MAX;
    (info.limits.gather, info.limits.calls_in_flight) = (GATHER, CALLS_IN_FLIGHT);
    info
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.lease_pool.close();
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("connections", &self.connections).finish_non_exhaustive()
    }
}

impl Etcd {
    /// A single claim without what many claims need: it is the most frequent case.
    async fn acquire_all(&self, claims: &[Claim]) -> Vec<Result<Verdict, StoreError>> {
        match claims {
            [claim] => vec![self.try_acquire(claim).await],
            _ => self.acquire_together(claims).await,
        }
    }

    async fn release_all(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released, StoreError>> {
        match requests {
            [request] => vec![self.try_release(request).await],
            _ => self.release_together(requests).await,
        }
    }
}

/// The errors of a verb, each with the resource of its own request.
fn locate<'a, T>(
    verb: Verb,
    results: Vec<Result<T, StoreError>>,
    resources: impl Iterator<Item = &'a Resource>,
) -> Vec<Result<T>> {
    let locate = |(result, resource): (Result<T, StoreError>, &Resource)| {
        result.map_err(|error| error.into_error().at(verb, NAME).on(resource))
    };
    results.into_iter().zip(resources).map(locate).collect()
}

#[async_trait]
impl Backend for Etcd {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn failure_domain(&self, _: &Resource) -> FailureDomain {
        // All resources are on one cluster, so they fail together.
        FailureDomain::default()
    }

    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        let results = self.acquire_all(claims).await;
        locate(Verb::Acquire, results, claims.iter().map(|claim| &claim.resource))
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        self.renew_batch(requests).await
    }

    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        let results = self.release_all(requests).await;
        locate(Verb::Release, results, requests.iter().map(|request| &request.resource))
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        let woken = self.wait_for_change(claim, *since);
        match first(woken, self.environment.sleep(at_most)).await {
            Either::Left(Err(error)) => {
                // A wait writes nothing of its own claim.
                let error = error.into_error().with_effect(Effect::None);
                Err(error.at(Verb::Wait, NAME).on(&claim.resource))
            }
            _ => Ok(()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let locate = |error: StoreError| error.into_error().with_effect(Effect::None).at(Verb::Inspect, NAME);
        self.try_inspect(query).await.map_err(locate)
    }

    async fn order(&self, command: &OperatorCommand) -> Result<CommandOutcome> {
        let locate = |error: StoreError| error.into_error().at(Verb::Order, NAME).on(&command.resource);
        self.try_order(command).await.map_err(locate)
    }
}

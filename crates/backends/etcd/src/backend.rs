//! The backend: which verb does what is in the file of that verb.

use std::{fmt, sync::Arc, time::Duration};

use etcd_client::GetOptions;
use leasehold_core::{
    Backend, BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Effect, Environment, FailureDomain,
    Guarantee, OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource,
    Result, Verb, Verdict, async_trait,
};
use leasehold_support::race::{Either, first};

use crate::{
    NAME, claims::Claims, config::Config, crowds::Crowds, error::Fault, link::Link, pool::Pool, proof::Keyed,
    wait::Ear,
};

/// Leases in etcd.
///
/// ```no_run
/// # async fn example() -> Result<(), leasehold_core::Error> {
/// use leasehold::{Client, System};
/// use leasehold_etcd::{Config, Etcd};
/// use std::sync::Arc;
///
/// let config = Config::parse("etcd://e1.internal,e2.internal,e3.internal")?;
/// let etcd = Etcd::connect(config, Arc::new(System::current())).await?;
/// let lease = Client::new(Arc::new(etcd)).lease("report", "42").acquire().await?;
/// println!("token {}", lease.token());
/// lease.release().await?;
/// # Ok(()) }
/// ```
pub struct Etcd {
    pub(crate) info: BackendInfo,
    pub(crate) link: Arc<Link>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) claims: Claims,
    pub(crate) crowds: Crowds,
    pub(crate) ear: Ear,
    pub(crate) environment: Arc<dyn Environment>,
}

/// Places in one line: each is a key that etcd sorts whenever someone asks.
const LINE_MAX: u32 = 10_000;

impl Etcd {
    /// Connects to whichever member answers. Later on, whoever needs a connection that is lost makes it anew, to the
    /// next member.
    ///
    /// # Errors
    /// `Unavailable` if no member answers; `Denied` if etcd refuses the user or the password; `Unsupported` if the URL
    /// wants TLS and this build has none; `Invalid` if a certificate cannot be read.
    ///
    /// # Cancel safety
    /// Dropped part-way, nothing is left but perhaps a connection that etcd closes.
    pub async fn connect(config: Config, environment: Arc<dyn Environment>) -> Result<Etcd> {
        let link = Arc::new(Link::new(config, Arc::clone(&environment)));
        let etcd = Etcd {
            info: info(),
            pool: Pool::new(Arc::clone(&link)),
            claims: Claims::default(),
            crowds: Crowds::default(),
            ear: Ear::new(Arc::clone(&link)),
            link,
            environment,
        };
        // A read that needs a leader, and the right to read: both are better known now.
        let key = format!("{}ear", etcd.link.config.root.all());
        let asked = etcd.link.get(Keyed { key: key.into(), end: None }, GetOptions::new());
        asked.await.map_err(|fault| fault.into_error().with_effect(Effect::None))?;
        Ok(etcd)
    }
}

fn info() -> BackendInfo {
    let mut info = BackendInfo::new(NAME, Guarantee::Consensus);
    info.because = "a grant is written by a majority of the members before it is given".into();
    info.tokens_break_when =
        "the cluster is restored from an older snapshot, or its data moves to another cluster".into();
    info.capabilities.handover = false;
    info.limits.queue = LINE_MAX;
    info
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.pool.close();
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("link", &self.link).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Etcd {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn failure_domain(&self, _: &Resource) -> FailureDomain {
        FailureDomain::default()
    }

    async fn acquire(&self, claim: &Claim) -> Result<Verdict> {
        let at = |fault: Fault| fault.into_error().at(Verb::Acquire, NAME).on(&claim.resource);
        self.try_acquire(claim).await.map_err(at)
    }

    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        self.renew_batch(held).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Released> {
        let at = |fault: Fault| fault.into_error().at(Verb::Release, NAME).on(&request.resource);
        self.try_release(request).await.map_err(at)
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        let woken = self.wait_for_news(claim, *since);
        match first(woken, self.environment.sleep(at_most)).await {
            Either::Left(Err(fault)) => {
                let error = fault.into_error().with_effect(Effect::None);
                Err(error.at(Verb::Wait, NAME).on(&claim.resource))
            }
            _ => Ok(()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let at = |fault: Fault| fault.into_error().with_effect(Effect::None).at(Verb::Inspect, NAME);
        self.answer(query).await.map_err(at)
    }

    async fn order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        let at = |fault: Fault| fault.into_error().at(Verb::Order, NAME).on(&order.resource);
        self.try_order(order).await.map_err(at)
    }
}

//! The backend: what each verb does is in the file of its name.

use std::{fmt, sync::Arc, time::Duration};

use leasehold_core::{
    Backend, BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Effect, Environment, Error, ErrorKind,
    FailureDomain, Guarantee, OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal,
    Resource, Result, Verb, Verdict, async_trait,
};
use leasehold_support::race::{Either, first};

use crate::{NAME, config::Config, error::Fault, link::Link};

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
/// let lease = Client::new(Arc::new(zookeeper)).lease("report", "42").acquire().await?;
/// println!("token {}", lease.token());
/// lease.release().await?;
/// # Ok(()) }
/// ```
pub struct ZooKeeper {
    pub(crate) info: BackendInfo,
    pub(crate) link: Link,
}

impl ZooKeeper {
    /// Begins a session. Later on, one that is over is begun anew by whoever needs it.
    ///
    /// # Errors
    /// `Unavailable` if no server answers; `Denied` if they refuse the user, or the user may not use the chroot;
    /// `Unsupported` if the servers grant too short a session, or are older than 3.6.
    ///
    /// # Cancel safety
    /// Dropped part-way, nothing is left but perhaps a session that ends by itself.
    pub async fn connect(config: Config, environment: Arc<dyn Environment>) -> Result<ZooKeeper> {
        let link = Link::new(config, environment);
        let session = link.session().await.map_err(Fault::into_error)?;
        Ok(ZooKeeper { info: info(session.lease), link })
    }
}

fn info(lease: Duration) -> BackendInfo {
    let mut info = BackendInfo::new(NAME, Guarantee::Consensus);
    info.because = "a majority of the servers agrees on every change".into();
    info.tokens_break_when =
        "the ensemble is restored from an older snapshot, or the leases move to another store".into();
    // Seats are handed over only while nobody waits: whoever comes next stands at the end of the line.
    info.capabilities.handover = false;
    info.capabilities.keep_for = false;
    info.capabilities.own_ttl = false;
    info.capabilities.self_granting = true;
    info.limits.ttl = lease;
    // Servers refuse an answer of more than a megabyte: the names of a line must fit.
    info.limits.queue = 10_000;
    info
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeper").field("link", &self.link).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for ZooKeeper {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    /// One session keeps everything.
    fn failure_domain(&self, _: &Resource) -> FailureDomain {
        FailureDomain::default()
    }

    async fn acquire(&self, claim: &Claim) -> Result<Verdict> {
        let at = |fault: Fault| fault.into_error().at(Verb::Acquire, NAME).on(&claim.resource);
        self.try_acquire(claim).await.map_err(at)
    }

    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        if let Some(error) = self.renewal_bounds(held) {
            return held
                .iter()
                .map(|held| Err(error.clone().at(Verb::Renew, NAME).on(&held.resource)))
                .collect();
        }
        let most = self.info.limits.note;
        if held.iter().any(|held| held.note.as_ref().is_some_and(|note| note.len() > most)) {
            // One of them is refused; the others are none the worse for it.
            let mut answers = Vec::with_capacity(held.len());
            for one in held {
                let long = one.note.as_ref().is_some_and(|note| note.len() > most);
                let refused = || Error::new(ErrorKind::Limit, format!("a note has at most {most} bytes"));
                let answer =
                    if long { Err(refused()) } else { self.renew(std::slice::from_ref(one)).await.remove(0) };
                answers.push(answer.map_err(|error| error.at(Verb::Renew, NAME).on(&one.resource)));
            }
            return answers;
        }
        let answers = self.renew_all(held).await;
        let at = |(held, answer): (&RenewRequest, Result<Renewal>)| {
            answer.map_err(|error| error.at(Verb::Renew, NAME).on(&held.resource))
        };
        held.iter().zip(answers).map(at).collect()
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Released> {
        let at = |fault: Fault| fault.into_error().at(Verb::Release, NAME).on(&request.resource);
        self.try_release(request).await.map_err(at)
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        let told = self.wait_for_news(claim, *since);
        match first(told, self.link.environment.sleep(at_most)).await {
            Either::Left(Err(fault)) if !fault.ended => {
                let error = fault.into_error().with_effect(Effect::None);
                Err(error.at(Verb::Wait, NAME).on(&claim.resource))
            }
            _ => Ok(()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let at = |fault: Fault| fault.into_error().with_effect(Effect::None).at(Verb::Inspect, NAME);
        let answer = match self.answer_query(query).await {
            Err(fault) if fault.ended => self.answer_query(query).await,
            answer => answer,
        };
        answer.map_err(at)
    }

    async fn order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        let at = |fault: Fault| fault.into_error().at(Verb::Order, NAME).on(&order.resource);
        self.try_order(order).await.map_err(at)
    }
}

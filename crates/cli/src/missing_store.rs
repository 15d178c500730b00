//! The default store before its file exists, for commands that create no store: it is empty, and becomes the
//! real store as soon as there is one.

use std::{path::PathBuf, sync::Arc, time::Duration};

use leasehold::{
    Backend, BackendInfo, Claim, ClaimRef, Clock as _, CommandOutcome, Cursor, ErrorKind, FailureDomain,
    Memory, OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource, Result,
    SystemClock, Verdict, async_trait,
};
use tokio::sync::OnceCell;

/// A store whose file does not exist yet.
#[derive(Debug)]
pub(crate) struct MissingStore {
    path: PathBuf,
    /// With `create=no`.
    url: String,
    /// Stands for the store until it exists: nothing is ever leased in it.
    empty: Memory,
    /// The store, once it exists.
    real: OnceCell<Arc<dyn Backend>>,
}

/// How often a waiting command looks for the file.
const LOOK_EVERY: Duration = Duration::from_millis(200);

impl MissingStore {
    pub(crate) fn new(path: PathBuf, url: String) -> MissingStore {
        MissingStore { path, url, empty: Memory::new(), real: OnceCell::new() }
    }

    async fn current(&self) -> Result<&dyn Backend> {
        if !self.path.exists() && self.real.get().is_none() {
            return Ok(&self.empty);
        }
        match self.real.get_or_try_init(|| leasehold::open(&self.url)).await {
            Ok(real) => Ok(&**real),
            // Another process is just creating it.
            Err(error) if error.kind() == ErrorKind::Invalid => Ok(&self.empty),
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl Backend for MissingStore {
    fn info(&self) -> &BackendInfo {
        self.real.get().map_or_else(|| self.empty.info(), |real| real.info())
    }

    fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        self.empty.failure_domain(resource)
    }

    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        match self.current().await {
            Ok(store) => store.acquire(claims).await,
            Err(error) => vec![Err(error)],
        }
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        match self.current().await {
            Ok(store) => store.renew(requests).await,
            Err(error) => vec![Err(error)],
        }
    }

    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        match self.current().await {
            Ok(store) => store.release(requests).await,
            Err(error) => vec![Err(error)],
        }
    }

    /// Waits for the file, too: then there is something to look at.
    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        if let Some(real) = self.real.get() {
            return real.wait(claim, since, at_most).await;
        }
        let end = SystemClock.now().after(at_most);
        while !self.path.exists() && SystemClock.now() < end {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.current().await?.inspect(query).await
    }

    async fn order(&self, command: &OperatorCommand) -> Result<CommandOutcome> {
        self.current().await?.order(command).await
    }
}

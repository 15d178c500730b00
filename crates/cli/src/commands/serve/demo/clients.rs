//! Clients that look like processes of several hosts. What a holder says of itself is for people only, so nothing else differs.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use leasehold::{
    Backend, BackendInfo, Claim, ClaimRef, Client, CommandOutcome, Cursor, Environment as _, FailureDomain,
    Holder, Lease, OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource,
    Result, System, TokenKind, Verdict, async_trait,
};

/// Makes the clients of the demonstration, and random numbers.
#[derive(Debug)]
pub(super) struct DemoClients {
    backend: Arc<dyn Backend>,
    environment: System,
}

impl DemoClients {
    pub(super) fn new(backend: Arc<dyn Backend>) -> DemoClients {
        DemoClients { backend, environment: System::current() }
    }

    /// A process of another host.
    pub(super) fn process(&self, host: &str, pid: u32, label: &str) -> Client {
        let backend = OtherHost { host: host.to_owned(), store: Arc::clone(&self.backend) };
        Client::builder(Arc::new(backend)).process_id(pid).label(label).build()
    }

    /// A process of this host.
    pub(super) fn local_process(&self, pid: u32, label: &str) -> Client {
        Client::builder(Arc::clone(&self.backend)).process_id(pid).label(label).build()
    }

    /// A random number of this range.
    pub(super) fn random(&self, range: RangeInclusive<u64>) -> u64 {
        let (least, most) = (*range.start(), *range.end());
        least + self.environment.random() % (most - least + 1)
    }

    /// One of these. `None` if there is none.
    pub(super) fn one_of<'a, T>(&self, all: &'a [T]) -> Option<&'a T> {
        let last = u64::try_from(all.len()).ok()?.checked_sub(1)?;
        all.get(usize::try_from(self.random(0..=last)).ok()?)
    }

    /// Sleeps for a random number of milliseconds.
    pub(super) async fn pause(&self, millis: RangeInclusive<u64>) {
        tokio::time::sleep(Duration::from_millis(self.random(millis))).await;
    }

    /// Works under a lease for a random number of milliseconds, or until an operator asks for it, and releases it.
    pub(super) async fn work<T: TokenKind>(&self, lease: Lease<T>, millis: RangeInclusive<u64>) {
        tokio::select! {
            () = self.pause(millis) => {}
            _ = lease.ended() => {}
            _ = asked(&lease) => {}
        }
        // A release that fails leaves the lease to its ttl.
        drop(lease.release().await);
    }
}

/// Resolves when an operator asks the holder to finish.
pub(super) async fn asked<T: TokenKind>(lease: &Lease<T>) {
    if lease.asked().await.is_none() {
        // The lease has ended without.
        std::future::pending::<()>().await;
    }
}

/// The store, as a process of another host uses it.
#[derive(Debug)]
struct OtherHost {
    host: String,
    store: Arc<dyn Backend>,
}

#[async_trait]
impl Backend for OtherHost {
    fn info(&self) -> &BackendInfo {
        self.store.info()
    }

    fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        self.store.failure_domain(resource)
    }

    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        let mut claims = claims.to_vec();
        for claim in &mut claims {
            claim.holder = Arc::new(Holder::new(&self.host, claim.holder.pid, &claim.holder.label));
        }
        self.store.acquire(&claims).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        self.store.renew(requests).await
    }

    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        self.store.release(requests).await
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        self.store.wait(claim, since, at_most).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.store.inspect(query).await
    }

    async fn order(&self, command: &OperatorCommand) -> Result<CommandOutcome> {
        self.store.order(command).await
    }
}

//! A backend that counts calls and can fail, and clients on manual time.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use leasehold::{
    Backend, BackendInfo, Claim, ClaimRef, Client, CommandOutcome, Cursor, Effect, Error, ErrorKind,
    FailureDomain, Guarantee, Memory, OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest,
    Renewal, Resource, Result, Verdict, async_trait, testing::ManualTime,
};

pub const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
pub const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The fault that the probe shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Works.
    #[default]
    None,
    /// Cannot be reached: fails without an effect.
    Unavailable,
    /// Refuses the credentials.
    Denied,
    /// Executes the request, but the reply is lost.
    LosesReplies,
    /// Never replies, and executes nothing.
    Hangs,
}

/// The memory backend, with counters and faults.
#[derive(Debug)]
pub struct Probe {
    pub memory: Memory,
    info: BackendInfo,
    fault: Mutex<Fault>,
    /// Yields before and after each verb, as with a network.
    pub yields: AtomicBool,
    pub acquires: AtomicU64,
    pub renews: AtomicU64,
    pub renewed: AtomicU64,
    pub releases: AtomicU64,
    pub waits: AtomicU64,
}

impl Probe {
    pub fn new(memory: Memory) -> Probe {
        let mut info = memory.info().clone();
        info.name = "probe";
        Probe {
            info,
            memory,
            fault: Mutex::default(),
            yields: AtomicBool::new(false),
            acquires: AtomicU64::new(0),
            renews: AtomicU64::new(0),
            renewed: AtomicU64::new(0),
            releases: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        }
    }

    pub fn with_guarantee(mut self, guarantee: Guarantee) -> Probe {
        self.info.guarantee = guarantee;
        self
    }

    pub fn with_capabilities(mut self, change: impl FnOnce(&mut leasehold::Capabilities)) -> Probe {
        change(&mut self.info.capabilities);
        self
    }

    pub fn set_fault(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    pub fn acquires_sent(&self) -> u64 {
        self.acquires.load(SeqCst)
    }

    pub fn calls(&self) -> u64 {
        [&self.acquires, &self.renews, &self.releases].iter().map(|n| n.load(SeqCst)).sum()
    }

    async fn before_verb(&self) -> Result<Fault> {
        if self.yields.load(SeqCst) {
            tokio::task::yield_now().await;
        }
        let fault = *self.fault.lock().unwrap();
        match fault {
            Fault::None | Fault::LosesReplies => Ok(fault),
            Fault::Denied => Err(Error::new(ErrorKind::Denied, "wrong password")),
            Fault::Unavailable => Err(Error::new(ErrorKind::Unavailable, "down")),
            Fault::Hangs => std::future::pending().await,
        }
    }

    async fn after_verb<T>(&self, fault: Fault, reply: Result<T>) -> Result<T> {
        if self.yields.load(SeqCst) {
            tokio::task::yield_now().await;
        }
        if fault == Fault::LosesReplies {
            return Err(Error::new(ErrorKind::Unavailable, "no reply").with_effect(Effect::Unknown));
        }
        reply
    }
}

#[async_trait]
impl Backend for Probe {
    fn info(&self) -> &BackendInfo {
        &self.info
    }
    fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        self.memory.failure_domain(resource)
    }
    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        self.acquires.fetch_add(1, SeqCst);
        match self.before_verb().await {
            Err(error) => vec![Err(error); claims.len()],
            Ok(fault) => {
                let mut replies = Vec::new();
                for reply in self.memory.acquire(claims).await {
                    replies.push(self.after_verb(fault, reply).await);
                }
                replies
            }
        }
    }
    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        self.renews.fetch_add(1, SeqCst);
        self.renewed.fetch_add(requests.len() as u64, SeqCst);
        match self.before_verb().await {
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
            Ok(fault) => {
                let mut replies = Vec::new();
                for reply in self.memory.renew(requests).await {
                    replies.push(self.after_verb(fault, reply).await);
                }
                replies
            }
        }
    }
    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        self.releases.fetch_add(1, SeqCst);
        match self.before_verb().await {
            Err(error) => vec![Err(error); requests.len()],
            Ok(fault) => {
                let mut replies = Vec::new();
                for reply in self.memory.release(requests).await {
                    replies.push(self.after_verb(fault, reply).await);
                }
                replies
            }
        }
    }
    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        self.waits.fetch_add(1, SeqCst);
        self.before_verb().await?;
        self.memory.wait(claim, since, at_most).await
    }
    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.before_verb().await?;
        self.memory.inspect(query).await
    }
    async fn order(&self, command: &OperatorCommand) -> Result<CommandOutcome> {
        let fault = self.before_verb().await?;
        let reply = self.memory.order(command).await;
        self.after_verb(fault, reply).await
    }
}

/// A backend on manual time. Each client of it stands for a process.
pub struct TestBed {
    pub time: ManualTime,
    pub probe: Arc<Probe>,
}

impl TestBed {
    pub fn new() -> TestBed {
        TestBed::with(|probe| probe)
    }

    pub fn with(change: impl FnOnce(Probe) -> Probe) -> TestBed {
        let time = ManualTime::new();
        let memory = Memory::in_environment(Arc::new(time.clone()));
        TestBed { time, probe: Arc::new(change(Probe::new(memory))) }
    }

    /// A client, as in another process.
    pub fn client(&self) -> Client {
        Client::builder(self.probe.clone()).environment(Arc::new(self.time.clone())).build()
    }

    /// Lets every ready task run.
    pub async fn settle(&self) {
        self.time.advance(Duration::ZERO).await;
    }

    pub async fn advance(&self, duration: Duration) {
        self.time.advance(duration).await;
    }

    /// Whether nothing is held or queued.
    pub async fn is_clean(&self) -> bool {
        self.settle().await;
        let page = self.probe.memory.inspect(&Query::Resources(leasehold::Listing::default())).await.unwrap();
        page.into_snapshots().is_empty()
    }
}

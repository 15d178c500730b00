//! A backend to look into and to break, and a client on manual time.
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

/// How the probe answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    #[default]
    Well,
    /// Refuses, without effect.
    Down,
    /// Refuses the credentials.
    Denies,
    /// Does it, and says that nobody knows.
    Mute,
    /// Never answers, and does nothing.
    Deaf,
}

/// The memory backend, counted and breakable.
#[derive(Debug)]
pub struct Probe {
    pub memory: Memory,
    info: BackendInfo,
    mood: Mutex<Mood>,
    /// Awaits before and after each verb, as a network does.
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
            mood: Mutex::default(),
            yields: AtomicBool::new(false),
            acquires: AtomicU64::new(0),
            renews: AtomicU64::new(0),
            renewed: AtomicU64::new(0),
            releases: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        }
    }

    pub fn promising(mut self, guarantee: Guarantee) -> Probe {
        self.info.guarantee = guarantee;
        self
    }

    pub fn without(mut self, change: impl FnOnce(&mut leasehold::Capabilities)) -> Probe {
        change(&mut self.info.capabilities);
        self
    }

    pub fn mood(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    pub fn asked(&self) -> u64 {
        self.acquires.load(SeqCst)
    }

    pub fn calls(&self) -> u64 {
        [&self.acquires, &self.renews, &self.releases].iter().map(|n| n.load(SeqCst)).sum()
    }

    async fn on_the_way(&self) -> Result<Mood> {
        if self.yields.load(SeqCst) {
            tokio::task::yield_now().await;
        }
        let mood = *self.mood.lock().unwrap();
        match mood {
            Mood::Well | Mood::Mute => Ok(mood),
            Mood::Denies => Err(Error::new(ErrorKind::Denied, "wrong password")),
            Mood::Down => Err(Error::new(ErrorKind::Unavailable, "down")),
            Mood::Deaf => std::future::pending().await,
        }
    }

    async fn on_the_way_back<T>(&self, mood: Mood, answer: Result<T>) -> Result<T> {
        if self.yields.load(SeqCst) {
            tokio::task::yield_now().await;
        }
        if mood == Mood::Mute {
            return Err(Error::new(ErrorKind::Unavailable, "no reply").with_effect(Effect::Unknown));
        }
        answer
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
    async fn acquire(&self, claim: &Claim) -> Result<Verdict> {
        self.acquires.fetch_add(1, SeqCst);
        let mood = self.on_the_way().await?;
        let answer = self.memory.acquire(claim).await;
        self.on_the_way_back(mood, answer).await
    }
    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        self.renews.fetch_add(1, SeqCst);
        self.renewed.fetch_add(held.len() as u64, SeqCst);
        match self.on_the_way().await {
            Err(error) => held.iter().map(|_| Err(error.clone())).collect(),
            Ok(mood) => {
                let mut answers = Vec::new();
                for answer in self.memory.renew(held).await {
                    answers.push(self.on_the_way_back(mood, answer).await);
                }
                answers
            }
        }
    }
    async fn release(&self, request: &ReleaseRequest) -> Result<Released> {
        self.releases.fetch_add(1, SeqCst);
        let mood = self.on_the_way().await?;
        let answer = self.memory.release(request).await;
        self.on_the_way_back(mood, answer).await
    }
    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        self.waits.fetch_add(1, SeqCst);
        self.on_the_way().await?;
        self.memory.wait(claim, since, at_most).await
    }
    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.on_the_way().await?;
        self.memory.inspect(query).await
    }
    async fn order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        let mood = self.on_the_way().await?;
        let answer = self.memory.order(order).await;
        self.on_the_way_back(mood, answer).await
    }
}

/// A backend with manual time, and clients of it as in several processes.
pub struct Stage {
    pub time: ManualTime,
    pub probe: Arc<Probe>,
}

impl Stage {
    pub fn new() -> Stage {
        Stage::with(|probe| probe)
    }

    pub fn with(change: impl FnOnce(Probe) -> Probe) -> Stage {
        let time = ManualTime::new();
        let memory = Memory::in_environment(Arc::new(time.clone()));
        Stage { time, probe: Arc::new(change(Probe::new(memory))) }
    }

    /// One more process.
    pub fn client(&self) -> Client {
        Client::builder(self.probe.clone()).environment(Arc::new(self.time.clone())).build()
    }

    /// Lets every task that is ready run.
    pub async fn settle(&self) {
        self.time.advance(Duration::ZERO).await;
    }

    pub async fn pass(&self, duration: Duration) {
        self.time.advance(duration).await;
    }

    /// What the memory still knows, when nothing should be left.
    pub async fn is_clean(&self) -> bool {
        self.settle().await;
        let page = self.probe.memory.inspect(&Query::Resources(leasehold::Listing::default())).await.unwrap();
        page.into_snapshots().is_empty()
    }
}

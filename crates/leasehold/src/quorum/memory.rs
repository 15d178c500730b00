//! A node in memory: the rule behind a mutex, and faults to try.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_core::{
    Effect, Environment, Error, ErrorKind, FencingToken, QuorumNode, RenewRequest, Resource, Result,
    WallTime, async_trait,
    quorum_node::{
        BirthMark, Health, NodePage, NodeRenewal, NodeView, UndoRequest, Vote, VoteRequest,
        node_model::NodeModel,
    },
};
use leasehold_support::race::first;
use tokio::sync::{Notify, watch};

/// A node of a [`Quorum`](crate::Quorum) in this process's memory, for tests: it can be stopped, frozen, slowed down,
/// restarted and made to forget, and its clock can be set.
pub struct MemoryNode {
    name: String,
    environment: Arc<dyn Environment>,
    model: Mutex<NodeModel>,
    faults: Mutex<Faults>,
    frozen: watch::Sender<bool>,
    changed: Notify,
    durable: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    stopped: bool,
    delay: Duration,
    clock_ahead_micros: i64,
}

impl MemoryNode {
    /// A server that just started and keeps nothing on disk.
    pub fn new(name: &str, environment: Arc<dyn Environment>) -> MemoryNode {
        MemoryNode::started(name, environment, false)
    }

    /// A server that syncs every write: a restart forgets nothing, so it votes at once.
    pub fn durable(name: &str, environment: Arc<dyn Environment>) -> MemoryNode {
        MemoryNode::started(name, environment, true)
    }

    fn started(name: &str, environment: Arc<dyn Environment>, durable: bool) -> MemoryNode {
        let model = NodeModel::new(next_run(name), environment.wall(), durable);
        MemoryNode {
            name: name.to_owned(),
            environment,
            model: Mutex::new(model),
            faults: Mutex::default(),
            frozen: watch::Sender::new(false),
            changed: Notify::new(),
            durable,
        }
    }

    /// From now on it cannot be reached.
    pub fn stop(&self) {
        self.faults().stopped = true;
    }

    /// It can be reached again; it has been running all the time.
    pub fn reach(&self) {
        self.faults().stopped = false;
    }

    /// It runs again, as another run of the server. One that is not durable has forgotten everything.
    pub fn restart(&self) {
        let now = self.now();
        let mut model = self.model();
        if !self.durable {
            model.forget();
        }
        model.restart(next_run(&self.name), now);
        self.faults().stopped = false;
    }

    /// It runs again, and what it had written last is lost: all but its mark.
    pub fn restart_cut_short(&self) {
        let now = self.now();
        let mut model = self.model();
        model.forget_all_but_the_mark();
        model.restart(next_run(&self.name), now);
        self.faults().stopped = false;
    }

    /// It forgets everything and runs on, as after a flush.
    pub fn forget(&self) {
        self.model().forget();
    }

    /// From now on it does not answer; what it is asked is executed when it [thaws](MemoryNode::thaw).
    pub fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    /// Goes on.
    pub fn thaw(&self) {
        self.frozen.send_replace(false);
    }

    /// Every answer takes this long, half of it before the request is executed.
    pub fn slow_down(&self, by: Duration) {
        self.faults().delay = by;
    }

    /// Sets its clock this much ahead of the true time, in seconds; back, if negative.
    pub fn set_clock_ahead(&self, seconds: i64) {
        self.faults().clock_ahead_micros = seconds.saturating_mul(1_000_000);
    }

    /// How many locks, registers and tombstones it has.
    pub fn stored(&self) -> (usize, usize, usize) {
        let now = self.now();
        self.model().stored(now)
    }

    fn model(&self) -> MutexGuard<'_, NodeModel> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> WallTime {
        let ahead = self.faults().clock_ahead_micros;
        WallTime::from_micros(self.environment.wall().as_micros().saturating_add_signed(ahead))
    }

    /// Executes a verb, unless a fault comes in between.
    async fn on<T>(&self, verb: impl FnOnce(&mut NodeModel, WallTime) -> T) -> Result<T> {
        let Faults { stopped, delay, .. } = *self.faults();
        if stopped {
            return Err(Error::new(ErrorKind::Unavailable, "the connection was refused"));
        }
        if !delay.is_zero() {
            self.environment.sleep(delay / 2).await;
        }
        if *self.frozen.borrow() {
            let mut frozen = self.frozen.subscribe();
            let _ = frozen.wait_for(|frozen| !frozen).await;
        }
        if self.faults().stopped {
            let lost = Error::new(ErrorKind::Unavailable, "the connection was lost");
            return Err(lost.with_effect(Effect::Unknown));
        }
        let now = self.now();
        let answer = verb(&mut self.model(), now);
        self.changed.notify_waiters();
        if !delay.is_zero() {
            self.environment.sleep(delay / 2).await;
        }
        Ok(answer)
    }
}

/// No two runs of any server have the same name.
fn next_run(name: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{name}#{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[async_trait]
impl QuorumNode for MemoryNode {
    fn name(&self) -> &str {
        &self.name
    }

    async fn health(&self) -> Result<Health> {
        self.on(|model, now| model.health(now)).await
    }

    async fn mark(&self, expected: Option<&BirthMark>, new: &BirthMark) -> Result<Option<BirthMark>> {
        self.on(|model, _| model.mark(expected, new)).await
    }

    async fn vote(&self, ballot: &VoteRequest) -> Result<Vote> {
        self.on(|model, now| model.vote(now, ballot)).await
    }

    async fn claim(&self, ballot: &VoteRequest) -> Result<Vote> {
        self.on(|model, now| model.claim(now, ballot)).await
    }

    async fn join(&self, ballot: &VoteRequest) -> Result<Vote> {
        self.on(|model, now| model.join(now, ballot)).await
    }

    async fn undo(&self, undo: &UndoRequest) -> Result<bool> {
        self.on(|model, now| model.undo(now, undo)).await
    }

    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<NodeRenewal>> {
        let all =
            self.on(|model, now| held.iter().map(|held| model.renew(now, held)).collect::<Vec<_>>()).await;
        match all {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(error) => held.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn look(&self, resource: &Resource) -> Result<NodeView> {
        self.on(|model, now| model.look(now, resource)).await
    }

    async fn walk(&self, prefix: &str, _: Option<&str>) -> Result<NodePage> {
        self.on(|model, now| model.walk(now, prefix)).await
    }

    async fn raise(&self, registers: &[(Resource, FencingToken)]) -> Result<()> {
        self.on(|model, now| registers.iter().for_each(|(resource, last)| model.raise(now, resource, *last)))
            .await
    }

    async fn listen(&self, _: &Resource, at_most: Duration) -> Result<()> {
        first(self.changed.notified(), self.environment.sleep(at_most)).await;
        Ok(())
    }
}

impl fmt::Debug for MemoryNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryNode")
            .field("name", &self.name)
            .field("faults", &*self.faults())
            .finish_non_exhaustive()
    }
}

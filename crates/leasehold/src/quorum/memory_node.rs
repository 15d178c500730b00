//! A node in memory, for tests: core's node model behind a mutex, with faults.

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

/// A node of a [`Quorum`](crate::Quorum) in this process's memory, for tests. It can be stopped, frozen, slowed down,
/// restarted and made to forget its data, and its clock can be set.
pub struct MemoryNode {
    name: String,
    environment: Arc<dyn Environment>,
    model: Mutex<NodeModel>,
    faults: Mutex<NodeFaults>,
    frozen: watch::Sender<bool>,
    changed: Notify,
    durable: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct NodeFaults {
    stopped: bool,
    delay: Duration,
    clock_ahead_micros: i64,
}

impl MemoryNode {
    /// A node like a server that has just started and keeps nothing on disk.
    pub fn new(name: &str, environment: Arc<dyn Environment>) -> MemoryNode {
        MemoryNode::started(name, environment, false)
    }

    /// A node like a server that syncs every write: a restart forgets nothing, so it votes at once.
    pub fn durable(name: &str, environment: Arc<dyn Environment>) -> MemoryNode {
        MemoryNode::started(name, environment, true)
    }

    fn started(name: &str, environment: Arc<dyn Environment>, durable: bool) -> MemoryNode {
        let model = NodeModel::new(new_run_id(name), environment.wall(), durable);
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

    /// Makes it refuse connections.
    pub fn stop(&self) {
        self.faults().stopped = true;
    }

    /// Makes it reachable again after [`stop`](MemoryNode::stop), without a restart.
    pub fn reach(&self) {
        self.faults().stopped = false;
    }

    /// Restarts it: it has another run id. A node that is not durable has forgotten everything.
    pub fn restart(&self) {
        let now = self.now();
        let mut model = self.model();
        if !self.durable {
            model.forget();
        }
        model.restart(new_run_id(&self.name), now);
        self.faults().stopped = false;
    }

    /// Restarts it with a log that was cut short: everything but its birth mark is lost.
    pub fn restart_cut_short(&self) {
        let now = self.now();
        let mut model = self.model();
        model.forget_all_but_the_mark();
        model.restart(new_run_id(&self.name), now);
        self.faults().stopped = false;
    }

    /// Deletes all of its data without a restart, as `FLUSHALL` does.
    pub fn forget(&self) {
        self.model().forget();
    }

    /// Makes it stop answering. Requests are executed when it [thaws](MemoryNode::thaw).
    pub fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    /// Makes it answer again after [`freeze`](MemoryNode::freeze).
    pub fn thaw(&self) {
        self.frozen.send_replace(false);
    }

    /// Makes every reply take this long, half of it before the request is executed.
    pub fn slow_down(&self, by: Duration) {
        self.faults().delay = by;
    }

    /// Sets its clock ahead of the true time by this many seconds; back, if negative.
    pub fn set_clock_ahead(&self, seconds: i64) {
        self.faults().clock_ahead_micros = seconds.saturating_mul(1_000_000);
    }

    /// The numbers of locks, registers and tombstones that it has.
    pub fn stored(&self) -> (usize, usize, usize) {
        let now = self.now();
        self.model().stored(now)
    }

    fn model(&self) -> MutexGuard<'_, NodeModel> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, NodeFaults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> WallTime {
        let ahead = self.faults().clock_ahead_micros;
        WallTime::from_micros(self.environment.wall().as_micros().saturating_add_signed(ahead))
    }

    /// Executes a verb with the faults that are set.
    async fn execute<T>(&self, verb: impl FnOnce(&mut NodeModel, WallTime) -> T) -> Result<T> {
        let NodeFaults { stopped, delay, .. } = *self.faults();
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
        let reply = verb(&mut self.model(), now);
        self.changed.notify_waiters();
        if !delay.is_zero() {
            self.environment.sleep(delay / 2).await;
        }
        Ok(reply)
    }
}

/// A run id that no other run has.
fn new_run_id(name: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{name}#{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[async_trait]
impl QuorumNode for MemoryNode {
    fn name(&self) -> &str {
        &self.name
    }

    async fn health(&self) -> Result<Health> {
        self.execute(|model, now| model.health(now)).await
    }

    async fn mark(&self, expected: Option<&BirthMark>, new: &BirthMark) -> Result<Option<BirthMark>> {
        self.execute(|model, _| model.mark(expected, new)).await
    }

    async fn vote(&self, request: &VoteRequest) -> Result<Vote> {
        self.execute(|model, now| model.vote(now, request)).await
    }

    async fn claim(&self, request: &VoteRequest) -> Result<Vote> {
        self.execute(|model, now| model.claim(now, request)).await
    }

    async fn join(&self, request: &VoteRequest) -> Result<Vote> {
        self.execute(|model, now| model.join(now, request)).await
    }

    async fn undo(&self, undo: &UndoRequest) -> Result<bool> {
        self.execute(|model, now| model.undo(now, undo)).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<NodeRenewal>> {
        let all = self
            .execute(|model, now| {
                requests.iter().map(|request| model.renew(now, request)).collect::<Vec<_>>()
            })
            .await;
        match all {
            Ok(replies) => replies.into_iter().map(Ok).collect(),
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn look(&self, resource: &Resource) -> Result<NodeView> {
        self.execute(|model, now| model.look(now, resource)).await
    }

    async fn walk(&self, prefix: &str, _: Option<&str>) -> Result<NodePage> {
        self.execute(|model, now| model.walk(now, prefix)).await
    }

    async fn raise(&self, registers: &[(Resource, FencingToken)]) -> Result<()> {
        self.execute(|model, now| {
            registers.iter().for_each(|(resource, last)| model.raise(now, resource, *last));
        })
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

//! What stands behind a lease in someone's hand: its times, its end, and its way back to the engine.

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_core::{
    ClaimRef, EndReason, Error, ErrorKind, EventKind, FencingToken, FinishRequest, OwnerToken,
    ReleaseRequest, Resource, Result, Share, Timestamp, WallTime,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    Engine, Terms,
    driver::Watch,
    observe::KindMetrics,
    watchdog::{Key, Times},
};
use leasehold_support::race::first;

/// One grant, from its beginning to its end.
pub(crate) struct Tenure {
    pub(crate) engine: Arc<Engine>,
    pub(crate) metrics: Arc<KindMetrics>,
    pub(crate) resource: Resource,
    pub(crate) owner: OwnerToken,
    pub(crate) share: Share,
    pub(crate) token: FencingToken,
    pub(crate) acquired: Timestamp,
    pub(crate) acquired_wall: WallTime,
    /// Some request of this owner went unanswered: bury it when it goes.
    pub(crate) uncertain: bool,
    terms: Option<Box<Terms>>,
    ttl_nanos: AtomicU64,
    deadline: AtomicU64,
    stop_at: AtomicU64,
    wall_stop_at: AtomicU64,
    progress_at: AtomicU64,
    ending: AtomicU8,
    failures: AtomicU32,
    handles: AtomicU32,
    evicting: AtomicBool,
    /// Its farewell is being said, or was.
    parted: AtomicBool,
    key: OnceLock<Key>,
    changed: Notify,
    extras: OnceLock<Box<Extras>>,
}

/// What few leases need; boxed, because a client may keep very many of the others.
#[derive(Default)]
struct Extras {
    cancellation: CancellationToken,
    asked: Mutex<Option<FinishRequest>>,
}

/// Both clocks, read before a request leaves.
///
/// A machine may be frozen while the answer is on its way. The clock that counts suspend does not show that, so the
/// calendar has to be read on this side of it, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Timestamp,
    wall: WallTime,
}

impl Engine {
    pub(crate) fn sending(&self) -> Sent {
        Sent { at: self.environment.now(), wall: self.environment.wall() }
    }
}

/// A grant as it begins.
pub(crate) struct Beginning {
    pub(crate) claim: ClaimRef,
    pub(crate) share: Share,
    pub(crate) token: FencingToken,
    pub(crate) ttl: Duration,
    pub(crate) times: Times,
    pub(crate) sent: Sent,
    pub(crate) uncertain: bool,
    pub(crate) terms: Terms,
}

impl Tenure {
    pub(crate) fn begin(engine: &Arc<Engine>, from: Beginning, now: Timestamp) -> Arc<Tenure> {
        let tenure = Tenure {
            metrics: engine.observer.metrics(&from.claim.resource),
            engine: Arc::clone(engine),
            resource: from.claim.resource,
            owner: from.claim.owner,
            share: from.share,
            token: from.token,
            acquired: from.sent.at,
            acquired_wall: from.sent.wall,
            uncertain: from.uncertain,
            terms: (!from.terms.is_plain()).then(|| Box::new(from.terms)),
            ttl_nanos: AtomicU64::new(nanos(from.ttl)),
            deadline: AtomicU64::new(0),
            stop_at: AtomicU64::new(0),
            wall_stop_at: AtomicU64::new(0),
            progress_at: AtomicU64::new(now.as_nanos()),
            ending: AtomicU8::new(0),
            failures: AtomicU32::new(0),
            handles: AtomicU32::new(1),
            evicting: AtomicBool::new(false),
            parted: AtomicBool::new(false),
            key: OnceLock::new(),
            changed: Notify::new(),
            extras: OnceLock::new(),
        };
        tenure.set_times(from.times, from.sent);
        Arc::new(tenure)
    }

    pub(crate) fn reference(&self) -> ClaimRef {
        ClaimRef { resource: self.resource.clone(), owner: self.owner }
    }

    pub(crate) fn terms(&self) -> Terms {
        self.terms.as_deref().cloned().unwrap_or_default()
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl_nanos.load(Ordering::Acquire))
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.engine.environment.now()
    }

    pub(crate) fn deadline(&self) -> Timestamp {
        Timestamp::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    pub(crate) fn stop_at(&self) -> Timestamp {
        Timestamp::from_nanos(self.stop_at.load(Ordering::Acquire))
    }

    pub(crate) fn held_for(&self) -> Duration {
        self.acquired.until(self.now())
    }

    /// What an answer says: times that count from its own send, on both clocks. None of them moves back.
    pub(crate) fn set_times(&self, times: Times, sent: Sent) {
        let wall_stop = sent.wall.after(sent.at.until(times.stop_at));
        self.deadline.fetch_max(times.deadline.as_nanos(), Ordering::AcqRel);
        self.wall_stop_at.fetch_max(wall_stop.as_micros(), Ordering::AcqRel);
        self.stop_at.fetch_max(times.stop_at.as_nanos(), Ordering::AcqRel);
    }

    pub(crate) fn set_ttl(&self, ttl: Duration) {
        self.ttl_nanos.store(nanos(ttl), Ordering::Release);
    }

    pub(crate) fn watched_as(&self, key: Key) {
        self.key.set(key).expect("a tenure is watched once");
    }

    pub(crate) fn key(&self) -> Option<Key> {
        self.key.get().copied()
    }

    /// How it ended, if it has. Computed from the clocks at this moment, never a flag that some task must have set.
    ///
    /// The calendar clock is a tripwire: a virtual machine that was frozen shows only there. A step forward costs
    /// the lease, which is safe; a step back changes nothing.
    pub(crate) fn ending(&self) -> Option<EndReason> {
        if let Some(ending) = self.latched() {
            return Some(ending);
        }
        let limit = self.limit();
        let environment = &self.engine.environment;
        let now = environment.now();
        let over = now >= self.stop_at().min(limit);
        let tripped = || environment.wall().as_micros() >= self.wall_stop_at.load(Ordering::Acquire);
        if !over && !tripped() {
            return None;
        }
        self.end(self.why_stopped(now));
        self.latched()
    }

    /// Why a lease whose time has come is stopped.
    pub(crate) fn why_stopped(&self, now: Timestamp) -> EndReason {
        let over_age = self.over_age_at();
        if self.evicting.load(Ordering::Acquire) {
            EndReason::Evicted
        } else if now >= over_age {
            EndReason::MaxHold
        } else if now >= self.limit() {
            EndReason::NoProgress
        } else {
            EndReason::Expired
        }
    }

    fn over_age_at(&self) -> Timestamp {
        let max_hold = self.terms.as_ref().and_then(|terms| terms.max_hold);
        max_hold.map_or(Timestamp::NEVER, |max| self.acquired.after(max))
    }

    /// When it is to be stopped though it could be renewed.
    pub(crate) fn limit(&self) -> Timestamp {
        let within = self.terms.as_ref().and_then(|terms| terms.progress_within);
        let last = Timestamp::from_nanos(self.progress_at.load(Ordering::Acquire));
        self.over_age_at().min(within.map_or(Timestamp::NEVER, |within| last.after(within)))
    }

    pub(crate) fn progress(&self) {
        self.progress_at.fetch_max(self.now().as_nanos(), Ordering::AcqRel);
    }

    fn latched(&self) -> Option<EndReason> {
        decode(self.ending.load(Ordering::Acquire))
    }

    /// Ends it; the first ending stands. Tells everyone who looks, and lets the local line go on. From here on nobody
    /// renews it, whoever noticed first that it is over.
    pub(crate) fn end(&self, why: EndReason) -> bool {
        let first = self.ending.compare_exchange(0, encode(why), Ordering::AcqRel, Ordering::Acquire).is_ok();
        if first {
            let watched = self.key().and_then(|key| self.engine.forget(key));
            self.changed.notify_waiters();
            if let Some(extras) = self.extras.get() {
                extras.cancellation.cancel();
            }
            if why.is_loss() {
                self.engine.observer.lost(self, why);
                self.engine.holder_left(&self.resource, self.owner);
                // Whoever looks may find the loss before the driver does.
                if let Some(Watch::Tenure(tenure)) = watched {
                    self.engine.give_up(&tenure);
                }
            }
        }
        first
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.ending().map_or(Ok(()), |ending| Err(self.lost(ending)))
    }

    pub(crate) fn lost(&self, ending: EndReason) -> Error {
        Error::new(ErrorKind::Lost, format!("the lease is over: {ending}")).on(&self.resource)
    }

    pub(crate) fn set_failures(&self, failures: u32) {
        self.failures.store(failures, Ordering::Release);
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures.load(Ordering::Acquire)
    }

    /// Notes that an operator lets it run out; true the first time.
    pub(crate) fn evicting(&self) -> bool {
        !self.evicting.swap(true, Ordering::AcqRel)
    }

    fn extras(&self) -> &Extras {
        self.extras.get_or_init(Box::default)
    }

    /// Notes what an operator asks; says so once per wish.
    pub(crate) fn ask(&self, asked: FinishRequest) {
        let mut slot = self.extras().asked.lock().unwrap_or_else(PoisonError::into_inner);
        let news = slot.as_ref().is_none_or(|old| (&old.by, &old.why) != (&asked.by, &asked.why));
        *slot = Some(asked.clone());
        drop(slot);
        if news {
            self.changed.notify_waiters();
            self.engine.observer.event(self, EventKind::Asked(asked));
        }
    }

    pub(crate) fn asked(&self) -> Option<FinishRequest> {
        let extras = self.extras.get()?;
        extras.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn cancellation(&self) -> CancellationToken {
        let token = &self.extras().cancellation;
        if self.ending().is_some() {
            token.cancel(); // the end raced with the first call
        }
        token.child_token()
    }

    /// Resolves when it has ended. Has its own timer: it does not depend on the driver being alive.
    pub(crate) async fn until_ended(self: Arc<Tenure>) -> EndReason {
        self.until(|tenure| tenure.ending()).await
    }

    /// Resolves when an operator has asked for it, or when it has ended.
    pub(crate) async fn until_asked(self: Arc<Tenure>) -> Option<FinishRequest> {
        self.until(|tenure| match tenure.asked() {
            None => tenure.ending().map(|_| None),
            asked => Some(asked),
        })
        .await
    }

    async fn until<T>(&self, look: impl Fn(&Tenure) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable(); // before looking: a change in between is not missed
            if let Some(found) = look(self) {
                return found;
            }
            let left = self.now().until(self.stop_at().min(self.limit()));
            first(changed, self.engine.environment.sleep(left)).await;
        }
    }

    /// One more handle of the same tenure, unless the last is gone.
    pub(crate) fn enter_again(self: &Arc<Tenure>) -> Option<Handle> {
        let more = |handles: u32| (handles > 0).then_some(handles + 1);
        self.handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        let handle = Handle(Arc::clone(self));
        handle.0.check().is_ok().then_some(handle)
    }

    pub(crate) fn handles(&self) -> u32 {
        self.handles.load(Ordering::Acquire)
    }

    /// How long the resource is to stay closed after a release now.
    pub(crate) fn keep_for(&self, at_least: Option<Duration>) -> Option<Duration> {
        at_least.map(|least| least.saturating_sub(self.held_for())).filter(|keep_for| !keep_for.is_zero())
    }

    /// What is said when the first farewell went unanswered: the same, and a burial.
    pub(crate) fn repeated_farewell(&self, at_least: Option<Duration>) -> ReleaseRequest {
        let mut request =
            ReleaseRequest::new(self.reference()).with_tombstone(ReleaseRequest::tombstone_ttl(self.ttl()));
        request.keep_for = self.keep_for(at_least);
        request
    }

    /// Claims the right to say farewell; false if that has been done.
    pub(crate) fn part(&self) -> bool {
        !self.parted.swap(true, Ordering::AcqRel)
    }
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenure")
            .field("resource", &self.resource)
            .field("owner", &self.owner)
            .field("token", &self.token)
            .field("ending", &self.latched())
            .finish_non_exhaustive()
    }
}

/// Keeps a tenure going; when the last handle is dropped, the reaper gives it back.
#[derive(Debug)]
pub(crate) struct Handle(Arc<Tenure>);

impl Handle {
    pub(crate) fn of(tenure: Arc<Tenure>) -> Handle {
        Handle(tenure)
    }

    pub(crate) fn tenure(&self) -> &Arc<Tenure> {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.engine.dropped(&self.0);
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

const ENDINGS: [EndReason; 7] = [
    EndReason::Released,
    EndReason::Detached,
    EndReason::Expired,
    EndReason::NotOurs,
    EndReason::Evicted,
    EndReason::MaxHold,
    EndReason::NoProgress,
];

fn encode(ending: EndReason) -> u8 {
    let at = ENDINGS.iter().position(|&e| e == ending).expect("every ending is listed");
    u8::try_from(at + 1).expect("there are few endings")
}

fn decode(code: u8) -> Option<EndReason> {
    code.checked_sub(1).map(|at| ENDINGS[usize::from(at)])
}

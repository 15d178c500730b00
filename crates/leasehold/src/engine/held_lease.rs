//! A granted lease: its times, how it ended, and how it is released.
//!
//! 1. [`Engine::start_lease`] makes a [`HeldLease`] of a grant, and has the watchdog keep it alive.
//! 2. Whether it still holds is computed from the clocks each time somebody asks ([`HeldLease::end_reason`]). It is never
//!    a flag that some task must have set in time (ADR 0005).
//! 3. The first end that anybody notices is recorded, and never changes again ([`HeldLease::end`]). From then on it is
//!    not renewed, every view reports it, and the next waiter of the local queue goes on.
//! 4. Callers have [`LeaseHandle`]s. When the last handle is dropped, the lease is released in the background.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_core::{
    ClaimRef, EndReason, Error, ErrorKind, EventKind, FencingToken, FinishRequest, Holder, OwnerToken,
    ReleaseRequest, Resource, Result, Share, Timestamp, WallTime,
};
use leasehold_support::race::first;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    Engine, LeaseOptions,
    driver::WatchedClaim,
    telemetry::KindMetrics,
    times::{LeaseTimes, PublishedTimes, SendTime},
    watchdog::{ToWatch, WatchKey},
};

/// One grant, from its start to its end.
pub(crate) struct HeldLease {
    pub(crate) engine: Arc<Engine>,
    pub(crate) metrics: Arc<KindMetrics>,
    pub(crate) resource: Resource,
    pub(crate) owner: OwnerToken,
    /// The process and label of this client, as the backend knows them.
    pub(crate) holder: Arc<Holder>,
    pub(crate) share: Share,
    pub(crate) token: FencingToken,
    pub(crate) acquired: Timestamp,
    pub(crate) acquired_wall: WallTime,
    /// A request of this owner went unanswered and may be executed late. Its release must leave a tombstone (ADR 0004).
    pub(crate) needs_tombstone: bool,
    options: Option<Box<LeaseOptions>>,
    ttl_nanos: AtomicU64,
    times: PublishedTimes,
    progress_at: AtomicU64,
    /// 0 while it holds; otherwise the code of its [`EndReason`].
    ended: AtomicU8,
    failures: AtomicU32,
    handles: AtomicU32,
    evicting: AtomicBool,
    /// Somebody has begun to release it, or it was detached or downgraded.
    release_started: AtomicBool,
    watch_key: OnceLock<WatchKey>,
    changed: Notify,
    extras: OnceLock<Box<LeaseExtras>>,
}

/// What only few leases need. Boxed, because a client may keep very many leases.
#[derive(Default)]
struct LeaseExtras {
    cancellation: CancellationToken,
    /// More tokens to cancel when it ends: those of the sets that it is in.
    linked: Mutex<Vec<CancellationToken>>,
    finish_request: Mutex<Option<FinishRequest>>,
}

impl LeaseExtras {
    fn linked(&self) -> MutexGuard<'_, Vec<CancellationToken>> {
        self.linked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a [`HeldLease`] is made of: a grant, or a detached lease that was renewed.
pub(crate) struct LeaseStart {
    pub(crate) claim: ClaimRef,
    pub(crate) holder: Arc<Holder>,
    pub(crate) share: Share,
    pub(crate) token: FencingToken,
    pub(crate) ttl: Duration,
    /// What was left of it when the backend executed the request.
    pub(crate) remaining: Duration,
    pub(crate) sent: SendTime,
    pub(crate) needs_tombstone: bool,
    pub(crate) options: LeaseOptions,
}

impl Engine {
    /// The send time of a request that is sent now.
    pub(crate) fn send_time(&self) -> SendTime {
        SendTime::now(&*self.environment)
    }

    /// Makes a lease and keeps it alive. `None` if the reply came so late that the holder would have to stop at once.
    pub(crate) fn start_lease(self: &Arc<Engine>, start: LeaseStart, now: Timestamp) -> Option<LeaseHandle> {
        let times = LeaseTimes::of(start.sent.at, start.remaining, start.ttl);
        if now >= times.stop_at {
            return None;
        }
        let (ttl, renews) = (start.ttl, !start.options.fixed);
        let lease = HeldLease::new(self, start, times, now);
        let handle = WatchedClaim::Lease(Arc::clone(&lease));
        lease.set_watch_key(self.watch(ToWatch { handle, times, ttl, renews }, now));
        Some(LeaseHandle(lease))
    }
}

impl HeldLease {
    fn new(engine: &Arc<Engine>, start: LeaseStart, times: LeaseTimes, now: Timestamp) -> Arc<HeldLease> {
        let lease = HeldLease {
            metrics: engine.telemetry.metrics(&start.claim.resource),
            engine: Arc::clone(engine),
            resource: start.claim.resource,
            owner: start.claim.owner,
            holder: start.holder,
            share: start.share,
            token: start.token,
            // From before the backend granted it, like all times of a lease: see `times.rs`.
            acquired: start.sent.at,
            acquired_wall: start.sent.wall,
            needs_tombstone: start.needs_tombstone,
            options: (!start.options.is_default()).then(|| Box::new(start.options)),
            ttl_nanos: AtomicU64::new(nanos(start.ttl)),
            times: PublishedTimes::default(),
            progress_at: AtomicU64::new(now.as_nanos()),
            ended: AtomicU8::new(0),
            failures: AtomicU32::new(0),
            handles: AtomicU32::new(1),
            evicting: AtomicBool::new(false),
            release_started: AtomicBool::new(false),
            watch_key: OnceLock::new(),
            changed: Notify::new(),
            extras: OnceLock::new(),
        };
        lease.set_times(times, start.sent);
        Arc::new(lease)
    }

    pub(crate) fn reference(&self) -> ClaimRef {
        ClaimRef { resource: self.resource.clone(), owner: self.owner }
    }

    pub(crate) fn options(&self) -> LeaseOptions {
        self.options.as_deref().cloned().unwrap_or_default()
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl_nanos.load(Ordering::Acquire))
    }

    pub(crate) fn set_ttl(&self, ttl: Duration) {
        self.ttl_nanos.store(nanos(ttl), Ordering::Release);
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.engine.environment.now()
    }

    pub(crate) fn deadline(&self) -> Timestamp {
        self.times.deadline()
    }

    pub(crate) fn stop_at(&self) -> Timestamp {
        self.times.stop_at()
    }

    pub(crate) fn set_times(&self, times: LeaseTimes, sent: SendTime) {
        self.times.publish(times, sent);
    }

    pub(crate) fn held_for(&self) -> Duration {
        self.acquired.until(self.now())
    }

    fn set_watch_key(&self, key: WatchKey) {
        self.watch_key.set(key).expect("a lease is watched once");
    }

    pub(crate) fn watch_key(&self) -> Option<WatchKey> {
        self.watch_key.get().copied()
    }

    pub(crate) fn set_failures(&self, failures: u32) {
        self.failures.store(failures, Ordering::Release);
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures.load(Ordering::Acquire)
    }

    pub(crate) fn progress(&self) {
        self.progress_at.fetch_max(self.now().as_nanos(), Ordering::AcqRel);
    }

    /// How long the resource must stay closed after a release now.
    pub(crate) fn keep_for(&self, at_least: Option<Duration>) -> Option<Duration> {
        at_least.map(|least| least.saturating_sub(self.held_for())).filter(|keep_for| !keep_for.is_zero())
    }

    /// The tombstone that a release has to leave, if a request of this owner may be executed late.
    pub(crate) fn tombstone(&self) -> Option<Duration> {
        self.needs_tombstone.then(|| ReleaseRequest::tombstone_ttl(self.ttl()))
    }

    /// The request to repeat when the first release went unanswered. It always leaves a tombstone (ADR 0004).
    pub(crate) fn repeated_release(&self, at_least: Option<Duration>) -> ReleaseRequest {
        let mut request =
            ReleaseRequest::new(self.reference()).with_tombstone(ReleaseRequest::tombstone_ttl(self.ttl()));
        request.keep_for = self.keep_for(at_least);
        request
    }

    /// Claims the right to release it. False if somebody else has claimed it.
    pub(crate) fn begin_release(&self) -> bool {
        !self.release_started.swap(true, Ordering::AcqRel)
    }
}

/// How it ends.
impl HeldLease {
    /// How it ended, if it has, by the clocks at this moment.
    ///
    /// The calendar clock is read too, because only it shows that a virtual machine was frozen. If it is set forward,
    /// the lease is lost, which is safe. If it is set back, nothing changes.
    pub(crate) fn end_reason(&self) -> Option<EndReason> {
        if let Some(reason) = self.recorded_end() {
            return Some(reason);
        }
        let limit = self.hard_limit();
        let environment = &self.engine.environment;
        let now = environment.now();
        let over = now >= self.stop_at().min(limit);
        if !over && !self.times.is_stopped_by_wall(environment.wall()) {
            return None;
        }
        self.end(self.stop_reason(now));
        self.recorded_end()
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.end_reason().map_or(Ok(()), |reason| Err(self.lost(reason)))
    }

    pub(crate) fn lost(&self, reason: EndReason) -> Error {
        let message = format!("the lease is over: {reason}");
        Error::new(ErrorKind::Lost, message).with_ending(reason).on(&self.resource)
    }

    /// Why a lease is stopped whose time has come.
    pub(crate) fn stop_reason(&self, now: Timestamp) -> EndReason {
        if self.evicting.load(Ordering::Acquire) {
            EndReason::Evicted
        } else if now >= self.max_hold_at() {
            EndReason::MaxHold
        } else if now >= self.hard_limit() {
            EndReason::NoProgress
        } else {
            EndReason::Expired
        }
    }

    fn max_hold_at(&self) -> Timestamp {
        let max_hold = self.options.as_ref().and_then(|options| options.max_hold);
        max_hold.map_or(Timestamp::NEVER, |max| self.acquired.after(max))
    }

    /// When it must stop although it could be renewed: `max_hold` has passed, or there was no progress.
    pub(crate) fn hard_limit(&self) -> Timestamp {
        let within = self.options.as_ref().and_then(|options| options.progress_within);
        let last = Timestamp::from_nanos(self.progress_at.load(Ordering::Acquire));
        self.max_hold_at().min(within.map_or(Timestamp::NEVER, |within| last.after(within)))
    }

    fn recorded_end(&self) -> Option<EndReason> {
        decode(self.ended.load(Ordering::Acquire))
    }

    /// Ends it. The first end is recorded; false if it had ended before.
    ///
    /// From here on nobody renews it, its views report the end, and the local queue goes on.
    pub(crate) fn end(&self, reason: EndReason) -> bool {
        // Several tasks may notice an end at the same time. Only the first one acts on it.
        let first =
            self.ended.compare_exchange(0, encode(reason), Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !first {
            return false;
        }
        let watched = self.watch_key().and_then(|key| self.engine.forget(key));
        self.changed.notify_waiters();
        if let Some(extras) = self.extras.get() {
            extras.cancellation.cancel();
            extras.linked().drain(..).for_each(|token| token.cancel());
        }
        if reason.is_loss() {
            self.engine.telemetry.lost(self, reason);
            self.engine.promote_after(self);
            // A caller's `check` may notice the loss before the driver does. Then the lease is still watched, and the
            // driver will not stop it.
            if let Some(WatchedClaim::Lease(lease)) = watched {
                self.engine.release_at_deadline(&lease);
            }
        }
        true
    }

    fn extras(&self) -> &LeaseExtras {
        self.extras.get_or_init(Box::default)
    }

    pub(crate) fn cancellation(&self) -> CancellationToken {
        let token = &self.extras().cancellation;
        if self.end_reason().is_some() {
            token.cancel(); // it may have ended just before the token was made
        }
        token.child_token()
    }

    /// Cancels this token when it has ended.
    pub(crate) fn cancel_when_ended(&self, token: CancellationToken) {
        self.extras().linked().push(token);
        if self.recorded_end().is_some() {
            // It may have ended just before the token was added.
            self.extras().linked().drain(..).for_each(|token| token.cancel());
        }
    }

    /// Resolves when it has ended. Has its own timer, so it does not depend on the driver task.
    pub(crate) async fn until_ended(self: Arc<HeldLease>) -> EndReason {
        self.until(|lease| lease.end_reason()).await
    }

    async fn until<T>(&self, look: impl Fn(&HeldLease) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable(); // before looking, so that a change in between is not missed
            if let Some(found) = look(self) {
                return found;
            }
            let left = self.now().until(self.stop_at().min(self.hard_limit()));
            first(changed, self.engine.environment.sleep(left)).await;
        }
    }
}

/// What an operator wants of it.
impl HeldLease {
    /// Records that an operator evicts it. True the first time.
    pub(crate) fn mark_evicting(&self) -> bool {
        !self.evicting.swap(true, Ordering::AcqRel)
    }

    /// Records that an operator asks the holder to finish. Each different request is reported once.
    pub(crate) fn set_finish_request(&self, request: FinishRequest) {
        let mut slot = self.extras().finish_request.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = slot.as_ref().is_none_or(|old| (&old.by, &old.why) != (&request.by, &request.why));
        *slot = Some(request.clone());
        drop(slot);
        if is_new {
            self.changed.notify_waiters();
            self.engine.telemetry.event(self, EventKind::Asked(request));
        }
    }

    fn finish_request(&self) -> Option<FinishRequest> {
        let extras = self.extras.get()?;
        extras.finish_request.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Resolves when an operator has asked the holder to finish; with `None` when the lease has ended.
    pub(crate) async fn until_finish_requested(self: Arc<HeldLease>) -> Option<FinishRequest> {
        self.until(|lease| match lease.finish_request() {
            None => lease.end_reason().map(|_| None),
            request => Some(request),
        })
        .await
    }
}

impl fmt::Debug for HeldLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldLease")
            .field("resource", &self.resource)
            .field("owner", &self.owner)
            .field("token", &self.token)
            .field("ended", &self.recorded_end())
            .finish_non_exhaustive()
    }
}

/// A caller's hold on a [`HeldLease`]. When the last handle is dropped, the lease is released in the background.
#[derive(Debug)]
pub(crate) struct LeaseHandle(Arc<HeldLease>);

impl LeaseHandle {
    pub(crate) fn lease(&self) -> &Arc<HeldLease> {
        &self.0
    }
}

impl HeldLease {
    pub(crate) fn handles(&self) -> u32 {
        self.handles.load(Ordering::Acquire)
    }

    /// One more handle of the same lease; `None` if the last handle is gone or the lease has ended.
    pub(crate) fn another_handle(self: &Arc<HeldLease>) -> Option<LeaseHandle> {
        let one_more = |handles: u32| (handles > 0).then_some(handles + 1);
        self.handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        let handle = LeaseHandle(Arc::clone(self));
        handle.0.check().is_ok().then_some(handle)
    }
}

impl Drop for LeaseHandle {
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.engine.release_dropped(&self.0);
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The code of an end reason is its position here, plus one.
const END_REASONS: [EndReason; 7] = [
    EndReason::Released,
    EndReason::Detached,
    EndReason::Expired,
    EndReason::NotOurs,
    EndReason::Evicted,
    EndReason::MaxHold,
    EndReason::NoProgress,
];

fn encode(reason: EndReason) -> u8 {
    let at = END_REASONS.iter().position(|&listed| listed == reason).expect("every end reason is listed");
    u8::try_from(at + 1).expect("there are few end reasons")
}

fn decode(code: u8) -> Option<EndReason> {
    code.checked_sub(1).map(|at| END_REASONS[usize::from(at)])
}

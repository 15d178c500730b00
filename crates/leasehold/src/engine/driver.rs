//! The one task of a client: does what the watchdog says. It never awaits a backend itself, so nothing that hangs
//! can hold up a renewal, a loss or a release.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold_core::{
    Claim, ClaimRef, Effect, EndReason, Environment, Error, ErrorKind, EventKind, FailureDomain, GoneReason,
    RenewRequest, Renewal, Renewed, Result, Timestamp, Verb,
};
use tokio::sync::{Notify, mpsc};

use super::{
    Engine,
    reaper::Errand,
    tenure::{Sent, Tenure},
    watchdog::{self, Action, Key, Times, Watched},
};
use leasehold_support::race::{Either, first};

/// What is kept alive.
#[derive(Clone, Debug)]
pub(crate) enum Watch {
    Tenure(Arc<Tenure>),
    Place(Arc<Place>),
}

impl Watched for Watch {
    fn limit(&self) -> Timestamp {
        match self {
            Watch::Tenure(tenure) => tenure.limit(),
            Watch::Place(_) => Timestamp::NEVER,
        }
    }
}

/// A place in a line.
#[derive(Debug)]
pub(crate) struct Place {
    claim: ClaimRef,
    gone: AtomicBool,
    bell: Notify,
}

impl Place {
    fn lose(&self) {
        self.gone.store(true, Ordering::Release);
        self.bell.notify_one();
    }
}

/// Keeps a place alive while it lives.
pub(crate) struct PlaceKeeper<'a> {
    engine: &'a Engine,
    place: Arc<Place>,
    key: Key,
}

impl<'a> PlaceKeeper<'a> {
    pub(crate) fn keep(engine: &'a Engine, claim: &Claim, asked: Timestamp) -> PlaceKeeper<'a> {
        let place = Place { claim: claim.reference(), gone: AtomicBool::new(false), bell: Notify::new() };
        let place = Arc::new(place);
        let times = Times::of(asked, claim.place_ttl, claim.place_ttl);
        let random = engine.environment.random();
        let handle = Watch::Place(Arc::clone(&place));
        let (key, wake) = engine.watchdog().watch(handle, times, claim.place_ttl, true, random);
        if wake {
            engine.nudge.notify_one();
        }
        PlaceKeeper { engine, place, key }
    }

    /// Resolves when the backend says that the place is gone.
    pub(crate) async fn lost(&self) {
        while !self.place.gone.load(Ordering::Acquire) {
            self.place.bell.notified().await;
        }
    }
}

impl Drop for PlaceKeeper<'_> {
    fn drop(&mut self) {
        let handle = self.engine.watchdog().forget(self.key);
        drop(handle); // outside of the lock
    }
}

/// How often the driver looks up when there is nothing to keep.
const IDLE_LOOK_UP: Duration = Duration::from_secs(60);
/// How many events are taken from the watchdog at once.
const STEP: usize = 10_000;

/// Runs until the client and its last lease are gone.
pub(super) async fn drive(
    engine: Weak<Engine>,
    environment: Arc<dyn Environment>,
    nudge: Arc<Notify>,
    mut errands: mpsc::UnboundedReceiver<Errand>,
) {
    loop {
        let nap = {
            let Some(engine) = engine.upgrade() else { return };
            let now = environment.now();
            let next = engine.step(now);
            // Asleep, the driver holds nothing that keeps the client alive. Timers stop during suspend, this clock
            // does not: while there is anything to keep, it looks up every second.
            let look_up = if next == Timestamp::NEVER { IDLE_LOOK_UP } else { watchdog::LOOK_UP };
            now.until(next).min(look_up)
        };
        match first(errands.recv(), first(nudge.notified(), environment.sleep(nap))).await {
            Either::Left(None) => return,
            Either::Left(Some(errand)) => Engine::run_errand(errand),
            Either::Right(_) => {}
        }
    }
}

/// Leases of one lane and of similar ttl are renewed in one call: they fail together, and they may wait as long.
type Batches = BTreeMap<(FailureDomain, u32), Vec<(Key, Watch, Duration)>>;

impl Engine {
    fn step(self: &Arc<Engine>, now: Timestamp) -> Timestamp {
        let mut actions = Vec::new();
        let next = self.watchdog().step(now, STEP, &mut actions);
        let more = actions.len() == STEP;
        let mut batches = Batches::new();
        for action in actions {
            match action {
                Action::Stop(Watch::Place(place)) => place.lose(),
                Action::Stop(Watch::Tenure(tenure)) => self.stop(&tenure, now),
                Action::Renew(key, watch, ttl) => {
                    let failure_domain = self.backend.failure_domain(&watch.claim().resource);
                    let magnitude = ttl.as_millis().max(1).ilog2();
                    batches.entry((failure_domain, magnitude)).or_default().push((key, watch, ttl));
                }
            }
        }
        let most = self.backend.info().limits.batch.max(1);
        for mut batch in batches.into_values() {
            while !batch.is_empty() {
                let rest = batch.split_off(batch.len().min(most));
                let part = std::mem::replace(&mut batch, rest);
                self.environment.spawn(Box::pin(Arc::clone(self).renew(part)));
            }
        }
        if more { now } else { next }
    }

    /// First told, then no longer renewed. Where a session would keep it alive, it is given up at its deadline.
    fn stop(self: &Arc<Engine>, tenure: &Arc<Tenure>, now: Timestamp) {
        tenure.end(tenure.why_stopped(now));
        self.give_up(tenure);
    }

    /// Where a session would keep it alive, a lost lease is given up at its deadline.
    pub(crate) fn give_up(self: &Arc<Engine>, tenure: &Arc<Tenure>) {
        if self.backend.info().capabilities.own_ttl {
            return;
        }
        let (engine, tenure) = (Arc::clone(self), Arc::clone(tenure));
        self.environment.spawn(Box::pin(async move {
            // Made in here: whoever found the loss may be outside of the runtime.
            let left = engine.environment.now().until(tenure.deadline());
            engine.environment.sleep(left).await;
            engine.dropped(&tenure);
        }));
    }

    async fn renew(self: Arc<Engine>, batch: Vec<(Key, Watch, Duration)>) {
        let shortest = batch.iter().map(|(_, _, ttl)| *ttl).min().unwrap_or_default();
        let held: Vec<_> =
            batch.iter().map(|(_, watch, ttl)| RenewRequest::new(watch.claim(), *ttl)).collect();
        let sent = self.sending();
        let request = async { Ok(self.backend.renew(&held).await) };
        let at_most = shortest * 3 / 10; // below a third, so that a failed one is tried again in time
        let answers = self.call(Verb::Renew, None, at_most, request).await;
        let failed = |error: &Error| batch.iter().map(|_| Err(error.clone())).collect();
        let answers: Vec<Result<Renewal>> = answers.unwrap_or_else(|error| failed(&error));
        debug_assert_eq!(answers.len(), batch.len(), "one answer each");
        for ((key, watch, _), answer) in batch.into_iter().zip(answers) {
            match watch {
                Watch::Tenure(tenure) => self.tenure_answered(key, &tenure, sent, answer),
                Watch::Place(place) => self.place_answered(key, &place, sent.at, &answer),
            }
        }
    }

    /// One renewal by itself, for a caller who waits for the answer.
    pub(crate) async fn renew_one(&self, held: RenewRequest, at_most: Duration) -> Result<Renewal> {
        let held = [held];
        let request = async {
            let missing =
                || Error::new(ErrorKind::Corrupt, "no answer in the batch").with_effect(Effect::Unknown);
            self.backend.renew(&held).await.pop().unwrap_or_else(|| Err(missing()))
        };
        self.call(Verb::Renew, Some(&held[0].resource), at_most, request).await
    }

    fn tenure_answered(&self, key: Key, tenure: &Tenure, sent: Sent, answer: Result<Renewal>) {
        match answer {
            Ok(Renewal::Renewed(kept)) => self.kept(key, tenure, sent, kept),
            Ok(Renewal::Gone { why }) => {
                drop(self.forget(key));
                tenure.end(if why == GoneReason::Evicted { EndReason::Evicted } else { EndReason::NotOurs });
            }
            Ok(Renewal::Queued { .. }) => {
                drop(self.forget(key));
                tenure.end(EndReason::NotOurs);
            }
            Err(error) => self.renewal_failed(key, tenure, error.kind()),
        }
    }

    /// A caller extended this tenure: from now on it is renewed for this long.
    pub(crate) fn extended(&self, key: Key, tenure: &Tenure, ttl: Duration) {
        self.watchdog().set_ttl(key, ttl);
        tenure.set_ttl(ttl);
    }

    /// The answer to a renewal of this tenure, by the watchdog or by a caller who extends.
    pub(crate) fn kept(&self, key: Key, tenure: &Tenure, sent: Sent, kept: Renewed) {
        let now = self.environment.now();
        let margin = now.until(tenure.stop_at());
        let late = tenure.stop_at().before(tenure.ttl() / 3) < sent.at; // half of the ttl had passed
        let random = self.environment.random();
        let Some((_, wake)) = self.watchdog().renewed(key, sent.at, kept.remaining, random) else {
            return;
        };
        if wake {
            self.nudge.notify_one();
        }
        tenure.set_times(Times::of(sent.at, kept.remaining, tenure.ttl()), sent);
        tenure.set_failures(0);
        self.observer.renewed(tenure, margin, late);
        self.heed(tenure, kept);
    }

    /// What an operator wants of this tenure.
    pub(crate) fn heed(&self, tenure: &Tenure, kept: Renewed) {
        if let Some(asked) = kept.asked {
            tenure.ask(asked);
        }
        if kept.evicting && tenure.evicting() {
            if let Some(key) = tenure.key() {
                self.watchdog().let_run_out(key);
            }
            self.observer.event(tenure, EventKind::Evicting);
        }
    }

    fn renewal_failed(&self, key: Key, tenure: &Tenure, error: ErrorKind) {
        let (now, random) = (self.environment.now(), self.environment.random());
        let Some((failures, wake)) = self.watchdog().failed(key, now, random) else { return };
        if wake {
            self.nudge.notify_one();
        }
        tenure.set_failures(failures);
        self.observer.renewal_failed(tenure, error, failures, now.until(tenure.stop_at()));
    }

    fn place_answered(&self, key: Key, place: &Place, sent: Timestamp, answer: &Result<Renewal>) {
        let (now, random) = (self.environment.now(), self.environment.random());
        let wake = match answer {
            // It was granted, and that answer was lost: asking again returns the grant.
            Ok(Renewal::Gone { .. } | Renewal::Renewed(_)) => {
                drop(self.forget(key));
                place.lose();
                false
            }
            Ok(Renewal::Queued { remaining }) => {
                self.watchdog().renewed(key, sent, *remaining, random).is_some_and(|(_, wake)| wake)
            }
            Err(_) => self.watchdog().failed(key, now, random).is_some_and(|(_, wake)| wake),
        };
        if wake {
            self.nudge.notify_one();
        }
    }

    /// Stops watching; the handle is returned so that it is dropped outside of the lock.
    pub(crate) fn forget(&self, key: Key) -> Option<Watch> {
        self.watchdog().forget(key)
    }
}

impl Watch {
    fn claim(&self) -> ClaimRef {
        match self {
            Watch::Tenure(tenure) => tenure.reference(),
            Watch::Place(place) => place.claim.clone(),
        }
    }
}

//! Runs one random case on the backend and on the model.
//!
//! For each step:
//! 1. With a real clock, wait until nothing is about to expire, because the two sides could disagree on the
//!    moment.
//! 2. Make the call on the backend.
//! 3. Give up the case without a result if something may have expired during the call.
//! 4. Make the same call on the model, at the time at which the backend replied, and compare the replies.
//! 5. If the store grants by itself, acquire on behalf of every claim that it has granted, so that the model
//!    grants it, too.

mod acquire;
mod changes;
mod inspect;

use std::{collections::BTreeMap, future::Future, time::Duration};

use leasehold_core::{Backend, Capabilities, ClaimRef, OwnerToken, Timestamp, admission::ANSWER_WITHIN};

use super::{
    compare::ReplyComparison,
    model_state::ModelState,
    steps::{AcquireStep, CaseStep, ClaimKey, RandomCase, ShareFamily},
};
use crate::target::BackendUnderTest;

/// How far a call stays away from the time at which something expires, with a real clock.
const EXPIRY_MARGIN: Duration = Duration::from_millis(120);

/// Runs the case. If the two sides differ, returns the calls and the difference.
pub(super) async fn run(target: &BackendUnderTest, case: &RandomCase) -> Result<(), String> {
    let mut run = CaseRun::new(target, case.family);
    for step in &case.steps {
        let outcome = match run.step(step).await {
            Ok(Some(())) => run.acquire_granted_waiters().await,
            other => other,
        };
        match outcome {
            Ok(Some(())) => {}
            // A slow call came too close to an expiry, so the two sides may differ.
            Ok(None) => return Ok(()),
            Err(difference) => {
                run.trace.push(difference);
                return Err(run.trace.join("\n   "));
            }
        }
    }
    Ok(())
}

struct CaseRun<'a> {
    target: &'a BackendUnderTest,
    has: Capabilities,
    family: ShareFamily,
    state: ModelState,
    slowest_call: Duration,
    /// The calls so far, for a report.
    trace: Vec<String>,
    /// For each queued claim, by the index of its resource and its owner, the acquire with which it joined
    /// the queue.
    queued: BTreeMap<(usize, OwnerToken), AcquireStep>,
}

/// When a call ran. With a real clock the model is called with the later time.
#[derive(Clone, Copy)]
struct CallTimes {
    began: Timestamp,
    ended: Timestamp,
}

/// The outcome of a step: `Ok(None)` if the replies cannot be compared, an error if they differ.
type StepOutcome = Result<Option<()>, String>;

impl<'a> CaseRun<'a> {
    fn new(target: &'a BackendUnderTest, family: ShareFamily) -> CaseRun<'a> {
        let has = target.backend().info().capabilities;
        let family = if has.shares { family } else { ShareFamily::Mutex };
        let trace = vec![format!("used as {family:?}")];
        CaseRun {
            target,
            has,
            family,
            state: ModelState::new(has.passes_over),
            slowest_call: Duration::ZERO,
            trace,
            queued: BTreeMap::new(),
        }
    }

    async fn step(&mut self, step: &CaseStep) -> StepOutcome {
        match step {
            CaseStep::Acquire(batch) => self.acquire_all(batch).await,
            CaseStep::Renew { batch, second } => self.renew(batch, *second).await,
            CaseStep::Release { batch, second } => self.release_all(batch, *second).await,
            CaseStep::Order { resource, target, kind, second } if self.has.orders => {
                self.order(*resource, *target, *kind, *second).await
            }
            CaseStep::Inspect { resource } => self.inspect(*resource).await,
            CaseStep::List { limit } => self.list(*limit).await,
            CaseStep::Audit { limit } if self.has.orders => self.audit(*limit).await,
            CaseStep::Pass(time) => {
                let duration = time.duration(self.target);
                self.trace.push(format!("{duration:?} pass"));
                self.target.pass(duration).await;
                Ok(Some(()))
            }
            CaseStep::Order { .. } | CaseStep::Audit { .. } => Ok(Some(())),
        }
    }

    /// Makes a call away from every time at which something expires. The times are `None` if that did not
    /// succeed.
    async fn call<T>(&mut self, call: impl Future<Output = T>) -> (T, Option<CallTimes>) {
        let exact = self.target.is_exact();
        if !exact {
            while let Some(clear) = self.state.expiry_times.clear_from(self.target.now(), EXPIRY_MARGIN) {
                let wait = self.target.now().until(clear) + Duration::from_millis(1);
                self.target.pass(wait).await;
            }
        }
        let began = self.target.now();
        let reply = call.await;
        let times = CallTimes { began, ended: self.target.now() };
        self.slowest_call = self.slowest_call.max(began.until(times.ended));
        let touched = !exact && self.state.expiry_times.touches(began, times.ended, self.target.slack());
        (reply, (!touched).then_some(times))
    }

    fn comparison(&self) -> ReplyComparison {
        // A grant that may expire late may also report that much more remaining time.
        let real = self.slowest_call + self.target.slack() + self.target.expiry_grace();
        ReplyComparison {
            tolerance: if self.target.is_exact() { Duration::ZERO } else { real },
            own_ttl: self.has.own_ttl,
            self_granting: self.has.self_granting,
            unsettled: false,
        }
    }

    /// Notes that a queued claim was heard, or that the call may have called queued claims: both count for a second.
    fn add_silence(&mut self, times: CallTimes, at: usize) {
        if self.has.passes_over && self.state.models[at].queue_length() > 0 {
            self.add_expiry(times, ANSWER_WITHIN);
        }
    }

    /// Notes that the call may have started a ttl of this length.
    fn add_expiry(&mut self, times: CallTimes, ttl: Duration) {
        self.state.expiry_times.add(times.began, times.ended, ttl, self.target.expiry_grace());
    }

    /// How many of these claims can be in one call: those of one failure domain, as far as the backend takes many.
    fn in_one_call(&self, claims: impl Iterator<Item = ClaimKey>) -> usize {
        let backend = self.target.backend();
        let resource = |claim: ClaimKey| &self.state.resources[usize::from(claim.resource)];
        let domains: Vec<_> = claims.map(|claim| backend.failure_domain(resource(claim))).collect();
        let same = domains.iter().take_while(|domain| **domain == domains[0]).count();
        same.min(backend.info().limits.gather)
    }

    fn backend(&self, second: bool) -> &'a dyn Backend {
        let target: &'a BackendUnderTest = self.target;
        if second { &**target.second() } else { &**target.backend() }
    }

    fn reference(&self, claim: ClaimKey) -> ClaimRef {
        let resource = self.state.resources[usize::from(claim.resource)].clone();
        ClaimRef { resource, owner: self.state.owner(claim.owner) }
    }
}

/// The handle of a call, for the trace.
fn handle_name(second: bool) -> &'static str {
    if second { ", second" } else { "" }
}

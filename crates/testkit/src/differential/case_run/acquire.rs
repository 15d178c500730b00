//! Acquire, on the backend and on the model.

use std::fmt;

use leasehold_core::{BackendExt as _, Claim, Error, Handover, Result as Reply, Share, Verdict};

use super::{CallTimes, CaseRun, StepOutcome};
use crate::differential::steps::{AcquireStep, TtlChoice};

/// The claims of one acquire step.
struct AcquireClaims {
    /// The index of the resource.
    at: usize,
    /// The claim for the model.
    model: Claim,
    /// The claim for the backend: the same, with a floor that is a token of the backend.
    backend: Claim,
    share: Share,
    /// The ttl of the tombstone for the predecessor.
    tombstone: Option<TtlChoice>,
}

impl CaseRun<'_> {
    /// Acquires all, in as few calls as possible.
    pub(super) async fn acquire_all(&mut self, batch: &[AcquireStep]) -> StepOutcome {
        let mut rest = batch;
        while !rest.is_empty() {
            let count = self.in_one_call(rest.iter().map(|step| step.claim));
            let (call, later) = rest.split_at(count);
            let outcome = match call {
                [step] => self.acquire(step).await,
                // On a store that grants by itself, the model must follow after each claim, so they go one by one.
                steps if self.has.self_granting => {
                    let mut outcome = Ok(Some(()));
                    for step in steps {
                        outcome = self.acquire(step).await;
                        if let Ok(Some(())) = outcome {
                            outcome = self.acquire_granted_waiters().await;
                        }
                        let Ok(Some(())) = outcome else { break };
                    }
                    outcome
                }
                steps => self.acquire_together(steps).await,
            };
            let Ok(Some(())) = outcome else { return outcome };
            rest = later;
        }
        Ok(Some(()))
    }

    /// Acquires several claims in one call.
    async fn acquire_together(&mut self, steps: &[AcquireStep]) -> StepOutcome {
        // The engine never sends a takeover together with other claims.
        let steps: Vec<_> =
            steps.iter().map(|step| AcquireStep { takes_over_from: None, ..step.clone() }).collect();
        let claims: Vec<_> = steps.iter().map(|step| self.claims(step)).collect();
        let requests: Vec<Claim> = claims.iter().map(|claims| claims.backend.clone()).collect();
        let second = steps[0].second;
        let backend = self.backend(second);
        let (replies, times) = self.call(backend.acquire(&requests)).await;
        self.trace.push(format!("acquire together {steps:?}\n      -> {replies:?}"));
        let Some(times) = times else { return Ok(None) };
        if replies.len() != requests.len() {
            return Err(format!("{} replies to {} claims", replies.len(), requests.len()));
        }
        for ((step, claims), reply) in steps.iter().zip(&claims).zip(replies) {
            let step = AcquireStep { second, ..step.clone() };
            self.compare_acquire(&step, claims, times, reply)?;
        }
        Ok(Some(()))
    }

    pub(super) async fn acquire(&mut self, step: &AcquireStep) -> StepOutcome {
        let claims = self.claims(step);
        let (at, claim) = (claims.at, &claims.model);
        // A session keeps its places, so a queued claim asks through the handle by which it joined the queue.
        let joined = self.queued.get(&(at, claim.owner)).filter(|_| !self.has.own_ttl);
        let joined = joined.filter(|_| self.state.models[at].is_queued(claim.owner));
        let second = joined.map_or(step.second, |joined| joined.second);
        let backend = self.backend(second);
        let (reply, times) = self.call(backend.acquire_one(&claims.backend)).await;
        self.trace.push(format!("acquire {step:?} as {:?}\n      -> {reply:?}", claims.share));
        let Some(times) = times else { return Ok(None) };
        self.compare_acquire(&AcquireStep { second, ..step.clone() }, &claims, times, reply)
    }

    /// Acquires on the model, and compares the replies.
    fn compare_acquire(
        &mut self,
        step: &AcquireStep,
        claims: &AcquireClaims,
        times: CallTimes,
        reply: Reply<Verdict>,
    ) -> StepOutcome {
        let (at, claim) = (claims.at, &claims.model);
        let clock = self.state.next_clock();
        let was_queued = self.state.models[at].is_queued(claim.owner);
        let model_reply = self.state.models[at].acquire(times.ended, claim, clock);
        if !was_queued && self.state.models[at].is_queued(claim.owner) {
            let again = AcquireStep { takes_over_from: None, floor: false, ..step.clone() };
            self.queued.insert((at, claim.owner), again);
        }
        self.add_expiry(times, claim.ttl);
        self.add_expiry(times, claim.place_ttl);
        self.add_silence(times, at);
        if let Some(tombstone) = claims.tombstone {
            self.add_expiry(times, tombstone.duration(self.target));
        }
        let Some((model_verdict, verdict)) = both_succeeded(model_reply, reply)? else { return Ok(Some(())) };
        self.compare_verdicts(times, claims, &model_verdict, &verdict)
    }

    fn claims(&self, step: &AcquireStep) -> AcquireClaims {
        let at = usize::from(step.claim.resource);
        let share = self.family.share(step.weight, step.other_capacity && self.has.shares);
        let mut model = self.state.claim(step, share, self.target);
        if step.queue && self.has.queue {
            model = model.queued();
        }
        let predecessor =
            step.takes_over_from.filter(|(owner, _)| *owner != step.claim.owner && self.may_take_over(at));
        if let Some((owner, tombstone)) = predecessor {
            let mut from = Handover::from(self.state.owner(owner));
            from.tombstone = tombstone.map(|tombstone| tombstone.duration(self.target));
            model = model.taking_over(from);
        }
        let mut backend = model.clone();
        backend.floor = self.state.tokens[at].newest.filter(|_| step.floor);
        AcquireClaims {
            at,
            model,
            backend,
            share,
            tombstone: predecessor.and_then(|(_, tombstone)| tombstone),
        }
    }

    /// Whether a step may ask for a handover: some backends hand over only while the queue is empty.
    fn may_take_over(&self, at: usize) -> bool {
        let now = self.target.now();
        let queued = self.state.models[at].snapshot(now, &self.state.resources[at]).queue_length;
        self.has.handover || (self.has.queue && queued == 0)
    }

    fn compare_verdicts(
        &mut self,
        times: CallTimes,
        claims: &AcquireClaims,
        model: &Verdict,
        backend: &Verdict,
    ) -> StepOutcome {
        let (at, claim) = (claims.at, &claims.model);
        if let (Verdict::Granted(model), Verdict::Granted(backend)) = (model, backend) {
            let known = self.state.tokens[at].backend_token(model.token).is_some();
            self.state.tokens[at].granted(claim.owner, claims.share, model.token, backend.token)?;
            if let Some(floor) = claims.backend.floor.filter(|floor| !known && backend.token <= *floor) {
                return Err(format!("a new grant has {:?}, not above the floor {floor:?}", backend.token));
            }
        }
        let snapshot = self.state.models[at].snapshot(times.ended, &claim.resource);
        let mut comparison = self.comparison();
        // A self-granting store has granted these claims already. The model grants them when they acquire.
        comparison.unsettled = self.has.self_granting && self.state.models[at].grantable().next().is_some();
        comparison.verdict(&self.state.tokens[at], &snapshot, model, backend)?;
        Ok(Some(()))
    }

    /// Acquires again for every claim that a self-granting store has granted by now. The model grants a
    /// queued claim only when it acquires.
    pub(super) async fn acquire_granted_waiters(&mut self) -> StepOutcome {
        if !self.has.self_granting {
            return Ok(Some(()));
        }
        for at in 0..self.state.models.len() {
            loop {
                let grantable = self.state.models[at].grantable().next();
                let Some(step) = grantable.and_then(|owner| self.queued.get(&(at, owner)).cloned()) else {
                    break;
                };
                match self.acquire(&step).await {
                    Ok(Some(())) => {}
                    other => return other,
                }
            }
        }
        Ok(Some(()))
    }
}

/// Both verdicts, if both sides succeeded; `None` if both failed with the same kind and effect.
fn both_succeeded<T: fmt::Debug>(model: Reply<T>, backend: Reply<T>) -> Result<Option<(T, T)>, String> {
    let meaning = |error: &Error| (error.kind(), error.effect());
    match (model, backend) {
        (Ok(model), Ok(backend)) => Ok(Some((model, backend))),
        (Err(model), Err(backend)) if meaning(&model) == meaning(&backend) => Ok(None),
        (model, backend) => Err(format!("the model says {model:?},\n   the backend {backend:?}")),
    }
}

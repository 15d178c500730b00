//! Renew, release and order, on the backend and on the model.

use leasehold_core::{
    AuditRecord, CommandOutcome, Eviction, OperatorAction, OperatorCommand, ReleaseRequest, RenewRequest,
    WallTime,
};

use super::{CaseRun, StepOutcome, handle_name};
use crate::differential::{
    compare,
    steps::{OrderKind, OrderTarget, ReleaseStep, RenewStep, TtlChoice},
};

impl CaseRun<'_> {
    pub(super) async fn renew(&mut self, batch: &[RenewStep], second: bool) -> StepOutcome {
        // All resources of a batch must be in the same failure domain.
        let failure_domain = |step: &RenewStep| {
            let resource = &self.state.resources[usize::from(step.claim.resource)];
            self.target.backend().failure_domain(resource)
        };
        let batch: Vec<_> =
            batch.iter().filter(|step| failure_domain(step) == failure_domain(&batch[0])).collect();
        let request = |step: &&RenewStep| {
            let mut request = RenewRequest::new(self.reference(step.claim), step.ttl.duration(self.target));
            request.note = step.note.map(|byte| [byte].into());
            request
        };
        let requests: Vec<_> = batch.iter().map(request).collect();
        let backend = self.backend(second);
        let (replies, times) = self.call(backend.renew(&requests)).await;
        self.trace.push(format!("renew {batch:?}{}\n      -> {replies:?}", handle_name(second)));
        let Some(times) = times else { return Ok(None) };
        if replies.len() != requests.len() {
            return Err(format!("{} replies to {} renewals", replies.len(), requests.len()));
        }
        for ((step, request), reply) in batch.iter().zip(&requests).zip(replies) {
            let at = usize::from(step.claim.resource);
            let model = self.state.models[at].renew(times.ended, request);
            self.add_expiry(times, request.ttl);
            self.add_silence(times, at);
            let backend = reply.map_err(|error| format!("renew failed: {error:?}"))?;
            self.comparison().renewal(&self.state.tokens[at], &model, &backend)?;
        }
        Ok(Some(()))
    }

    /// Releases all, in as few calls as possible.
    pub(super) async fn release_all(&mut self, batch: &[ReleaseStep], second: bool) -> StepOutcome {
        let mut rest = batch;
        while !rest.is_empty() {
            let count = self.in_one_call(rest.iter().map(|step| step.claim));
            let (call, later) = rest.split_at(count);
            let outcome = self.release(call, second).await;
            let Ok(Some(())) = outcome else { return outcome };
            rest = later;
        }
        Ok(Some(()))
    }

    async fn release(&mut self, batch: &[ReleaseStep], second: bool) -> StepOutcome {
        let request = |step: &ReleaseStep| {
            let mut request = ReleaseRequest::new(self.reference(step.claim));
            request.tombstone = step.tombstone.map(|tombstone| tombstone.duration(self.target));
            let keep_for = step.keep_for.filter(|_| self.has.keep_for);
            request.keep_for = keep_for.map(|keep| keep.duration(self.target));
            request
        };
        let requests: Vec<_> = batch.iter().map(request).collect();
        let backend = self.backend(second);
        let (replies, times) = self.call(backend.release(&requests)).await;
        self.trace.push(format!("release {batch:?}{}\n      -> {replies:?}", handle_name(second)));
        let Some(times) = times else { return Ok(None) };
        if replies.len() != requests.len() {
            return Err(format!("{} replies to {} releases", replies.len(), requests.len()));
        }
        for ((step, request), reply) in batch.iter().zip(&requests).zip(replies) {
            let at = usize::from(step.claim.resource);
            let model = self.state.models[at].release(times.ended, request);
            self.add_silence(times, at);
            let ttls = request.tombstone.into_iter().chain(request.keep_for);
            ttls.for_each(|ttl| self.add_expiry(times, ttl));
            let backend = reply.map_err(|error| format!("release failed: {error:?}"))?;
            if model != backend {
                return Err(format!("{step:?}: the model says {model:?}, the backend {backend:?}"));
            }
        }
        Ok(Some(()))
    }

    pub(super) async fn order(
        &mut self,
        resource: u8,
        target: OrderTarget,
        kind: OrderKind,
        second: bool,
    ) -> StepOutcome {
        let at = usize::from(resource);
        let action = self.action(kind);
        let mut for_model =
            OperatorCommand::new(self.state.resources[at].clone(), action, "someone", "to compare");
        for_model.token = match target {
            OrderTarget::AnyHolder => None,
            OrderTarget::LastGrantOf(owner) => self.state.tokens[at].last_grant_of(self.state.owner(owner)),
        };
        let mut for_backend = for_model.clone();
        for_backend.token = for_model.token.and_then(|token| self.state.tokens[at].backend_token(token));

        let backend = self.backend(second);
        let (reply, times) = self.call(backend.order(&for_backend)).await;
        let call = format!("order resource {resource}: {action:?}, {target:?}{}", handle_name(second));
        self.trace.push(format!("{call}\n      -> {reply:?}"));
        let Some(times) = times else { return Ok(None) };
        let model = self.state.models[at].order(times.ended, &for_model);
        self.add_silence(times, at);
        if let OperatorAction::Pause { lasting } = action {
            self.add_expiry(times, lasting);
        }
        let backend = reply.map_err(|error| format!("an order failed: {error:?}"))?;
        let record = AuditRecord::of(&for_backend, WallTime::default(), model == CommandOutcome::Done);
        self.state.audit.push(record);
        compare::command_outcome(&self.state.tokens[at], model, backend)?;
        Ok(Some(()))
    }

    fn action(&self, kind: OrderKind) -> OperatorAction {
        match kind {
            OrderKind::Ask => OperatorAction::Ask { within: TtlChoice::Long.duration(self.target) },
            OrderKind::EvictAtExpiry => OperatorAction::Evict(Eviction::AtExpiry),
            OrderKind::EvictNow => OperatorAction::Evict(Eviction::Now),
            OrderKind::Pause(lasting) => OperatorAction::Pause { lasting: lasting.duration(self.target) },
            OrderKind::Resume => OperatorAction::Resume,
            OrderKind::Resize(capacity) => OperatorAction::Resize { capacity: capacity.into() },
        }
    }
}

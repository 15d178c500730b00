//! A call of a verb as data: what was asked, what was answered. Wrappers record, repeat and delay these.

use std::time::Duration;

use leasehold_core::{
    Backend, Claim, ClaimRef, CommandOutcome, Cursor, Effect, Error, OperatorCommand, Page, Query,
    ReleaseRequest, Released, RenewRequest, Renewal, Result, Verb, Verdict,
};

/// What a backend is asked.
#[derive(Clone, Debug)]
pub enum Ask {
    /// `acquire`
    Acquire(Claim),
    /// `renew`
    Renew(Vec<RenewRequest>),
    /// `release`
    Release(ReleaseRequest),
    /// `wait`
    Wait {
        /// Who waits.
        claim: ClaimRef,
        /// From where.
        since: Cursor,
        /// For how long.
        at_most: Duration,
    },
    /// `inspect`
    Inspect(Query),
    /// `order`
    Order(OperatorCommand),
}

/// What it answers.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Of `acquire`.
    Acquire(Result<Verdict>),
    /// Of `renew`.
    Renew(Vec<Result<Renewal>>),
    /// Of `release`.
    Release(Result<Released>),
    /// Of `wait`.
    Wait(Result<()>),
    /// Of `inspect`.
    Inspect(Result<Page>),
    /// Of `order`.
    Order(Result<CommandOutcome>),
}

impl Ask {
    /// Which verb it is.
    pub fn verb(&self) -> Verb {
        match self {
            Ask::Acquire(_) => Verb::Acquire,
            Ask::Renew(_) => Verb::Renew,
            Ask::Release(_) => Verb::Release,
            Ask::Wait { .. } => Verb::Wait,
            Ask::Inspect(_) => Verb::Inspect,
            Ask::Order(_) => Verb::Order,
        }
    }

    /// Whether it can change anything.
    pub fn has_effect(&self) -> bool {
        !matches!(self, Ask::Wait { .. } | Ask::Inspect(_))
    }

    /// Asks a backend.
    pub async fn of(&self, backend: &dyn Backend) -> Answer {
        match self {
            Ask::Acquire(claim) => Answer::Acquire(backend.acquire(claim).await),
            Ask::Renew(held) => Answer::Renew(backend.renew(held).await),
            Ask::Release(request) => Answer::Release(backend.release(request).await),
            Ask::Wait { claim, since, at_most } => Answer::Wait(backend.wait(claim, since, *at_most).await),
            Ask::Inspect(query) => Answer::Inspect(backend.inspect(query).await),
            Ask::Order(order) => Answer::Order(backend.order(order).await),
        }
    }

    /// The answer of a backend that fails. What cannot change anything has no unknown effect.
    pub fn failing(&self, error: Error) -> Answer {
        let error = if self.has_effect() { error } else { error.with_effect(Effect::None) };
        match self {
            Ask::Acquire(_) => Answer::Acquire(Err(error)),
            Ask::Renew(held) => Answer::Renew(held.iter().map(|_| Err(error.clone())).collect()),
            Ask::Release(_) => Answer::Release(Err(error)),
            Ask::Wait { .. } => Answer::Wait(Err(error)),
            Ask::Inspect(_) => Answer::Inspect(Err(error)),
            Ask::Order(_) => Answer::Order(Err(error)),
        }
    }
}

/// Implements `Backend` for a wrapper that has `inner: Arc<dyn Backend>` and `async fn relay(&self, Ask) -> Answer`.
macro_rules! relay {
    ($wrapper:ty) => {
        #[leasehold_core::async_trait]
        impl leasehold_core::Backend for $wrapper {
            fn info(&self) -> &leasehold_core::BackendInfo {
                self.inner.info()
            }

            fn failure_domain(&self, resource: &leasehold_core::Resource) -> leasehold_core::FailureDomain {
                self.inner.failure_domain(resource)
            }

            async fn acquire(
                &self,
                claim: &leasehold_core::Claim,
            ) -> leasehold_core::Result<leasehold_core::Verdict> {
                let ask = $crate::verbs::Ask::Acquire(claim.clone());
                let $crate::verbs::Answer::Acquire(answer) = self.relay(ask).await else { misplaced() };
                answer
            }

            async fn renew(
                &self,
                held: &[leasehold_core::RenewRequest],
            ) -> Vec<leasehold_core::Result<leasehold_core::Renewal>> {
                let ask = $crate::verbs::Ask::Renew(held.to_vec());
                let $crate::verbs::Answer::Renew(answers) = self.relay(ask).await else { misplaced() };
                answers
            }

            async fn release(
                &self,
                request: &leasehold_core::ReleaseRequest,
            ) -> leasehold_core::Result<leasehold_core::Released> {
                let ask = $crate::verbs::Ask::Release(request.clone());
                let $crate::verbs::Answer::Release(answer) = self.relay(ask).await else { misplaced() };
                answer
            }

            async fn wait(
                &self,
                claim: &leasehold_core::ClaimRef,
                since: &leasehold_core::Cursor,
                at_most: std::time::Duration,
            ) -> leasehold_core::Result<()> {
                let ask = $crate::verbs::Ask::Wait { claim: claim.clone(), since: *since, at_most };
                let $crate::verbs::Answer::Wait(answer) = self.relay(ask).await else { misplaced() };
                answer
            }

            async fn inspect(
                &self,
                query: &leasehold_core::Query,
            ) -> leasehold_core::Result<leasehold_core::Page> {
                let ask = $crate::verbs::Ask::Inspect(query.clone());
                let $crate::verbs::Answer::Inspect(answer) = self.relay(ask).await else { misplaced() };
                answer
            }

            async fn order(
                &self,
                order: &leasehold_core::OperatorCommand,
            ) -> leasehold_core::Result<leasehold_core::CommandOutcome> {
                let ask = $crate::verbs::Ask::Order(order.clone());
                let $crate::verbs::Answer::Order(answer) = self.relay(ask).await else { misplaced() };
                answer
            }
        }

        fn misplaced() -> ! {
            unreachable!("an answer is of the verb that was asked")
        }
    };
}
pub(crate) use relay;

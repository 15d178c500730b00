//! A call of a backend's verb as data: the request and the reply. Wrappers of a backend record, repeat and
//! delay them.

use std::time::Duration;

use leasehold_core::{
    Backend, Claim, ClaimRef, CommandOutcome, Cursor, Effect, Error, OperatorCommand, Page, Query,
    ReleaseRequest, Released, RenewRequest, Renewal, Result, Verb, Verdict,
};

/// A request to a backend.
#[derive(Clone, Debug)]
pub enum VerbRequest {
    /// `acquire`
    Acquire(Vec<Claim>),
    /// `renew`
    Renew(Vec<RenewRequest>),
    /// `release`
    Release(Vec<ReleaseRequest>),
    /// `wait`
    Wait {
        /// The claim that waits.
        claim: ClaimRef,
        /// The state after which a change ends the wait.
        since: Cursor,
        /// How long it waits at the most.
        at_most: Duration,
    },
    /// `inspect`
    Inspect(Query),
    /// `order`
    Order(OperatorCommand),
}

/// The reply of a backend.
#[derive(Clone, Debug)]
pub enum VerbReply {
    /// The replies to `acquire`, one for each claim.
    Acquire(Vec<Result<Verdict>>),
    /// The replies to `renew`, one for each request.
    Renew(Vec<Result<Renewal>>),
    /// The replies to `release`, one for each request.
    Release(Vec<Result<Released>>),
    /// The reply to `wait`.
    Wait(Result<()>),
    /// The reply to `inspect`.
    Inspect(Result<Page>),
    /// The reply to `order`.
    Order(Result<CommandOutcome>),
}

impl VerbRequest {
    /// The verb.
    pub fn verb(&self) -> Verb {
        match self {
            VerbRequest::Acquire(_) => Verb::Acquire,
            VerbRequest::Renew(_) => Verb::Renew,
            VerbRequest::Release(_) => Verb::Release,
            VerbRequest::Wait { .. } => Verb::Wait,
            VerbRequest::Inspect(_) => Verb::Inspect,
            VerbRequest::Order(_) => Verb::Order,
        }
    }

    /// Whether the verb can change the state of the store: all but `wait` and `inspect`.
    pub fn can_change_state(&self) -> bool {
        !matches!(self, VerbRequest::Wait { .. } | VerbRequest::Inspect(_))
    }

    /// Calls the verb of `backend`.
    pub async fn send_to(&self, backend: &dyn Backend) -> VerbReply {
        match self {
            VerbRequest::Acquire(claims) => VerbReply::Acquire(backend.acquire(claims).await),
            VerbRequest::Renew(held) => VerbReply::Renew(backend.renew(held).await),
            VerbRequest::Release(requests) => VerbReply::Release(backend.release(requests).await),
            VerbRequest::Wait { claim, since, at_most } => {
                VerbReply::Wait(backend.wait(claim, since, *at_most).await)
            }
            VerbRequest::Inspect(query) => VerbReply::Inspect(backend.inspect(query).await),
            VerbRequest::Order(order) => VerbReply::Order(backend.order(order).await),
        }
    }

    /// The reply of a backend that fails with `error`. For a verb that changes nothing, the effect becomes
    /// `None`.
    pub fn failed_reply(&self, error: Error) -> VerbReply {
        let error = if self.can_change_state() { error } else { error.with_effect(Effect::None) };
        match self {
            VerbRequest::Acquire(claims) => VerbReply::Acquire(vec![Err(error); claims.len()]),
            VerbRequest::Renew(held) => VerbReply::Renew(vec![Err(error); held.len()]),
            VerbRequest::Release(requests) => VerbReply::Release(vec![Err(error); requests.len()]),
            VerbRequest::Wait { .. } => VerbReply::Wait(Err(error)),
            VerbRequest::Inspect(_) => VerbReply::Inspect(Err(error)),
            VerbRequest::Order(_) => VerbReply::Order(Err(error)),
        }
    }
}

/// Implements `Backend` for a wrapper that has a field `inner: Arc<dyn Backend>` and a method
/// `async fn relay(&self, VerbRequest) -> VerbReply`, through which every verb goes.
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
                claims: &[leasehold_core::Claim],
            ) -> Vec<leasehold_core::Result<leasehold_core::Verdict>> {
                let request = $crate::verbs::VerbRequest::Acquire(claims.to_vec());
                let $crate::verbs::VerbReply::Acquire(replies) = self.relay(request).await else {
                    reply_of_another_verb()
                };
                replies
            }

            async fn renew(
                &self,
                held: &[leasehold_core::RenewRequest],
            ) -> Vec<leasehold_core::Result<leasehold_core::Renewal>> {
                let request = $crate::verbs::VerbRequest::Renew(held.to_vec());
                let $crate::verbs::VerbReply::Renew(replies) = self.relay(request).await else {
                    reply_of_another_verb()
                };
                replies
            }

            async fn release(
                &self,
                requests: &[leasehold_core::ReleaseRequest],
            ) -> Vec<leasehold_core::Result<leasehold_core::Released>> {
                let request = $crate::verbs::VerbRequest::Release(requests.to_vec());
                let $crate::verbs::VerbReply::Release(replies) = self.relay(request).await else {
                    reply_of_another_verb()
                };
                replies
            }

            async fn wait(
                &self,
                claim: &leasehold_core::ClaimRef,
                since: &leasehold_core::Cursor,
                at_most: std::time::Duration,
            ) -> leasehold_core::Result<()> {
                let request =
                    $crate::verbs::VerbRequest::Wait { claim: claim.clone(), since: *since, at_most };
                let $crate::verbs::VerbReply::Wait(reply) = self.relay(request).await else {
                    reply_of_another_verb()
                };
                reply
            }

            async fn inspect(
                &self,
                query: &leasehold_core::Query,
            ) -> leasehold_core::Result<leasehold_core::Page> {
                let request = $crate::verbs::VerbRequest::Inspect(query.clone());
                let $crate::verbs::VerbReply::Inspect(reply) = self.relay(request).await else {
                    reply_of_another_verb()
                };
                reply
            }

            async fn order(
                &self,
                order: &leasehold_core::OperatorCommand,
            ) -> leasehold_core::Result<leasehold_core::CommandOutcome> {
                let request = $crate::verbs::VerbRequest::Order(order.clone());
                let $crate::verbs::VerbReply::Order(reply) = self.relay(request).await else {
                    reply_of_another_verb()
                };
                reply
            }
        }

        fn reply_of_another_verb() -> ! {
            unreachable!("relay returns the reply to the verb of its request")
        }
    };
}
pub(crate) use relay;

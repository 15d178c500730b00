//! Many claims in one transaction (ADR 0041).
//!
//! 1. Sort the claims by resource. The first claim of each resource is a candidate; the others follow it, one
//!    after the other. Two claims of one resource in one transaction would both find it free, because etcd
//!    evaluates all preconditions before it writes, and their contenders would have the same creation
//!    revision, and so the same token.
//! 2. Send the first transactions of the candidates (`first_transaction.rs`) as one transaction, each nested
//!    in it, so that each has preconditions of its own. Claims that need another request first are left out:
//!    a handover, or a claim that may exist already.
//! 3. If etcd refuses the transaction as a whole, nothing was written, and each claim is sent alone. One
//!    missing etcd lease is enough for that, or a limit of etcd (`--max-txn-ops`).
//! 4. Claims that were not granted go on alone, all at the same time.
//!
//! The reply is checked as a whole: each nested reply must name the contender of its claim. If one of them does
//! not, the effect of all claims is unknown.

use std::collections::HashMap;

use futures_util::future::{join, join_all};
use leasehold_core::{Claim, Verdict};

use super::{AcquireState, first_transaction::FirstOutcome};
use crate::{backend::Etcd, error::StoreError, transaction::Transaction};

/// A claim of the batch whose leases were taken; or why that failed.
type Begun<'a> = Result<AcquireState<'a>, StoreError>;

/// The outcome of step 2 for one claim; `None` if the claim was not sent, or was refused with all others.
type SentTogether = Option<Result<FirstOutcome, StoreError>>;

impl Etcd {
    pub(crate) async fn acquire_together(&self, claims: &[Claim]) -> Vec<Result<Verdict, StoreError>> {
        let by_resource = group(claims, |claim: &Claim| &claim.resource);
        let begun = by_resource.iter().map(|indices| self.begin_acquire(&claims[indices[0]]));
        let mut begun: Vec<Begun<'_>> = join_all(begun).await;
        let sent = self.send_together(&mut begun).await;
        let finishing = by_resource.iter().zip(begun).zip(sent).map(|((indices, begun), sent)| async move {
            let mut verdicts = vec![finish(begun, sent).await];
            for &index in &indices[1..] {
                verdicts.push(self.try_acquire(&claims[index]).await);
            }
            indices.iter().copied().zip(verdicts).collect::<Vec<_>>()
        });
        in_order(claims.len(), join_all(finishing).await)
    }

    /// Sends the first transactions of all claims that can begin with one, as one transaction.
    async fn send_together(&self, begun: &mut [Begun<'_>]) -> Vec<SentTogether> {
        let mut outcomes: Vec<SentTogether> = begun.iter().map(|_| None).collect();
        let mut candidates: Vec<(usize, &mut AcquireState<'_>)> = Vec::new();
        for (index, begun) in begun.iter_mut().enumerate() {
            candidates.extend(begun.as_mut().ok().filter(|state| state.is_new()).map(|state| (index, state)));
        }
        let parts = candidates.chunks_mut(self.nested_max.get());
        let parts = parts.filter(|part| part.len() > 1).map(|part| self.send_part(part));
        for (index, outcome) in join_all(parts.collect::<Vec<_>>()).await.into_iter().flatten() {
            outcomes[index] = Some(outcome);
        }
        outcomes
    }

    /// Sends these claims in one transaction. Empty if etcd refuses it as a whole.
    async fn send_part(
        &self,
        part: &mut [(usize, &mut AcquireState<'_>)],
    ) -> Vec<(usize, Result<FirstOutcome, StoreError>)> {
        let (sent, wall) = (self.environment.now(), self.environment.wall());
        let nested = part.iter().map(|(_, state)| state.first_transaction(wall)).collect();
        let transaction = Transaction::all_of(nested);
        let sending = self.connections.transact(&transaction);
        let refreshing = join_all(part.iter().map(|(_, state)| state.refreshed_hold_lease()));
        let (reply, leases) = join(sending, refreshing).await;
        let replies = match reply.and_then(|reply| reply.into_all_nested(part.len())) {
            Ok(replies) => replies,
            Err(error) if error.refuses_transaction() => {
                self.nested_max.note_refusal(&error, part.len());
                return Vec::new();
            }
            Err(error) => return part.iter().map(|(index, _)| (*index, Err(error.clone()))).collect(),
        };
        let finishing =
            part.iter_mut().zip(replies).zip(leases).map(|(((index, state), reply), hold)| async move {
                (*index, state.finish_first_transaction(reply, hold, sent).await)
            });
        join_all(finishing.collect::<Vec<_>>()).await
    }
}

async fn finish(begun: Begun<'_>, sent: SentTogether) -> Result<Verdict, StoreError> {
    let mut state = begun?;
    let verdict = match sent {
        None => state.run().await,
        Some(Ok(outcome)) => state.go_on(outcome).await,
        Some(Err(error)) => Err(error),
    };
    state.settle(verdict)
}

/// The indices of the requests with the same key, in the order of the requests.
pub(crate) fn group<'a, Q, K: std::hash::Hash + Eq>(
    requests: &'a [Q],
    key: impl Fn(&'a Q) -> K,
) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut group_of: HashMap<K, usize> = HashMap::new();
    for (index, request) in requests.iter().enumerate() {
        let group = *group_of.entry(key(request)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[group].push(index);
    }
    groups
}

/// Puts the results of all groups into the order of the requests.
pub(crate) fn in_order<T>(
    count: usize,
    groups: Vec<Vec<(usize, Result<T, StoreError>)>>,
) -> Vec<Result<T, StoreError>> {
    let mut results: Vec<Option<Result<T, StoreError>>> = (0..count).map(|_| None).collect();
    for (index, result) in groups.into_iter().flatten() {
        results[index] = Some(result);
    }
    let missing = || Err(StoreError::UnexpectedReply("a request has no result".to_owned()));
    results.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
}

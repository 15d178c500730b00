//! `acquire` and `release` of several claims in one call. ADR 0038.
//!
//! 1. The plain ones go in one script, which carries out each of them as a step of its own.
//! 2. The others, and those that the script finds not to be plain, go one by one. They share packets on the
//!    connection, but for one resource the next begins only after the one before has its reply.
//!
//! Requests on one resource keep their order: after one that is not plain, no later one on the same resource goes
//! in the script of step 1.
//!
//! The reply of the script carries the id of the request and as many results as there were claims. Otherwise it
//! belongs to another request: the effect of all of them is unknown, and the connection is closed.

use std::{borrow::Cow, collections::HashSet};

use leasehold_core::{Claim, ReleaseRequest, Released, Resource, Verdict};
use redis::Value;

use crate::{
    acquire::{plain_acquire_call, wrong_count},
    backend::Redis,
    config::Replicas,
    error::StoreError,
    join,
    release::plain_release_call,
    reply::number,
    script::{ACQUIRE_PLAIN_MANY, RELEASE_PLAIN_MANY},
};

/// The outcome of each request of a batch; `None` while it is not known.
type Outcomes<T> = Vec<Option<Result<T, StoreError>>>;

impl Redis {
    pub(crate) async fn acquire_batch(&self, claims: &[Claim]) -> Vec<Result<Verdict, StoreError>> {
        let mut outcomes: Outcomes<Verdict> = claims.iter().map(|_| None).collect();
        if self.shares_scripts() {
            let is_plain = |claim: &Claim| claim.takes_over_from.is_none() && self.is_plain_claim(claim);
            let indexes = plain_indexes(claims, |claim| &claim.resource, is_plain);
            self.acquire_plain_batch(claims, &indexes, &mut outcomes).await;
        }
        let acquire = |claim| self.try_acquire(claim);
        carry_out_rest(claims, |claim| &claim.resource, outcomes, acquire).await
    }

    pub(crate) async fn release_batch(
        &self,
        requests: &[ReleaseRequest],
    ) -> Vec<Result<Released, StoreError>> {
        let mut outcomes: Outcomes<Released> = requests.iter().map(|_| None).collect();
        if self.shares_scripts() {
            let is_plain = |request: &ReleaseRequest| self.is_plain_release(request);
            let indexes = plain_indexes(requests, |request| &request.resource, is_plain);
            self.release_plain_batch(requests, &indexes, &mut outcomes).await;
        }
        let release = |request| self.try_release(request);
        carry_out_rest(requests, |request| &request.resource, outcomes, release).await
    }

    /// Whether several claims can be in one script. On a cluster its keys must be in one slot, and with
    /// `replicas=` each grant has a connection of its own.
    fn shares_scripts(&self) -> bool {
        self.router.cluster().is_none() && self.router.config().replicas == Replicas::None
    }

    /// Step 1 of `acquire`. Leaves `None` for claims that are not plain.
    async fn acquire_plain_batch(
        &self,
        claims: &[Claim],
        indexes: &[usize],
        outcomes: &mut Outcomes<Verdict>,
    ) {
        let Some(&first) = indexes.first() else { return };
        let plain: Vec<&Claim> = indexes.iter().map(|&index| &claims[index]).collect();
        let make = |lead| Cow::Owned(plain_acquire_call(&ACQUIRE_PLAIN_MANY, &plain, lead));
        let reply = self.router.run(&claims[first].resource, &ACQUIRE_PLAIN_MANY, &make).await;
        let read = |(claim, result): (&Claim, Value)| self.read_plain_verdict(claim, result);
        let verdicts = results(reply, plain.len())
            .and_then(|results| plain.into_iter().zip(results).map(read).collect::<Result<Vec<_>, _>>());
        self.settle(&claims[first].resource, indexes, verdicts, outcomes);
    }

    /// Step 1 of `release`. Leaves `None` for requests that are not plain.
    async fn release_plain_batch(
        &self,
        requests: &[ReleaseRequest],
        indexes: &[usize],
        outcomes: &mut Outcomes<Released>,
    ) {
        let Some(&first) = indexes.first() else { return };
        let plain: Vec<&ReleaseRequest> = indexes.iter().map(|&index| &requests[index]).collect();
        let make = |_| Cow::Owned(plain_release_call(&RELEASE_PLAIN_MANY, &plain));
        let reply = self.router.run(&requests[first].resource, &RELEASE_PLAIN_MANY, &make).await;
        let read = |(request, result): (&ReleaseRequest, Value)| {
            let result = number(&result).ok_or_else(wrong_count)?;
            Ok(self.read_plain_release(request, result))
        };
        let released = results(reply, plain.len())
            .and_then(|results| plain.into_iter().zip(results).map(read).collect::<Result<Vec<_>, _>>());
        self.settle(&requests[first].resource, indexes, released, outcomes);
    }

    /// Notes what the script did. If one result cannot be read, none is believed, and the connection is closed.
    fn settle<T>(
        &self,
        resource: &Resource,
        indexes: &[usize],
        results: Result<Vec<Option<T>>, StoreError>,
        outcomes: &mut Outcomes<T>,
    ) {
        match results {
            Ok(results) => {
                for (&index, result) in indexes.iter().zip(results) {
                    outcomes[index] = result.map(Ok);
                }
            }
            // One key that the user may not touch makes the server refuse the whole script: each goes alone.
            Err(error) if error.is_refused_permission() && indexes.len() > 1 => {}
            Err(error) => {
                if let (StoreError::UnexpectedReply(_), Ok(node)) = (&error, self.router.node(resource)) {
                    node.connections.discard_all();
                }
                indexes.iter().for_each(|&index| outcomes[index] = Some(Err(error.clone())));
            }
        }
    }
}

/// The indexes of the requests that go in one script: those that are plain, unless an earlier one on the same
/// resource is not.
fn plain_indexes<Q>(
    requests: &[Q],
    resource: impl Fn(&Q) -> &Resource,
    is_plain: impl Fn(&Q) -> bool,
) -> Vec<usize> {
    let mut not_plain = HashSet::new();
    let is_in_script = |&index: &usize| {
        let request = &requests[index];
        let in_script = is_plain(request) && !not_plain.contains(resource(request));
        if !in_script {
            not_plain.insert(resource(request));
        }
        in_script
    };
    (0..requests.len()).filter(is_in_script).collect()
}

/// The results in the reply of a script for this many claims.
fn results(reply: Result<Value, StoreError>, count: usize) -> Result<Vec<Value>, StoreError> {
    match reply? {
        Value::Array(results) if results.len() == count => Ok(results),
        _ => Err(wrong_count()),
    }
}

/// Step 2: carries out the requests without an outcome. Those on one resource follow one another, in order; the
/// resources go side by side.
async fn carry_out_rest<'a, Q, T, F>(
    requests: &'a [Q],
    resource: impl Fn(&Q) -> &Resource,
    mut outcomes: Outcomes<T>,
    carry_out: impl Fn(&'a Q) -> F + Sync,
) -> Vec<Result<T, StoreError>>
where
    Q: Sync,
    T: Send,
    F: Future<Output = Result<T, StoreError>> + Send,
{
    let mut chains: Vec<Vec<usize>> = Vec::new();
    for index in (0..requests.len()).filter(|&index| outcomes[index].is_none()) {
        let same = |chain: &&mut Vec<usize>| resource(&requests[chain[0]]) == resource(&requests[index]);
        match chains.iter_mut().find(same) {
            Some(chain) => chain.push(index),
            None => chains.push(vec![index]),
        }
    }
    let carry_out = &carry_out;
    let running = chains.iter().map(|chain| async move {
        let mut results = Vec::with_capacity(chain.len());
        for &index in chain {
            results.push(carry_out(&requests[index]).await);
        }
        results
    });
    let results = join::join_all(running.collect()).await;
    for (chain, results) in chains.iter().zip(results) {
        chain.iter().zip(results).for_each(|(&index, result)| outcomes[index] = Some(result));
    }
    let missing = || Err(StoreError::missing_reply());
    outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(missing)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_number_of_results_is_not_believed_and_breaks_the_connection() {
        let reply = |count: usize| Ok(Value::Array(vec![Value::Int(1); count]));
        assert_eq!(results(reply(3), 3).unwrap().len(), 3);
        for reply in [reply(2), reply(4), reply(0), Ok(Value::Int(3)), Ok(Value::Nil)] {
            let error = results(reply, 3).unwrap_err();
            assert!(error.breaks_connection());
            assert_eq!(error.into_error().effect(), leasehold_core::Effect::Unknown);
        }
    }

    #[test]
    fn after_one_that_is_not_plain_none_of_its_resource_goes_in_the_script() {
        let request = |name: &str, is_plain: bool| (name.parse::<Resource>().unwrap(), is_plain);
        let (one, two) = ("report/1", "report/2");
        let requests = [(one, true), (two, false), (one, true), (two, true), (one, false), (one, true)];
        let requests = requests.map(|(name, is_plain)| request(name, is_plain));
        let indexes = plain_indexes(&requests, |(name, _)| name, |(_, is_plain)| *is_plain);
        assert_eq!(indexes, [0, 2]);
    }
}

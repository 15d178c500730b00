//! The verb `renew`, for a batch of claims.
//!
//! 1. Requests without a note, in the hope that they hold the whole of capacity 1 with nothing special about
//!    them: `scripts/renew.lua`, up to [`RENEWED_AT_ONCE`] in one script call.
//! 2. The others, and those that `renew.lua` leaves to a closer look: `scripts/renew_one.lua`, one call each,
//!    all in one pipeline.
//! 3. On a cluster, those whose slot is being moved: on the owner key alone (`slot_migration.rs`).
//!
//! With `replicas=` every request is a `renew_one.lua` on an exclusive connection, followed by `WAIT`.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use leasehold_core::{
    Effect, FencingToken, GoneReason, OwnerToken, RenewRequest, Renewal, Renewed, Result, Verb,
};
use redis::{Cmd, Value};

use crate::{
    NAME,
    backend::{Redis, at_least_one_milli, millis, note_argument},
    cluster::PrimaryNode,
    config::Replicas,
    error::StoreError,
    join,
    keys::Keys,
    reply::{Fields, number},
    script::{RENEW, RENEW_ONE},
};

/// How many plain renewals one script call makes. The server serves no other client meanwhile.
const RENEWED_AT_ONCE: usize = 64;

/// The outcome of each request of a batch; `None` while it is not known.
type Outcomes = [Option<Result<Renewal, StoreError>>];

impl Redis {
    pub(crate) async fn renew_batch(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let outcomes = if self.router.config().replicas == Replicas::None {
            self.renew_unreplicated(requests).await
        } else {
            self.renew_replicated(requests).await
        };
        let at = |error: StoreError, request: &RenewRequest| {
            error.into_error().at(Verb::Renew, NAME).on(&request.resource)
        };
        outcomes
            .into_iter()
            .zip(requests)
            .map(|(outcome, request)| outcome.map_err(|error| at(error, request)))
            .collect()
    }

    async fn renew_unreplicated(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal, StoreError>> {
        let check = |request: &RenewRequest| self.check_note(request.note.as_deref()).map(Err);
        let mut outcomes: Vec<Option<Result<Renewal, StoreError>>> = requests.iter().map(check).collect();
        self.renew_plain(requests, &mut outcomes).await;
        self.renew_one_by_one(requests, &mut outcomes).await;
        self.renew_while_slots_move(requests, &mut outcomes).await;
        let missing = || Err(StoreError::missing_reply());
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(missing)).collect()
    }

    /// Renews with acknowledgements. A renewal that too few replicas have does not count: its effect is
    /// unknown, and the deadline stays where it was.
    async fn renew_replicated(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal, StoreError>> {
        let check = |request: &RenewRequest| self.check_note(request.note.as_deref());
        let mut outcomes: Vec<Result<Renewal, StoreError>> = requests
            .iter()
            .map(|request| Err(check(request).unwrap_or_else(StoreError::missing_reply)))
            .collect();
        let valid = (0..requests.len()).filter(|&index| check(&requests[index]).is_none()).collect();
        self.renew_on_nodes(requests, valid, &mut outcomes).await;
        // A node that does not have the slot has done nothing, and has named the node that has it: ask there,
        // once.
        let is_redirected =
            |outcome: &Result<_, StoreError>| matches!(outcome, Err(error) if error.redirect().is_some());
        let redirected: Vec<usize> =
            (0..requests.len()).filter(|&index| is_redirected(&outcomes[index])).collect();
        if self.router.cluster().is_some() && !redirected.is_empty() {
            self.renew_on_nodes(requests, redirected, &mut outcomes).await;
        }
        outcomes.into_iter().map(|outcome| outcome.map_err(|error| self.router.explain(error))).collect()
    }

    /// Renews the requests with these indexes with acknowledgements, all nodes at once.
    async fn renew_on_nodes(
        &self,
        requests: &[RenewRequest],
        indexes: Vec<usize>,
        outcomes: &mut [Result<Renewal, StoreError>],
    ) {
        let mut by_node: BTreeMap<u32, (Arc<PrimaryNode>, Vec<usize>)> = BTreeMap::new();
        for index in indexes {
            match self.router.node(&requests[index].resource) {
                Ok(node) => by_node.entry(node.number).or_insert_with(|| (node, Vec::new())).1.push(index),
                Err(error) => outcomes[index] = Err(error),
            }
        }
        let groups: Vec<_> = by_node.into_values().collect();
        let renewing = groups.iter().map(|(node, indexes)| self.renew_acknowledged(node, requests, indexes));
        for ((_, indexes), renewed) in groups.iter().zip(join::join_all(renewing.collect()).await) {
            match renewed {
                Ok(renewed) => {
                    indexes.iter().zip(renewed).for_each(|(&index, outcome)| outcomes[index] = outcome);
                }
                Err(error) => indexes.iter().for_each(|&index| outcomes[index] = Err(error.clone())),
            }
        }
    }

    async fn renew_acknowledged(
        &self,
        node: &PrimaryNode,
        requests: &[RenewRequest],
        indexes: &[usize],
    ) -> Result<Vec<Result<Renewal, StoreError>>, StoreError> {
        let connection = node.exclusive.take(&node.connections).await?;
        let calls = indexes.iter().map(|&index| self.renew_call(&requests[index])).collect();
        let mut keys = Keys::of(&requests[indexes[0]].resource);
        let write = node
            .exclusive
            .run(connection, &node.connections, &RENEW_ONE, calls, keys.replication_probe())
            .await;
        let mut write = write.inspect_err(|_| node.exclusive.clear())?;
        let replies = std::mem::take(&mut write.replies);
        let outcome = |(&index, reply): (&usize, Result<Value, StoreError>)| {
            let resource = &requests[index].resource;
            let reply = reply.inspect_err(|error| self.router.learn_from(resource, node, error));
            match (reply.and_then(read_renewal), write.acknowledged()) {
                (Ok(Renewal::Renewed(_)), Err(too_few)) => Err(too_few(Effect::Unknown)),
                (outcome, _) => outcome,
            }
        };
        Ok(indexes.iter().zip(replies).map(outcome).collect())
    }

    /// Step 1. Leaves `None` where a closer look is needed.
    async fn renew_plain(&self, requests: &[RenewRequest], outcomes: &mut Outcomes) {
        let repeated = repeated_owners(requests);
        let is_plain = |request: &RenewRequest| request.note.is_none() && !repeated.contains(&request.owner);
        let plain: Vec<usize> = (0..requests.len())
            .filter(|&index| outcomes[index].is_none() && is_plain(&requests[index]))
            .collect();
        // ADR 0014: on a cluster the keys of a script must be in one slot; while that slot moves, even those
        // fail.
        let at_once = if self.router.cluster().is_some() { 1 } else { RENEWED_AT_ONCE };
        let groups: Vec<&[usize]> = plain.chunks(at_once).collect();
        let call = |group: &&[usize]| (&requests[group[0]].resource, plain_renew_call(requests, group));
        let replies = self.router.run_all(Some(&RENEW), groups.iter().map(call).collect()).await;
        for (group, reply) in groups.into_iter().zip(replies) {
            match reply {
                Ok(Value::Array(tokens)) if tokens.len() == group.len() => {
                    for (&index, token) in group.iter().zip(tokens) {
                        outcomes[index] = read_plain_renewal(&requests[index], &token).map(Ok);
                    }
                }
                Ok(_) => {}
                Err(error) => group.iter().for_each(|&index| outcomes[index] = Some(Err(error.clone()))),
            }
        }
    }

    /// Step 2.
    async fn renew_one_by_one(&self, requests: &[RenewRequest], outcomes: &mut Outcomes) {
        let others: Vec<usize> = (0..requests.len()).filter(|&index| outcomes[index].is_none()).collect();
        let call = |&index: &usize| (&requests[index].resource, self.renew_call(&requests[index]));
        let replies = self.router.run_all(Some(&RENEW_ONE), others.iter().map(call).collect()).await;
        for (&index, reply) in others.iter().zip(replies) {
            outcomes[index] = Some(reply.and_then(read_renewal));
        }
    }

    fn renew_call(&self, request: &RenewRequest) -> Cmd {
        let owner = request.owner.reveal();
        let mut call = self.call(&RENEW_ONE, &request.resource, &owner, 9);
        self.push_common_arguments(&mut call, &request.resource);
        call.arg(&owner).arg(millis(request.ttl));
        match &request.note {
            None => call.arg(""),
            Some(note) => call.arg(note_argument(Some(note))),
        };
        call
    }
}

/// The owners that occur more than once in a batch. Their requests are carried out one by one, in the order
/// of the batch.
fn repeated_owners(requests: &[RenewRequest]) -> HashSet<OwnerToken> {
    let mut seen = HashSet::with_capacity(requests.len());
    requests.iter().map(|request| request.owner).filter(|owner| !seen.insert(*owner)).collect()
}

/// The call of `scripts/renew.lua` for the requests with these indexes.
pub(crate) fn plain_renew_call(requests: &[RenewRequest], indexes: &[usize]) -> Cmd {
    let mut call = RENEW.call(indexes.len());
    for &index in indexes {
        call.arg(Keys::of(&requests[index].resource).owner());
    }
    for &index in indexes {
        call.arg(requests[index].owner.reveal()).arg(at_least_one_milli(requests[index].ttl));
    }
    call
}

/// Reads one field of the reply of `scripts/renew.lua`; `None` if a closer look is needed.
pub(crate) fn read_plain_renewal(request: &RenewRequest, token: &Value) -> Option<Renewal> {
    let token = FencingToken::try_from(number(token)?).ok()?;
    Some(Renewal::Renewed(Renewed::new(token, request.ttl)))
}

/// Reads the reply of `scripts/renew_one.lua`.
fn read_renewal(reply: Value) -> Result<Renewal, StoreError> {
    let mut fields = Fields::of(reply)?;
    match fields.text()?.as_str() {
        "kept" => {
            let mut renewed = Renewed::new(fields.token()?, fields.millis()?.unwrap_or_default());
            renewed.evicting = fields.text()?.contains('e');
            renewed.asked = fields.finish_request()?;
            Ok(Renewal::Renewed(renewed))
        }
        "queued" => Ok(Renewal::Queued { remaining: fields.millis()?.unwrap_or_default() }),
        "gone" => {
            let why = match fields.bytes()?.as_deref() {
                None => GoneReason::NotThere,
                Some(b"e") => GoneReason::Evicted,
                Some(_) => GoneReason::Cancelled,
            };
            Ok(Renewal::Gone { why })
        }
        other => Err(StoreError::unexpected_reply(format!("renew was answered with {other:.20?}"))),
    }
}

//! The verb `renew`: extends many claims at once.
//!
//! 1. Group the requests into rounds, so that no claim is twice in one round ([`rounds`]).
//! 2. Keep alive the leases of all claims in the round that this process knows, one request each, at the same
//!    time.
//! 3. Read the contenders of these claims, 120 in one transaction.
//! 4. A contender that is still ours and has the lease of step 2 is renewed.
//! 5. All others are handled one by one: claims that this process does not know, that have changed, that have
//!    a new note or need a lease of another length.
//!
//! The order of 2 and 3 matters. If a contender is attached to a lease *after* that lease was kept alive, the
//! contender lasts for the granted time. The other way round, an operator could move it to another lease in
//! between, and the holder would not learn of it.

use std::collections::HashMap;

use etcd_client::TxnOpResponse;
use futures_util::future::join_all;
use leasehold_core::{
    ClaimRef, GoneReason, OwnerToken, RenewRequest, Renewal, Renewed, Resource, Result, Timestamp, Verb,
};

use crate::{
    NAME,
    backend::Etcd,
    error::StoreError,
    keys::{ResourceKeys, hash_owner},
    lease_pool::{EtcdLease, seconds_for},
    lifetime::{ExtendOutcome, Lifetime},
    local_claims::{LeaseDisposal, LocalClaim},
    read_resource::{parse_contender, read_reply},
    resource_view::{Contender, OwnerKeyValue, token_of},
    transaction::{KeyChange, KeyChanges, Operation, Precondition},
};

/// How many contenders one transaction reads: etcd allows 128 operations.
const READS_PER_TRANSACTION: usize = 120;
/// How many claims are renewed at the same time.
const CLAIMS_PER_ROUND: usize = 128;
const ATTEMPTS_MAX: u32 = 10;

/// Indices of requests for the same claim with the same ttl and note: one renewal answers all of them.
type EqualRequests = Vec<usize>;

/// A claim of this process whose lease was kept alive.
struct KeptAlive {
    /// The claim with its lease as it is now.
    local: LocalClaim,
    /// Until when the claim lasts.
    ends: Timestamp,
}

/// The outcome of step 2 for one claim; `None` if step 5 has to handle it.
type KeepAliveOutcome = Result<Option<KeptAlive>, StoreError>;

impl Etcd {
    pub(crate) async fn renew_batch(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let mut outcomes: Vec<Option<Result<Renewal, StoreError>>> = vec![None; requests.len()];
        for round in rounds(requests) {
            let distinct: Vec<RenewRequest> = round.iter().map(|equal| requests[equal[0]].clone()).collect();
            for (equal, outcome) in round.iter().zip(self.renew_round(&distinct).await) {
                equal.iter().for_each(|&index| outcomes[index] = Some(outcome.clone()));
            }
        }
        let finish = |(outcome, request): (Option<Result<Renewal, StoreError>>, &RenewRequest)| {
            let missing = || Err(StoreError::UnexpectedReply("a renewal has no reply".to_owned()));
            let outcome = outcome.unwrap_or_else(missing);
            outcome.map_err(|error| error.into_error().at(Verb::Renew, NAME).on(&request.resource))
        };
        outcomes.into_iter().zip(requests).map(finish).collect()
    }

    async fn renew_round(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal, StoreError>> {
        let kept = join_all(requests.iter().map(|request| self.keep_alive_known(request))).await;
        let known: Vec<(&RenewRequest, &KeptAlive)> = requests
            .iter()
            .zip(&kept)
            .filter_map(|(request, kept)| Some((request, kept.as_ref().ok()?.as_ref()?)))
            .collect();
        let reads = join_all(known.chunks(READS_PER_TRANSACTION).map(|part| self.read_known(part))).await;
        // In the order of `known`: one for each claim whose lease was kept alive.
        let mut contenders = reads.into_iter().flatten();
        let finish = requests.iter().zip(&kept).map(|(request, kept)| {
            let contender = if matches!(kept, Ok(Some(_))) { contenders.next() } else { None };
            async move {
                match (kept, contender) {
                    (Err(error), _) => Err(error.clone()),
                    (_, Some(Err(error))) => Err(error),
                    (Ok(Some(kept)), Some(Ok(contender))) => {
                        self.confirm_renewal(request, kept, contender).await
                    }
                    _ => self.renew_one(request).await,
                }
            }
        });
        join_all(finish.collect::<Vec<_>>()).await
    }

    /// Keeps the lease of a claim alive, if this process knows the claim and the lease has the right length.
    async fn keep_alive_known(&self, request: &RenewRequest) -> KeepAliveOutcome {
        self.check_note(request.note.as_deref())?;
        let known = self.local_claims.get(&claim_of(request)).filter(LocalClaim::is_created);
        let Some((mut local, mut lease)) =
            known.and_then(|local| Some((local.clone(), local.attached_lease?)))
        else {
            return Ok(None);
        };
        let now = self.environment.now();
        let wanted = now.after(request.ttl);
        // It lasts that long already, or needs a lease of another length: `renew_one` handles both.
        if wanted <= local.ends || lease.requested_seconds != seconds_for(request.ttl) {
            return Ok(None);
        }
        if !lease.lasts(now, request.ttl) {
            match self.lease_pool.keep_alive(&mut lease).await {
                // `renew_one` finds out why it is gone.
                Err(error) if error.is_lease_gone() => return Ok(None),
                kept => kept?,
            }
        }
        local.attached_lease = Some(lease);
        Ok(Some(KeptAlive { local, ends: wanted }))
    }

    /// Reads the contenders of these claims in one transaction.
    async fn read_known(
        &self,
        claims: &[(&RenewRequest, &KeptAlive)],
    ) -> Vec<Result<Option<Contender>, StoreError>> {
        let root = &self.connections.config.root;
        let keys: Vec<ResourceKeys> =
            claims.iter().map(|(request, _)| root.keys_of(&request.resource)).collect();
        let read = |((_, kept), keys): (&(&RenewRequest, &KeptAlive), &ResourceKeys)| {
            Operation::read(&keys.contender(&kept.local.name))
        };
        let reply = match self.connections.read_together(claims.iter().zip(&keys).map(read).collect()).await {
            Ok(reply) => reply,
            Err(error) => return claims.iter().map(|_| Err(error.clone())).collect(),
        };
        let parse = |(reply, keys): (&TxnOpResponse, &ResourceKeys)| {
            read_reply(reply)?.kvs().first().map(|kv| parse_contender(keys, kv)).transpose()
        };
        reply.operations.iter().zip(&keys).map(parse).collect()
    }

    /// Confirms the renewal of a claim whose lease was kept alive, if its contender still has that lease.
    async fn confirm_renewal(
        &self,
        request: &RenewRequest,
        kept: &KeptAlive,
        contender: Option<Contender>,
    ) -> Result<Renewal, StoreError> {
        let lease = kept.local.attached_lease.map(|lease| lease.id);
        let owner_hash = hash_owner(request.owner);
        let is_unchanged = |contender: &Contender| {
            let record = contender.live_record();
            record.is_some_and(|record| record.owner == owner_hash && !record.evicting)
                && Some(contender.lease) == lease
        };
        let Some(contender) = contender.filter(is_unchanged).filter(|_| request.note.is_none()) else {
            return self.renew_one(request).await;
        };
        // With the revision of the last write a release needs no read.
        self.local_claims.update(&claim_of(request), |local| {
            local.note_renewal(&kept.local, kept.ends, contender.modified);
        });
        self.renewal(&contender, kept.ends)
    }

    fn renewal(&self, contender: &Contender, ends: Timestamp) -> Result<Renewal, StoreError> {
        let remaining = self.environment.now().until(ends);
        let Some(record) = contender.record.as_ref().filter(|record| record.held) else {
            return Ok(Renewal::Queued { remaining });
        };
        let mut renewed = Renewed::new(token_of(contender.created)?, remaining);
        renewed.asked = record.finish_request(&*self.environment);
        renewed.evicting = record.evicting;
        Ok(Renewal::Renewed(renewed))
    }

    /// Renews a claim by reading its owner's keys first.
    async fn renew_one(&self, request: &RenewRequest) -> Result<Renewal, StoreError> {
        let keys = self.connections.config.root.keys_of(&request.resource);
        let (claim, owner_hash) = (claim_of(request), hash_owner(request.owner));
        for attempt in 0..ATTEMPTS_MAX {
            let (owner, contender) = self.connections.read_owner(&keys, &owner_hash).await?;
            let Some(contender) = contender.filter(|contender| contender.live_record().is_some()) else {
                // The contender may be gone because its lease is gone, so the lease is not used again.
                self.forget(&claim, LeaseDisposal::Revoke);
                let why = match owner.owner_key {
                    OwnerKeyValue::Tombstone(why) => why,
                    _ => GoneReason::NotThere,
                };
                return Ok(Renewal::Gone { why });
            };
            let Some(contender) = self.write_note(&keys, contender, request.note.as_deref()).await? else {
                // Another client wrote to the contender first: read it again at once.
                continue;
            };
            if let Some(lifetime) = self.extend_unless_evicted(&keys, &claim, &contender, request).await?
                && let Some(contender) =
                    self.read_attached(&keys, &owner_hash, &contender, lifetime.lease).await?
            {
                self.local_claims.update(&claim, |local| {
                    if local.created == contender.created {
                        local.modified = contender.modified;
                    }
                });
                return self.renewal(&contender, lifetime.ends);
            }
            self.back_off(attempt).await;
        }
        Err(StoreError::too_much_contention("the claim could not be renewed"))
    }

    /// Extends a claim. One that is being evicted only learns what is left. `None` if the contender has
    /// changed.
    async fn extend_unless_evicted(
        &self,
        keys: &ResourceKeys,
        claim: &ClaimRef,
        contender: &Contender,
        request: &RenewRequest,
    ) -> Result<Option<Lifetime>, StoreError> {
        if contender.record.as_ref().is_some_and(|record| record.evicting) {
            return self.lifetime_of(None, contender).await;
        }
        match self.extend(keys, claim, contender, request.ttl).await? {
            ExtendOutcome::Extended(lifetime) => Ok(Some(lifetime)),
            ExtendOutcome::ContenderChanged => Ok(None),
        }
    }

    /// Reads the contender again, after its lease was kept alive: `None` if it has another owner or another
    /// lease now.
    async fn read_attached(
        &self,
        keys: &ResourceKeys,
        owner_hash: &str,
        contender: &Contender,
        lease: EtcdLease,
    ) -> Result<Option<Contender>, StoreError> {
        let now = self.connections.read_contender(keys, &contender.name).await?;
        Ok(now.filter(|now| {
            now.is_owned_by(owner_hash) && now.created == contender.created && now.lease == lease.id
        }))
    }

    /// Writes a new note of a holder. Returns the contender as it is then; `None` if it has changed.
    async fn write_note(
        &self,
        keys: &ResourceKeys,
        mut contender: Contender,
        note: Option<&[u8]>,
    ) -> Result<Option<Contender>, StoreError> {
        let record = contender.record.as_mut().filter(|record| record.held);
        let (Some(note), Some(record)) = (note, record) else { return Ok(Some(contender)) };
        record.set_note(note);
        let key = keys.contender(&contender.name);
        let change = KeyChange::PutKeepingLease { value: record.to_value(), lease: contender.lease };
        let unchanged = vec![Precondition::ModifiedAt(key.clone(), contender.modified)];
        let written = self.connections.commit(unchanged, &KeyChanges::from([(key, change)])).await?;
        Ok(written.map(|modified| Contender { modified, ..contender }))
    }
}

fn claim_of(request: &RenewRequest) -> ClaimRef {
    ClaimRef { resource: request.resource.clone(), owner: request.owner }
}

/// Groups requests into rounds that are carried out one after the other, in the order of the requests. No
/// claim is twice in a round, because two renewals of one claim with different ttls must not overtake each
/// other.
fn rounds(requests: &[RenewRequest]) -> Vec<Vec<EqualRequests>> {
    let mut rounds: Vec<Vec<EqualRequests>> = vec![Vec::new()];
    let mut in_this_round: HashMap<(&Resource, OwnerToken), usize> = HashMap::new();
    for (index, request) in requests.iter().enumerate() {
        let round = rounds.last_mut().expect("there is always one");
        let claim = (&request.resource, request.owner);
        let position = in_this_round.get(&claim).copied();
        let is_equal = |other: &RenewRequest| other.ttl == request.ttl && other.note == request.note;
        match position {
            Some(position) if is_equal(&requests[round[position][0]]) => round[position].push(index),
            None if round.len() < CLAIMS_PER_ROUND => {
                in_this_round.insert(claim, round.len());
                round.push(vec![index]);
            }
            _ => {
                in_this_round = HashMap::from([(claim, 0)]);
                rounds.push(vec![vec![index]]);
            }
        }
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_claim_is_once_in_a_round_and_the_order_of_its_requests_stays() {
        let request = |owner: u8, seconds: u64| {
            let claim =
                ClaimRef { resource: "a/b".parse().unwrap(), owner: OwnerToken::from_bytes([owner; 16]) };
            RenewRequest::new(claim, Duration::from_secs(seconds))
        };
        let batch =
            [request(1, 6), request(2, 6), request(1, 6), request(1, 2), request(2, 6), request(1, 6)];
        let expected = vec![vec![vec![0, 2], vec![1]], vec![vec![3], vec![4]], vec![vec![5]]];
        assert_eq!(rounds(&batch), expected);
        assert_eq!(rounds(&vec![request(1, 6); 1000]), [[(0..1000).collect::<Vec<_>>()]]);
        assert_eq!(rounds(&[]), vec![Vec::<EqualRequests>::new()]);
    }
}

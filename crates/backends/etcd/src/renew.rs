//! The verb `renew`: leases are kept alive, then their contenders are looked at, many in one go.
//!
//! In that order. A contender that stands under a lease after that lease was kept will stand for as long as was
//! granted; the other way round, an operator could move it to another lease in between, and nobody would tell.

use std::collections::HashMap;

use etcd_client::TxnOpResponse;
use futures_util::future::join_all;
use leasehold_core::{
    ClaimRef, Error, ErrorKind, GoneReason, OwnerToken, RenewRequest, Renewal, Renewed, Resource, Result,
    Timestamp, Verb,
};

use crate::{
    NAME,
    acquire::token,
    backend::Etcd,
    claims::Record,
    error::Fault,
    keeping::Lasting,
    keys::{Keys, mark},
    line::{Contender, Own},
    pool::{Lease, seconds_for},
    read,
    txn::{Change, Changes, Guard, Op},
};

/// How many are looked at in one transaction: etcd takes 128 operations.
const TOGETHER: usize = 120;
/// How many are kept at the same time.
const AT_ONCE: usize = 128;
const ATTEMPTS: u32 = 10;

impl Etcd {
    pub(crate) async fn renew_batch(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let mut answers: Vec<Option<Result<Renewal, Fault>>> = vec![None; held.len()];
        for round in rounds(held) {
            let asked: Vec<RenewRequest> = round.iter().map(|same| held[same[0]].clone()).collect();
            for (same, answer) in round.iter().zip(self.renew_some(&asked).await) {
                same.iter().for_each(|&index| answers[index] = Some(answer.clone()));
            }
        }
        let at = |(answer, held): (Option<Result<Renewal, Fault>>, &RenewRequest)| {
            let answer = answer.unwrap_or_else(|| Err(Fault::Strange("a renewal has no answer".to_owned())));
            answer.map_err(|fault| fault.into_error().at(Verb::Renew, NAME).on(&held.resource))
        };
        answers.into_iter().zip(held).map(at).collect()
    }

    async fn renew_some(&self, held: &[RenewRequest]) -> Vec<Result<Renewal, Fault>> {
        let kept = join_all(held.iter().map(|held| self.keep_known(held))).await;
        let known: Vec<usize> = (0..held.len()).filter(|&index| matches!(kept[index], Ok(Some(_)))).collect();
        let looks = join_all(known.chunks(TOGETHER).map(|part| self.look_at(held, part, &kept))).await;
        let mut looked = looks.into_iter().flatten();
        let finish = kept.iter().zip(held).map(|(kept, held)| {
            let look = if matches!(kept, Ok(Some(_))) { looked.next() } else { None };
            async move {
                match (kept, look) {
                    (Err(fault), _) => Err(fault.clone()),
                    (_, Some(Err(fault))) => Err(fault),
                    (Ok(Some((record, ends))), Some(Ok(contender))) => {
                        self.judge(held, record, *ends, contender).await
                    }
                    _ => self.renew_unknown(held).await,
                }
            }
        });
        join_all(finish.collect::<Vec<_>>()).await
    }

    /// Keeps the lease of a claim that this process knows, if it is of the right length; until when it lasts.
    async fn keep_known(&self, held: &RenewRequest) -> Result<Option<(Record, Timestamp)>, Fault> {
        let most = self.info.limits.note;
        if held.note.as_ref().is_some_and(|note| note.len() > most) {
            let message = format!("a note has at most {most} bytes");
            return Err(Fault::Refused(Error::new(ErrorKind::Limit, message)));
        }
        let claim = ClaimRef { resource: held.resource.clone(), owner: held.owner };
        let known = self.claims.get(&claim).filter(|record| record.created != 0);
        let Some((mut record, mut under)) = known.and_then(|record| Some((record.clone(), record.under?)))
        else {
            return Ok(None);
        };
        let now = self.environment.now();
        let wanted = now.after(held.ttl);
        if wanted <= record.ends || under.asked != seconds_for(held.ttl) {
            return Ok(None);
        }
        if !under.lasts(now, held.ttl) {
            match self.pool.keep(&mut under).await {
                // It is gone, and why is found out by looking.
                Err(fault) if fault.is_lease_gone() => return Ok(None),
                kept => kept?,
            }
        }
        record.under = Some(under);
        Ok(Some((record, wanted)))
    }

    async fn look_at(
        &self,
        held: &[RenewRequest],
        part: &[usize],
        kept: &[Result<Option<(Record, Timestamp)>, Fault>],
    ) -> Vec<Result<Option<Contender>, Fault>> {
        let keys: Vec<_> =
            part.iter().map(|&index| self.link.config.root.of(&held[index].resource)).collect();
        let gets = part.iter().zip(&keys).map(|(&index, keys)| {
            let name = match &kept[index] {
                Ok(Some((record, _))) => record.name.as_str(),
                _ => "",
            };
            Op::read(&keys.contender(name))
        });
        let gets: Vec<Op> = gets.collect();
        let done = match self.link.look(gets).await {
            Ok(done) => done,
            Err(fault) => return part.iter().map(|_| Err(fault.clone())).collect(),
        };
        let contender = |(answer, keys): (&TxnOpResponse, &Keys)| {
            read::get(answer)?.kvs().first().map(|kv| read::contender(keys, kv)).transpose()
        };
        done.answers.iter().zip(&keys).map(contender).collect()
    }

    /// What the look has shown of a claim whose lease was kept.
    async fn judge(
        &self,
        held: &RenewRequest,
        record: &Record,
        ends: Timestamp,
        contender: Option<Contender>,
    ) -> Result<Renewal, Fault> {
        let under = record.under.map(|under| under.id);
        let me = mark(held.owner);
        let ours = |contender: &Contender| {
            let entry = contender.entry.as_ref();
            entry.is_some_and(|entry| entry.owner == me && !entry.kept && !entry.evicting)
                && Some(contender.lease) == under
        };
        let Some(contender) = contender.filter(ours).filter(|_| held.note.is_none()) else {
            return self.renew_unknown(held).await;
        };
        let claim = ClaimRef { resource: held.resource.clone(), owner: held.owner };
        self.claims.change(&claim, |known| known.was_renewed(record, ends, contender.modified));
        self.renewed(&contender, ends)
    }

    fn renewed(&self, contender: &Contender, ends: Timestamp) -> Result<Renewal, Fault> {
        let remaining = self.environment.now().until(ends);
        let Some(entry) = contender.entry.as_ref().filter(|entry| entry.held) else {
            return Ok(Renewal::Queued { remaining });
        };
        let mut kept = Renewed::new(token(contender.created)?, remaining);
        (kept.asked, kept.evicting) = (entry.asked(&*self.environment), entry.evicting);
        Ok(Renewal::Renewed(kept))
    }

    /// Any other claim: one that this process does not know, or that has changed, or is to.
    async fn renew_unknown(&self, held: &RenewRequest) -> Result<Renewal, Fault> {
        let claim = ClaimRef { resource: held.resource.clone(), owner: held.owner };
        let (keys, me) = (self.link.config.root.of(&held.resource), mark(held.owner));
        for attempt in 0..ATTEMPTS {
            let (own, contender) = self.link.owner(&keys, &me).await?;
            let Some(contender) = contender.filter(|c| c.entry.as_ref().is_some_and(|entry| !entry.kept))
            else {
                // Whatever took the contender may have taken its lease: it is not used again.
                self.forget(&claim, true);
                let why = if let Own::Grave(why) = own.own { why } else { GoneReason::NotThere };
                return Ok(Renewal::Gone { why });
            };
            let contender = match &held.note {
                Some(note) if contender.entry.as_ref().is_some_and(|entry| entry.held) => {
                    match self.write_note(&keys.contender(&contender.name), contender, note).await? {
                        Some(contender) => contender,
                        None => continue,
                    }
                }
                _ => contender,
            };
            let lasting = if contender.entry.as_ref().is_some_and(|entry| entry.evicting) {
                self.lease_of(None, &contender).await?.map(|(lease, ends)| (ends, lease))
            } else {
                match self.extend(&keys, &claim, &contender, held.ttl).await? {
                    Lasting::Until(ends, lease) => Some((ends, lease)),
                    Lasting::Changed => None,
                }
            };
            if let Some((ends, lease)) = lasting
                && let Some(contender) = self.still_under(&keys, &me, &contender, lease).await?
            {
                self.claims.change(&claim, |known| {
                    if known.created == contender.created {
                        known.written = contender.modified;
                    }
                });
                return self.renewed(&contender, ends);
            }
            self.step_aside(attempt).await;
        }
        let message = "the claim changes faster than it can be renewed";
        Err(Fault::Refused(Error::new(ErrorKind::Unavailable, message)))
    }

    /// The contender, if it is still this owner's and stands under this lease now that the lease was kept.
    async fn still_under(
        &self,
        keys: &Keys,
        me: &str,
        contender: &Contender,
        lease: Lease,
    ) -> Result<Option<Contender>, Fault> {
        let now = self.link.contender(keys, &contender.name).await?;
        Ok(now.filter(|now| now.is_of(me) && now.created == contender.created && now.lease == lease.id))
    }

    async fn write_note(
        &self,
        key: &str,
        mut contender: Contender,
        note: &[u8],
    ) -> Result<Option<Contender>, Fault> {
        let Some(entry) = &mut contender.entry else { return Ok(None) };
        entry.set_note(note);
        let changes = Changes::from([(key.to_owned(), Change::Rewrite { value: entry.write() })]);
        let unchanged = vec![Guard::Modified(key.to_owned(), contender.modified)];
        let written = self.link.commit(unchanged, &changes).await?;
        Ok(written.map(|revision| Contender { modified: revision, ..contender }))
    }
}

/// What can be asked at the same time: no claim twice, but for those that ask for the very same. Each is a list of these.
fn rounds(held: &[RenewRequest]) -> Vec<Vec<Vec<usize>>> {
    let mut rounds: Vec<Vec<Vec<usize>>> = vec![Vec::new()];
    let mut known: HashMap<(&Resource, OwnerToken), usize> = HashMap::new();
    for (index, asked) in held.iter().enumerate() {
        let round = rounds.last_mut().expect("there is always one");
        let claim = (&asked.resource, asked.owner);
        let before = known.get(&claim).copied();
        let same = |other: &RenewRequest| other.ttl == asked.ttl && other.note == asked.note;
        match before {
            Some(position) if same(&held[round[position][0]]) => round[position].push(index),
            None if round.len() < AT_ONCE => {
                known.insert(claim, round.len());
                round.push(vec![index]);
            }
            _ => {
                known = HashMap::from([(claim, 0)]);
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
    fn a_claim_is_asked_for_once_at_a_time_and_in_order() {
        let held = |owner: u8, seconds: u64| {
            let claim =
                ClaimRef { resource: "a/b".parse().unwrap(), owner: OwnerToken::from_bytes([owner; 16]) };
            RenewRequest::new(claim, Duration::from_secs(seconds))
        };
        let batch = [held(1, 6), held(2, 6), held(1, 6), held(1, 2), held(2, 6), held(1, 6)];
        let due = vec![vec![vec![0, 2], vec![1]], vec![vec![3], vec![4]], vec![vec![5]]];
        assert_eq!(rounds(&batch), due);
        assert_eq!(rounds(&vec![held(1, 6); 1000]), [[(0..1000).collect::<Vec<_>>()]]);
        assert_eq!(rounds(&[]), vec![Vec::<Vec<usize>>::new()]);
    }
}

//! Carries out a plan, and turns it into a verdict: what is noted locally, which leases go back to the pool.

use leasehold_core::{Error, ErrorKind, Grant, ReleaseRequest, Timestamp, Verdict};

use super::{
    AcquireState, AttemptOutcome, WrittenSoFar,
    decide::{AcquirePlan, Decision, NOT_WRITTEN_YET, queue_full},
};
use crate::{
    claim_record::ClaimRecord,
    error::StoreError,
    lease_pool::EtcdLease,
    lifetime::{ExtendOutcome, Lifetime},
    local_claims::{LeaseDisposal, LocalClaim},
    resource_view::{Contender, ResourceView, token_of},
};

/// The revision of a plan without changes.
const NOTHING_WRITTEN: i64 = 0;

/// A contender of the claim, as a transaction has written it.
pub(super) struct WrittenContender {
    pub(super) name: String,
    pub(super) created: i64,
    pub(super) modified: i64,
}

/// When a plan was read, sent and written.
#[derive(Clone, Copy)]
struct PlanTimes {
    /// The revision that was read.
    read_at: i64,
    /// Before the transaction was sent.
    sent: Timestamp,
    /// The revision of the write, or [`NOTHING_WRITTEN`].
    written_at: i64,
}

impl AcquireState<'_> {
    /// Writes a plan and returns the verdict.
    pub(super) async fn carry_out(
        &mut self,
        mut plan: AcquirePlan,
        read_at: i64,
    ) -> Result<AttemptOutcome, StoreError> {
        let sent = self.now();
        let written_at = if plan.changes.is_empty() {
            NOTHING_WRITTEN
        } else {
            match self.write(&mut plan).await? {
                Some(revision) => revision,
                None => return Ok(AttemptOutcome::LostRace),
            }
        };
        let times = PlanTimes { read_at, sent, written_at };
        let verdict = match plan.decision {
            // The caller takes a lease and decides again, so such a plan is not carried out.
            Decision::NeedsWaitLease => return Ok(AttemptOutcome::LostRace),
            Decision::Cancelled => {
                self.forget_predecessor(None);
                self.finish_without_contender();
                Verdict::Cancelled
            }
            Decision::Mismatch(capacity) => {
                self.finish_without_contender();
                Verdict::Mismatch { capacity }
            }
            Decision::AlreadyHolds(index) => self.granted_before(&plan.view.contenders[index]).await?,
            Decision::Granted { created, continued_lease } => {
                self.granted_by_plan(&plan.view, created, continued_lease, times)?
            }
            Decision::Blocked(waiter) => {
                if written_at != NOTHING_WRITTEN {
                    self.forget_predecessor(None);
                }
                match self.blocked(&plan.view, waiter, times).await? {
                    Some(verdict) => verdict,
                    None => return Ok(AttemptOutcome::LostRace),
                }
            }
        };
        Ok(AttemptOutcome::Finished(verdict))
    }

    fn granted_by_plan(
        &mut self,
        view: &ResourceView,
        created: Option<i64>,
        continued_lease: Option<i64>,
        times: PlanTimes,
    ) -> Result<Verdict, StoreError> {
        let remainder = self.leases.remainder.take();
        let passed_on = self.forget_predecessor(continued_lease.filter(|_| remainder.is_none()));
        let contender = view.find(&self.owner_hash).map(|index| &view.contenders[index]);
        let written = WrittenContender {
            name: contender.map(|contender| contender.name.clone()).unwrap_or_default(),
            created: created.unwrap_or(times.written_at),
            modified: times.written_at,
        };
        let Some(contender) = contender.filter(|_| continued_lease.is_some()) else {
            return self.granted(written, self.leases.hold, times.sent);
        };
        let ttl = contender.record.as_ref().map(ClaimRecord::ttl);
        let remainder = remainder.map(|lease| Lifetime {
            lease,
            ends: ttl.map_or(lease.ends(), |ttl| lease.ends().min(lease.kept_alive_at.after(ttl))),
        });
        let lifetime = remainder.or(passed_on).ok_or_else(just_expired)?;
        self.downgraded(written, lifetime)
    }

    /// A new grant. Its remaining time counts from before the request was sent, so it never ends later here
    /// than in etcd.
    pub(super) fn granted(
        &mut self,
        contender: WrittenContender,
        hold: EtcdLease,
        sent: Timestamp,
    ) -> Result<Verdict, StoreError> {
        let token = token_of(contender.created)?;
        let ends = sent.after(self.claim.ttl).min(hold.ends());
        self.note_contender(sent, contender, Some(hold), ends);
        self.put_back_wait_leases(hold.id);
        Ok(Verdict::Granted(Grant::new(token, sent.until(ends))))
    }

    /// A downgrade: the claim goes on with the rest of its predecessor's lifetime.
    fn downgraded(&mut self, contender: WrittenContender, lifetime: Lifetime) -> Result<Verdict, StoreError> {
        let (now, created) = (self.now(), contender.created);
        self.note_contender(now, contender, Some(lifetime.lease), lifetime.ends);
        self.put_back_wait_leases(lifetime.lease.id);
        Ok(Verdict::Granted(Grant::new(token_of(created)?, now.until(lifetime.ends))))
    }

    /// The claim was granted before: the same grant, with what remains of it.
    async fn granted_before(&mut self, contender: &Contender) -> Result<Verdict, StoreError> {
        let Some(lifetime) = self.etcd.longest_lifetime_of(&self.local, contender).await? else {
            self.finish_without_contender();
            return Err(just_expired());
        };
        // A lease of another client is not noted: it would be put into our pool when the claim has ended.
        let is_ours = self.local.leases().any(|lease| lease.id == lifetime.lease.id);
        let now = self.now();
        let written = WrittenContender {
            name: contender.name.clone(),
            created: contender.created,
            modified: contender.modified,
        };
        self.note_contender(now, written, is_ours.then_some(lifetime.lease), lifetime.ends);
        self.put_back_wait_leases(contender.lease);
        Ok(Verdict::Granted(Grant::new(token_of(contender.created)?, now.until(lifetime.ends))))
    }

    /// The claim waits as the contender at this index, or (`None`) has no contender. Returns `None` if its place
    /// was lost meanwhile: its process was stopped, and others have removed it (ADR 0064).
    async fn blocked(
        &mut self,
        view: &ResourceView,
        waiter: Option<usize>,
        times: PlanTimes,
    ) -> Result<Option<Verdict>, StoreError> {
        let Some(index) = waiter else {
            self.finish_without_contender();
            return Ok(Some(Verdict::Blocked(
                self.etcd.describe_blocked(&self.keys, view, None, times.read_at).await,
            )));
        };
        let queue_max = self.etcd.queue_max();
        let queued_unchecked = self.written == WrittenSoFar::QueuedByFirstTransaction;
        if queued_unchecked && view.waiters_ahead(waiter) > queue_max {
            // The first transaction cannot count the waiters, so the claim that is one too many leaves again.
            self.etcd.try_release(&ReleaseRequest::new(self.claim.reference())).await?;
            self.written = WrittenSoFar::Nothing;
            return Err(StoreError::Refused(queue_full(queue_max)));
        }
        // Noted before the place is extended: if that fails, a release still finds the contender.
        let contender = written_at(&view.contenders[index], times.written_at);
        self.note_waiter(&contender);
        let extended =
            self.etcd.extend(&self.keys, &self.reference, &contender, self.claim.place_ttl).await?;
        if let ExtendOutcome::ContenderChanged = extended {
            return Ok(None);
        }
        Ok(Some(Verdict::Blocked(self.etcd.describe_blocked(&self.keys, view, waiter, times.read_at).await)))
    }

    /// Notes the contender of a waiter, and puts the lease for a waiter back if the contender has another
    /// one.
    fn note_waiter(&mut self, contender: &Contender) {
        let mut local = self.local.clone();
        local.has_unanswered_request = self.earlier_request_unanswered;
        local.name.clone_from(&contender.name);
        if let Some(lease) = self.leases.wait.take_if(|lease| lease.id == contender.lease) {
            let lost = local.attached_lease.replace(lease);
            // The claim had a place before and lost it. Nothing uses the lease of that place any more.
            let lost = lost.filter(|lost| lost.id != lease.id && lost.id != local.hold_lease.id);
            lost.into_iter().for_each(|lost| self.etcd.lease_pool.revoke(lost.id));
            local.ends = lease.kept_alive_at.after(self.claim.place_ttl);
        }
        (local.created, local.modified) = (contender.created, contender.modified);
        self.local = local.clone();
        self.etcd.local_claims.insert(self.now(), self.reference.clone(), local);
        self.leases.wait.take().into_iter().for_each(|unused| self.etcd.lease_pool.put_back(unused));
    }

    /// Notes the contender of a holder. If an earlier request of the claim had no reply, that stays noted:
    /// etcd may still execute it.
    fn note_contender(
        &self,
        now: Timestamp,
        contender: WrittenContender,
        attached_lease: Option<EtcdLease>,
        ends: Timestamp,
    ) {
        let local = LocalClaim {
            hold_lease: self.local.hold_lease,
            name: contender.name,
            attached_lease,
            created: contender.created,
            modified: contender.modified,
            ends,
            has_unanswered_request: self.earlier_request_unanswered,
        };
        self.etcd.local_claims.insert(now, self.reference.clone(), local);
    }

    /// Puts the leases for a waiter back into the pool, but for the one in use.
    fn put_back_wait_leases(&mut self, in_use: i64) {
        let waited_under =
            self.local.attached_lease.filter(|attached| attached.id != self.local.hold_lease.id);
        for lease in [self.leases.wait.take(), waited_under].into_iter().flatten() {
            if lease.id != in_use {
                self.etcd.lease_pool.put_back(lease);
            }
        }
    }

    /// Forgets the predecessor, which the plan has released. Returns its lifetime if its lease goes on with
    /// this claim as `continued_lease`.
    fn forget_predecessor(&self, continued_lease: Option<i64>) -> Option<Lifetime> {
        let mut local = self.etcd.local_claims.remove(&self.predecessor()?)?;
        let lifetime = local.attached_lease.map(|lease| Lifetime { lease, ends: local.ends });
        if continued_lease.is_some() {
            local.attached_lease = None;
            // Its only lease goes on with this claim, so there is none to give up.
            if lifetime.is_some_and(|lifetime| lifetime.lease.id == local.hold_lease.id) {
                return lifetime;
            }
        }
        let leaves_tombstone = self.claim.takes_over_from.is_some_and(|from| from.tombstone.is_some());
        let disposal = if leaves_tombstone { LeaseDisposal::Revoke } else { LeaseDisposal::ReuseIfAnswered };
        self.etcd.dispose_leases(&local, disposal);
        lifetime.filter(|lifetime| Some(lifetime.lease.id) == continued_lease)
    }

    /// The claim has no contender in etcd: forgets it, and puts its leases back.
    fn finish_without_contender(&mut self) {
        let pool = &self.etcd.lease_pool;
        self.leases.wait.take().into_iter().for_each(|lease| pool.put_back(lease));
        let unanswered = self.earlier_request_unanswered;
        self.etcd.local_claims.update(&self.reference, |local| local.has_unanswered_request = unanswered);
        if unanswered {
            // That earlier request may still be executed, so the leases stay noted.
            return;
        }
        self.etcd.forget(&self.reference, LeaseDisposal::ReuseIfAnswered);
        if self.leases.hold.id != self.local.hold_lease.id {
            pool.put_back(self.leases.hold);
        }
    }

    /// Nothing was written, and the call failed: puts the leases back.
    pub(super) fn abandon(&self) {
        let unanswered = self.earlier_request_unanswered;
        self.etcd.local_claims.update(&self.reference, |local| local.has_unanswered_request = unanswered);
        let pool = &self.etcd.lease_pool;
        self.leases.wait.into_iter().for_each(|lease| pool.put_back(lease));
        // These have special lengths that no other claim needs.
        let special = self.leases.tombstone.into_iter().chain(self.leases.remainder);
        special.for_each(|lease| pool.revoke(lease.id));
        let is_unused = !self.local.is_created() && !unanswered;
        if is_unused && let Some(local) = self.etcd.local_claims.remove(&self.reference) {
            self.etcd.dispose_leases(&local, LeaseDisposal::ReuseIfAnswered);
        }
    }
}

/// The contender with the revision of the write in place of [`NOT_WRITTEN_YET`].
fn written_at(contender: &Contender, revision: i64) -> Contender {
    let known = |value: i64| if value == NOT_WRITTEN_YET { revision } else { value };
    Contender { created: known(contender.created), modified: known(contender.modified), ..contender.clone() }
}

/// The lease of a holder ended after it was read as holding, and before etcd was asked how long it lasts.
fn just_expired() -> StoreError {
    let message = "the lease of the claim has just expired: acquire again";
    StoreError::Refused(Error::new(ErrorKind::Unavailable, message))
}

//! The verb `acquire`.
//!
//! 1. Take an etcd lease from the pool, and note locally that a request is under way.
//! 2. Send the *first transaction*: it grants the claim if the resource has no contenders, no pause, and the
//!    owner has no tombstone. One round trip, and most acquires end here. On a resource that was contended
//!    last time, the same transaction otherwise queues the claim and reads the resource
//!    (`acquire/first_transaction.rs`).
//! 3. Otherwise read the resource, unless step 2 did.
//! 4. Decide what to write, and what the verdict is then (`acquire/decide.rs`, pure).
//! 5. Write it in one transaction, on the condition that nothing has changed that the decision rests on. If
//!    something has, pause for a moment and go back to step 3, up to [`ATTEMPTS_MAX`] times.
//! 6. Note locally what was written, give unused leases back, and return the verdict (`acquire/finish.rs`).
//!
//! A repeated acquire of the same owner finds its contender in step 4 and gets the same grant again.

use std::time::Duration;

use futures_util::future::join;
use leasehold_core::{
    Claim, ClaimRef, Effect, Error, ErrorKind, FencingToken, Timestamp, Verdict, WhenBlocked,
};

use crate::{
    backend::Etcd,
    contention::ATTEMPTS_MAX,
    error::StoreError,
    keys::{ResourceKeys, hash_owner},
    lease_pool::{EtcdLease, seconds_for, whole_seconds},
    local_claims::{LeaseDisposal, LocalClaim},
    read_resource::ResourceRead,
    resource_view::ResourceView,
};

mod decide;
mod finish;
mod first_transaction;
mod together;

pub(crate) use together::{group, in_order};

use decide::{AcquirePlan, AvailableLeases, Decision, DecisionInput, decide, floor_not_reached};
use first_transaction::FirstOutcome;

/// In how many of the attempts only the head of the queue is read.
const HEAD_ATTEMPTS: u32 = 4;

/// A `limit` of a read: all contenders.
const ALL_CONTENDERS: i64 = 0;

/// One call of `acquire`: what was asked, what is known of the claim, and the leases taken for it.
struct AcquireState<'a> {
    etcd: &'a Etcd,
    claim: &'a Claim,
    reference: ClaimRef,
    keys: ResourceKeys,
    owner_hash: String,
    /// What this process knew of the claim before this call, or a new entry.
    local: LocalClaim,
    leases: TakenLeases,
    /// An earlier request of this claim had no reply, and may still be executed.
    earlier_request_unanswered: bool,
    /// The resource was contended last time: the first transaction has its long form.
    was_contended: bool,
    written: WrittenSoFar,
}

/// The leases that an acquire has taken.
struct TakenLeases {
    /// For the claim as a holder.
    hold: EtcdLease,
    /// For the claim as a waiter.
    wait: Option<EtcdLease>,
    /// For the tombstone of the predecessor.
    tombstone: Option<EtcdLease>,
    /// As long as the rest of the predecessor's lease. That lease belongs to another client, which may use it
    /// again, so a downgrade must not stay attached to it.
    remainder: Option<EtcdLease>,
}

/// What this call has written to etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrittenSoFar {
    Nothing,
    /// The first transaction queued the claim.
    QueuedByFirstTransaction,
    /// A plan was written.
    Plan,
}

/// The outcome of one attempt to decide and to write.
enum AttemptOutcome {
    Finished(Verdict),
    /// A lease was missing and has been taken. What was read is still good.
    DecideAgain(ResourceRead),
    /// Read again at once: a lease was gone.
    ReadAgain,
    /// Another client changed the resource first. Pause, then read again.
    LostRace,
}

impl Etcd {
    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Verdict, StoreError> {
        let mut state = self.begin_acquire(claim).await?;
        let verdict = state.run().await;
        state.settle(verdict)
    }

    /// Checks the claim, and does step 1.
    async fn begin_acquire<'a>(&'a self, claim: &'a Claim) -> Result<AcquireState<'a>, StoreError> {
        self.check_note(claim.note.as_deref())?;
        let keys = self.connections.config.root.keys_of(&claim.resource);
        self.check_floor(&keys, claim).await?;
        AcquireState::begin(self, claim, keys).await
    }

    /// Refuses a note that is too long.
    pub(crate) fn check_note(&self, note: Option<&[u8]>) -> Result<(), StoreError> {
        let most = self.info.limits.note;
        match note.map(<[u8]>::len).filter(|length| *length > most) {
            None => Ok(()),
            Some(length) => {
                let message = format!("a note has at most {most} bytes, this one has {length}");
                Err(StoreError::Refused(Error::new(ErrorKind::Limit, message)))
            }
        }
    }

    /// Grants the lease for a tombstone that lasts this long.
    pub(crate) async fn grant_tombstone_lease(
        &self,
        lasting: Option<Duration>,
    ) -> Result<Option<EtcdLease>, StoreError> {
        match lasting {
            Some(lasting) => self.lease_pool.grant(whole_seconds(lasting)).await.map(Some),
            None => Ok(None),
        }
    }

    /// Refuses a floor that is above every revision, before anything is written.
    async fn check_floor(&self, keys: &ResourceKeys, claim: &Claim) -> Result<(), StoreError> {
        let floor = claim.floor.map_or(0, FencingToken::as_i64);
        if floor <= self.connections.highest_revision() {
            return Ok(());
        }
        // Only the revision matters, so one contender is enough.
        let revision = self.connections.read(keys, &[], 1).await?.view.revision;
        if floor <= revision { Ok(()) } else { Err(StoreError::Refused(floor_not_reached(floor, revision))) }
    }
}

impl<'a> AcquireState<'a> {
    /// Takes the leases, and notes that a request is under way. If the call is dropped, that note stays: the
    /// leases are then revoked with the claim, and not used again.
    async fn begin(
        etcd: &'a Etcd,
        claim: &'a Claim,
        keys: ResourceKeys,
    ) -> Result<AcquireState<'a>, StoreError> {
        let (reference, now, owner_hash) =
            (claim.reference(), etcd.environment.now(), hash_owner(claim.owner));
        let known = etcd.local_claims.get(&reference);
        let fits =
            |lease: &EtcdLease| lease.requested_seconds == seconds_for(claim.ttl) && lease.is_usable(now);
        let hold = match known.as_ref().and_then(|local| local.leases().next()).filter(fits) {
            Some(lease) => lease,
            None => etcd.lease_pool.take(claim.ttl).await?,
        };
        let earlier_request_unanswered = known.as_ref().is_some_and(|local| local.has_unanswered_request);
        let mut local = match known {
            // Its contender may be attached to the old lease.
            Some(local) if local.is_created() || earlier_request_unanswered => local,
            Some(unused) => {
                if unused.hold_lease.id != hold.id {
                    etcd.dispose_leases(&unused, LeaseDisposal::ReuseIfAnswered);
                }
                LocalClaim::new(hold, owner_hash.clone())
            }
            None => LocalClaim::new(hold, owner_hash.clone()),
        };
        // Set before anything is sent, so that it stays set if this call is dropped.
        local.has_unanswered_request = true;
        etcd.local_claims.insert(now, reference.clone(), local.clone());
        let was_contended = etcd.contention_hints.is_contended(&keys.lock_prefix);
        let may_queue = claim.when_blocked == WhenBlocked::Queue && !local.is_created();
        // Only a ready one: the first transaction works without it, and a grant would be one more round trip.
        let wait =
            (was_contended && may_queue).then(|| etcd.lease_pool.take_ready(claim.place_ttl)).flatten();
        let tombstone =
            etcd.grant_tombstone_lease(claim.takes_over_from.and_then(|from| from.tombstone)).await?;
        let leases = TakenLeases { hold, wait, tombstone, remainder: None };
        Ok(AcquireState {
            etcd,
            claim,
            reference,
            keys,
            owner_hash,
            local,
            leases,
            earlier_request_unanswered,
            was_contended,
            written: WrittenSoFar::Nothing,
        })
    }

    fn now(&self) -> Timestamp {
        self.etcd.environment.now()
    }

    /// Whether the claim can begin with the first transaction.
    ///
    /// Not if it may exist already: the first transaction keeps its lease alive, and a repeated acquire must
    /// not extend a claim. A handover needs a read first, to find the predecessor.
    fn is_new(&self) -> bool {
        let exists = self.local.is_created() || self.earlier_request_unanswered;
        !exists && self.claim.takes_over_from.is_none()
    }

    async fn run(&mut self) -> Result<Verdict, StoreError> {
        let first =
            if self.is_new() { self.send_first_transaction().await? } else { FirstOutcome::Undecided(None) };
        self.go_on(first).await
    }

    /// Steps 3 to 6.
    async fn go_on(&mut self, first: FirstOutcome) -> Result<Verdict, StoreError> {
        let mut read = match first {
            FirstOutcome::Granted(verdict) => return Ok(verdict),
            FirstOutcome::Undecided(read) => read,
        };
        for attempt in 0..ATTEMPTS_MAX {
            let current = match read.take() {
                Some(current) => current,
                None => self.read(attempt).await?,
            };
            match self.attempt(current).await? {
                AttemptOutcome::Finished(verdict) => return Ok(verdict),
                AttemptOutcome::DecideAgain(still_good) => read = Some(still_good),
                AttemptOutcome::ReadAgain => {}
                AttemptOutcome::LostRace => {
                    // How much remains of the predecessor's lease may have changed, too.
                    let stale = self.leases.remainder.take();
                    stale.into_iter().for_each(|lease| self.etcd.lease_pool.revoke_unused(lease.id));
                    self.etcd.back_off(attempt).await;
                }
            }
        }
        Err(StoreError::too_much_contention("the claim could not be decided"))
    }

    /// Ends the call: if it failed without an effect, its leases go back.
    fn settle(self, verdict: Result<Verdict, StoreError>) -> Result<Verdict, StoreError> {
        let error = match verdict {
            Ok(verdict) => return Ok(verdict),
            Err(error) => error.into_error(),
        };
        if error.effect() == Effect::None && self.written != WrittenSoFar::Nothing {
            // The last request had no effect, but an earlier one of this call had: the claim may be in the
            // queue.
            return Err(StoreError::Refused(error.with_effect(Effect::Unknown)));
        }
        if error.effect() == Effect::None {
            self.abandon();
        }
        Err(StoreError::Refused(error))
    }

    async fn read(&self, attempt: u32) -> Result<ResourceRead, StoreError> {
        let predecessor = self.claim.takes_over_from.map(|from| hash_owner(from.owner));
        let hashes = [Some(self.owner_hash.as_str()), predecessor.as_deref()];
        let hashes: Vec<&str> = hashes.into_iter().flatten().collect();
        // If the attempts fail again and again, the cause may be a contender behind the head of the queue: a
        // foreign lock.
        let limit = if attempt < HEAD_ATTEMPTS { self.head_limit() } else { ALL_CONTENDERS };
        self.etcd.connections.read(&self.keys, &hashes, limit).await
    }

    /// How many contenders are read: for a mutex the head of the queue, for shared claims all, because all
    /// must be counted.
    fn head_limit(&self) -> i64 {
        if self.claim.share.capacity() == 1 { ResourceView::HEAD } else { ALL_CONTENDERS }
    }

    /// Decides, takes a missing lease, or writes the plan.
    async fn attempt(&mut self, read: ResourceRead) -> Result<AttemptOutcome, StoreError> {
        let plan = self.decide(&read)?;
        if plan.decision == Decision::NeedsWaitLease {
            self.leases.wait = Some(self.etcd.lease_pool.take(self.claim.place_ttl).await?);
            return Ok(AttemptOutcome::DecideAgain(read));
        }
        if let Decision::Granted { continued_lease: Some(lease), .. } = plan.decision
            && self.leases.remainder.is_none()
            && !self.is_lease_of_local_predecessor(lease)
        {
            self.leases.remainder = self.grant_remainder_of(lease).await?;
            return Ok(match self.leases.remainder {
                Some(_) => AttemptOutcome::DecideAgain(read),
                None => AttemptOutcome::ReadAgain,
            });
        }
        match self.carry_out(plan, read.view.revision).await {
            Err(error) if error.is_lease_gone() => {
                self.replace_leases().await?;
                Ok(AttemptOutcome::ReadAgain)
            }
            outcome => outcome,
        }
    }

    fn decide(&self, read: &ResourceRead) -> Result<AcquirePlan, StoreError> {
        let id = |lease: Option<EtcdLease>| lease.map(|lease| lease.id);
        let leases = AvailableLeases {
            hold: self.leases.hold.id,
            wait: id(self.leases.wait),
            tombstone: id(self.leases.tombstone),
            remainder: id(self.leases.remainder),
        };
        decide(&DecisionInput {
            keys: &self.keys,
            claim: self.claim,
            read,
            leases,
            now: self.etcd.environment.wall(),
            queue_max: self.etcd.queue_max(),
        })
        .map_err(StoreError::Refused)
    }

    /// Whether this lease belongs to the predecessor, and the predecessor is a claim of this process.
    fn is_lease_of_local_predecessor(&self, lease: i64) -> bool {
        let predecessor = self.predecessor().and_then(|claim| self.etcd.local_claims.get(&claim));
        let attached = predecessor.and_then(|local| local.attached_lease);
        attached.is_some_and(|attached| attached.id == lease)
    }

    fn predecessor(&self) -> Option<ClaimRef> {
        let from = self.claim.takes_over_from?;
        Some(ClaimRef { resource: self.claim.resource.clone(), owner: from.owner })
    }

    /// Grants a lease that ends when this one does; `None` if this one has ended.
    async fn grant_remainder_of(&self, lease: i64) -> Result<Option<EtcdLease>, StoreError> {
        let Some((left, _)) = self.etcd.lease_pool.remaining(lease).await? else { return Ok(None) };
        let lease = self.etcd.lease_pool.grant(whole_seconds(left)).await?;
        // A length of zero matches no ttl. So a renewal moves the claim to a lease of the right length, and
        // the pool never hands this one out again.
        Ok(Some(EtcdLease { requested_seconds: 0, ..lease }))
    }

    /// Takes new leases, because the ones at hand are gone: etcd was restored, or an operator revoked them.
    async fn replace_leases(&mut self) -> Result<(), StoreError> {
        let pool = &self.etcd.lease_pool;
        self.leases.hold = pool.grant(seconds_for(self.claim.ttl)).await?;
        if !self.local.is_created() {
            let hold = self.leases.hold;
            self.local.hold_lease = hold;
            self.etcd.local_claims.update(&self.reference, |local| local.hold_lease = hold);
        }
        self.leases.remainder = None;
        if self.leases.wait.is_some() {
            self.leases.wait = Some(pool.grant(seconds_for(self.claim.place_ttl)).await?);
        }
        Ok(())
    }

    /// The lease to hold under, kept alive if it would not last for the ttl.
    async fn refreshed_hold_lease(&self) -> EtcdLease {
        self.refreshed(self.leases.hold, self.claim.ttl).await
    }

    /// The lease, kept alive if it would not last for the ttl. If that fails, the claim gets what is left of
    /// it.
    async fn refreshed(&self, mut lease: EtcdLease, ttl: Duration) -> EtcdLease {
        if !lease.lasts(self.now(), ttl)
            && let Err(error) = self.etcd.lease_pool.keep_alive(&mut lease).await
        {
            tracing::debug!(?error, lease = lease.id, "no keep-alive before use: the grant may be shorter");
        }
        lease
    }

    /// Writes the plan, and keeps the lease alive at the same time: that costs no extra round trip (ADR
    /// 0023). `None` if another client changed the resource first.
    async fn write(&mut self, plan: &mut AcquirePlan) -> Result<Option<i64>, StoreError> {
        let uses_hold_lease = matches!(plan.decision, Decision::Granted { continued_lease: None, .. });
        let ttl = if uses_hold_lease { self.claim.ttl } else { Duration::ZERO };
        let preconditions = std::mem::take(&mut plan.preconditions);
        let commit = self.etcd.connections.commit(preconditions, &plan.changes);
        let (committed, hold) = join(commit, self.refreshed(self.leases.hold, ttl)).await;
        self.leases.hold = hold;
        let revision = committed?;
        if revision.is_some() && self.written == WrittenSoFar::Nothing {
            self.written = WrittenSoFar::Plan;
        }
        Ok(revision)
    }
}

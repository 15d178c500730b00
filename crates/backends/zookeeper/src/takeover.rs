//! Acquire for a claim that takes over from another claim of the same client, its *predecessor*.
//!
//! The engine uses this to hand a lease from one task to the next, to give up a place in the queue for
//! another task, and to downgrade a lease (a writer becomes a reader). A claim without a contender gets one
//! in the same transaction in which its predecessor loses its own: afterwards exactly one of them has a
//! contender, whatever reply is lost (`marker.rs`).
//!
//! 1. If the claim has a tombstone, refuse it. Still release its predecessor: that was part of the same
//!    request.
//! 2. If the claim has a marker that this session does not know, an earlier attempt was executed and its
//!    reply was lost: go on with that contender (`recover.rs`).
//! 3. If the contenders use another capacity: capacity mismatch.
//! 4. If the engine asks for it, leave a tombstone for the predecessor.
//! 5. Find the predecessor's contender. Then either
//!    - *inherit its node*, if the predecessor waits in the queue, or holds the resource with a higher weight
//!      (a downgrade). The name of a node cannot be changed, so its data names the successor, and the
//!      successor's marker names the node; or
//!    - *join the queue at its end* and delete the predecessor's contender. If no other claim waits,
//!      this grants the claim.

use std::time::Duration;

use leasehold_core::{ClaimRef, Grant, Handover, Verdict, WhenBlocked};
use zookeeper_client::{Error as Driver, Stat};

use crate::{
    ROUNDS_MAX, RoundOutcome,
    acquire::{AcquireContext, CreateOutcome},
    claim_record::{ClaimRecord, token_from_zxid},
    error::StoreError,
    evaluate::ContenderOrigin,
    local_claims::{LocalClaim, RecordWrite},
    marker::FoundContender,
    paths::{self, folder},
    resource_view::ResourceView,
    session::Session,
    transaction::TransactionError,
};

/// One attempt of a claim to take over from its predecessor.
pub(crate) struct Takeover<'a> {
    context: &'a AcquireContext<'a>,
    session: &'a Session,
    handover: Handover,
    /// The claim that loses its contender.
    predecessor: ClaimRef,
    /// The claim waits in the queue already, with a contender of its own.
    is_queued: bool,
}

/// The contender of the predecessor, as it is now.
pub(crate) struct Predecessor {
    pub(crate) claim: ClaimRef,
    pub(crate) node: String,
    pub(crate) stat: Stat,
    record: ClaimRecord,
    weight: u32,
    /// The weight in the name of the node. It may have been lowered since.
    named_weight: u32,
    is_holder: bool,
    /// The node belongs to this session.
    is_of_this_session: bool,
}

/// What a takeover reads first.
struct TakeoverRead {
    /// The claim has a tombstone, which may be past its end.
    has_tombstone: bool,
    has_marker: bool,
    view: Option<ResourceView>,
    /// The predecessor's node, if this session knows its name and it exists.
    predecessor: Option<PredecessorNode>,
}

/// The node of the predecessor's contender as it was read.
struct PredecessorNode {
    node: String,
    record: ClaimRecord,
    stat: Stat,
}

/// The outcome of looking for the predecessor's contender.
enum PredecessorLookup {
    Found(Box<Predecessor>),
    /// The ensemble has confirmed that the predecessor has no contender.
    NoContender,
    /// The contender is not in the view that was read before, so the view is too old.
    ViewOutdated,
}

impl<'a> Takeover<'a> {
    pub(crate) fn new(context: &'a AcquireContext<'a>, handover: Handover, is_queued: bool) -> Takeover<'a> {
        let predecessor = ClaimRef { resource: context.claim.resource.clone(), owner: handover.owner };
        Takeover { context, session: context.session, handover, predecessor, is_queued }
    }

    /// Steps 1 to 5 at the top of the file. `Retry` if another client changed the contenders at the same
    /// time.
    pub(crate) async fn run(&self) -> Result<RoundOutcome<Verdict>, StoreError> {
        let (session, claim) = (self.session, self.context.claim);
        let reference = &self.context.reference;
        let TakeoverRead { has_tombstone, has_marker, mut view, mut predecessor } = self.read().await?;
        // If there is one, it is read again, because it may be past its end.
        if has_tombstone && session.read_tombstone(reference).await?.is_some() {
            self.release_predecessor(self.handover.tombstone).await?;
            return self.context.refuse_cancelled().await.map(RoundOutcome::Done);
        }
        if let Some(view) = &mut view {
            session.add_weights(&claim.resource, view).await?;
        }
        if session.forget_if_gone(reference, view.as_ref()) {
            return Ok(RoundOutcome::Retry);
        }
        if !self.is_queued && has_marker {
            return self.recover().await.map_err(StoreError::after_effect);
        }
        let capacity = view.as_ref().and_then(|view| view.capacity_of_first(view.list.contenders.len()));
        if let Some(capacity) = capacity.filter(|capacity| *capacity != claim.share.capacity()) {
            session.remove(reference).await?;
            return Ok(RoundOutcome::Done(Verdict::Mismatch { capacity }));
        }
        if let Some(keep) = self.handover.tombstone {
            session.write_tombstone(&self.predecessor, keep).await?;
            // Read again: requests of the predecessor that were executed before its tombstone are visible
            // now, and no later one can succeed.
            view = session.view_with_weights(&claim.resource).await?;
            predecessor = None;
        }
        self.take_over(view, predecessor).await.map_err(StoreError::after_effect)
    }

    /// Reads all that steps 1 to 5 need, in one request.
    async fn read(&self) -> Result<TakeoverRead, StoreError> {
        let (session, reference) = (self.session, &self.context.reference);
        let known = session.claims.read(&self.predecessor, |local| local.node.clone());
        let mut paths = vec![paths::tombstone(reference), paths::marker(reference)];
        paths.extend(known.iter().map(|node| paths::contender(&reference.resource, node)));
        let (view, nodes) = session.view_with_nodes(&reference.resource, &paths).await?;
        let mut nodes = nodes.into_iter();
        let mut next = || nodes.next().flatten();
        let (has_tombstone, has_marker) = (next().is_some(), next().is_some());
        let predecessor = known.zip(next()).map(|(node, (data, stat))| PredecessorNode {
            node,
            record: ClaimRecord::from_bytes(&data),
            stat,
        });
        Ok(TakeoverRead { has_tombstone, has_marker, view, predecessor })
    }

    /// Step 2: goes on with a contender that an earlier attempt created.
    async fn recover(&self) -> Result<RoundOutcome<Verdict>, StoreError> {
        match self.context.recover().await? {
            outcome @ (RoundOutcome::Retry | RoundOutcome::Done(Verdict::Granted(_))) => Ok(outcome),
            // The claim waits, with a contender of another session. That contender cannot take anything over.
            RoundOutcome::Done(_) => {
                self.release_predecessor(self.handover.tombstone).await?;
                self.context.recover().await
            }
        }
    }

    /// Step 5.
    async fn take_over(
        &self,
        view: Option<ResourceView>,
        read: Option<PredecessorNode>,
    ) -> Result<RoundOutcome<Verdict>, StoreError> {
        match (self.find_predecessor(view.as_ref(), read).await?, view) {
            (PredecessorLookup::ViewOutdated, _) => Ok(RoundOutcome::Retry),
            (PredecessorLookup::Found(predecessor), Some(_)) if self.inherits_node(&predecessor) => {
                self.inherit(&predecessor).await
            }
            (PredecessorLookup::Found(predecessor), Some(view)) => {
                let handovers = self.count_handovers(&predecessor, &view);
                self.join_queue(Some(&predecessor), handovers).await
            }
            _ => self.join_queue(None, 0).await,
        }
    }

    /// Whether the claim goes on with the predecessor's node. Otherwise it needs a contender of its own.
    fn inherits_node(&self, predecessor: &Predecessor) -> bool {
        let claim = self.context.claim;
        let weight = claim.share.weight();
        if predecessor.is_holder {
            // A downgrade: there must be no gap, even if others wait.
            return weight < predecessor.weight;
        }
        let needs_place = claim.when_blocked == WhenBlocked::Queue && !self.is_queued;
        needs_place && weight <= predecessor.named_weight && predecessor.is_of_this_session
    }

    /// How many times in a row the lease has been handed over, this time included. 0 if this is no handover
    /// of a lease.
    fn count_handovers(&self, predecessor: &Predecessor, view: &ResourceView) -> u32 {
        let waiting = view.list.contenders.len() - view.admission().holder_count;
        let others_waiting = waiting - usize::from(self.is_queued).min(waiting);
        let hands_over = predecessor.is_holder
            && self.context.claim.share.weight() == predecessor.weight
            && others_waiting == 0
            && !view.is_paused()
            && !predecessor.record.evicting;
        if hands_over { predecessor.record.handovers + 1 } else { 0 }
    }

    /// Takes the predecessor's node as it is, and deletes the contender that the claim has in the queue.
    async fn inherit(&self, predecessor: &Predecessor) -> Result<RoundOutcome<Verdict>, StoreError> {
        let (session, context) = (self.session, self.context);
        let (sent, record) = (session.now(), self.inherited_record(predecessor));
        let Some(stat) = self.commit_inheritance(predecessor, &record).await? else {
            if self.is_queued {
                // An operator may have written to the claim's own node, so that it could not be deleted.
                session.reread(&context.reference).await?;
            }
            return Ok(RoundOutcome::Retry);
        };
        session.note_commit_with_stat(sent, &stat);
        // A downgraded lease needs a token of its own: the zxid of this transaction. A place in the queue
        // keeps the czxid.
        let token = token_from_zxid(if predecessor.is_holder { stat.mzxid } else { predecessor.stat.czxid })?;
        let remaining = session.remaining(context.began);
        let weight = context.claim.share.weight();
        let mut local = LocalClaim::new(predecessor.node.clone(), token, record, weight);
        (local.version, local.took_over, local.is_granted) = (stat.version, true, predecessor.is_holder);
        local.valid_until = context.began.after(remaining);
        let local = predecessor.is_of_this_session.then_some(local);
        session.claims.replace(&predecessor.claim, context.reference.clone(), local);
        if !predecessor.is_of_this_session {
            // No time is promised: the node ends with another session, and this client does not know when
            // that is.
            return Ok(RoundOutcome::Done(Verdict::Granted(Grant::new(token, Duration::ZERO))));
        }
        if predecessor.is_holder {
            return Ok(RoundOutcome::Done(Verdict::Granted(Grant::new(token, remaining))));
        }
        context.evaluate(ContenderOrigin::EarlierCall, None).await
    }

    /// The data of a node after the claim has taken it over.
    fn inherited_record(&self, predecessor: &Predecessor) -> ClaimRecord {
        let mut record = self.context.new_record();
        record.set_successor(self.context.claim.owner);
        let weight = self.context.claim.share.weight();
        record.lowered_weight = (weight < predecessor.named_weight).then_some(weight);
        if predecessor.is_holder {
            // The same work goes on with a lower weight. What an operator asked of it stays, or a downgrade
            // would undo it.
            let old = &predecessor.record;
            (record.downgraded, record.handovers) = (true, old.handovers);
            (record.finish_request, record.evicting) = (old.finish_request.clone(), old.evicting);
        }
        record
    }

    /// The transaction of [`Takeover::inherit`]. Returns the stat of the node, or `None` if something has
    /// changed.
    async fn commit_inheritance(
        &self,
        predecessor: &Predecessor,
        record: &ClaimRecord,
    ) -> Result<Option<Stat>, StoreError> {
        let (session, reference) = (self.session, &self.context.reference);
        let (folder, marker) = (folder(&reference.resource), paths::marker(reference));
        let own = session.claims.read(reference, |local| (local.node.clone(), local.version));
        let own = own.filter(|_| self.is_queued);
        // See `Session::delete_contender` for why the predecessor's marker can be missing.
        for has_marker in [true, false] {
            let mut transaction = session.transaction();
            transaction.check_no_tombstone(reference);
            if let Some((node, version)) = &own {
                transaction.delete(&format!("{folder}/{node}"), Some(*version));
                transaction.delete(&marker, None);
            }
            transaction.create(&marker, predecessor.node.as_bytes(), &session.ephemeral());
            let path = format!("{folder}/{}", predecessor.node);
            // The first `set_data`, because `stat` returns the stat of the first one.
            transaction.set_data(&path, &record.to_bytes(), Some(predecessor.stat.version));
            // Changes the version of the folder, on which `remove_stray_marker` relies.
            transaction.set_data(&folder, reference.resource.key().as_bytes(), None);
            let delete_marker =
                has_marker.then(|| transaction.delete(&paths::marker(&predecessor.claim), None));
            match transaction.commit().await {
                Ok(committed) => return Ok(committed.stat().copied()),
                Err(TransactionError::Operation { position, source: Driver::NoNode })
                    if Some(position) == delete_marker => {}
                Err(TransactionError::Operation {
                    source: Driver::NoNode | Driver::BadVersion | Driver::NodeExists,
                    ..
                }) => return Ok(None),
                Err(error) => return Err(StoreError::from(error)),
            }
        }
        Ok(None)
    }

    /// Releases the predecessor. The claim joins the queue at its end, or keeps the place that it has.
    async fn join_queue(
        &self,
        predecessor: Option<&Predecessor>,
        handovers: u32,
    ) -> Result<RoundOutcome<Verdict>, StoreError> {
        if self.is_queued {
            if predecessor.is_some() {
                self.release_predecessor(None).await?;
            }
            self.write_handovers(handovers).await?;
            return self.context.evaluate(ContenderOrigin::EarlierCall, None).await;
        }
        let mut record = self.context.new_record();
        record.handovers = handovers;
        match self.context.create_contender(&record, predecessor).await? {
            CreateOutcome::Created(listed) => {
                if let Some(predecessor) = predecessor {
                    self.session.claims.remove(&predecessor.claim);
                }
                self.context.evaluate(ContenderOrigin::ThisCall, listed).await
            }
            CreateOutcome::Cancelled => {
                if predecessor.is_some() {
                    self.release_predecessor(None).await?;
                }
                self.context.refuse_cancelled().await.map(RoundOutcome::Done)
            }
            CreateOutcome::AlreadyExists | CreateOutcome::PredecessorChanged => Ok(RoundOutcome::Retry),
        }
    }

    /// Writes the number of handovers into the claim's node.
    async fn write_handovers(&self, handovers: u32) -> Result<(), StoreError> {
        let reference = &self.context.reference;
        for _ in 0..ROUNDS_MAX {
            let known = self
                .session
                .claims
                .read(reference, |local| (local.node.clone(), local.version, local.record.clone()));
            let Some((node, version, mut record)) =
                known.filter(|(_, _, record)| record.handovers != handovers)
            else {
                return Ok(());
            };
            record.handovers = handovers;
            match self.session.write_local_record(reference, (&node, version), record).await? {
                RecordWrite::Written(_) => return Ok(()),
                RecordWrite::VersionChanged | RecordWrite::NodeGone => self.session.reread(reference).await?,
            }
        }
        Err(StoreError::contention())
    }

    /// Deletes all nodes of the predecessor. A tombstone comes first if the servers may still execute a
    /// request of it.
    async fn release_predecessor(&self, tombstone: Option<Duration>) -> Result<(), StoreError> {
        if let Some(keep) = tombstone {
            self.session.write_tombstone(&self.predecessor, keep).await?;
        }
        self.session.remove_local(&self.predecessor).await?;
        self.session.remove_all(&self.predecessor).await?;
        Ok(())
    }

    /// Finds the predecessor's contender. `read` is its node, if it was read together with the view.
    async fn find_predecessor(
        &self,
        view: Option<&ResourceView>,
        read: Option<PredecessorNode>,
    ) -> Result<PredecessorLookup, StoreError> {
        let (session, claim) = (self.session, &self.predecessor);
        let known =
            session.claims.read(claim, |local| (local.node.clone(), local.took_over, local.is_granted));
        if let Some((node, took_over, is_granted)) = known {
            let read = read.filter(|read| read.node == node);
            if let Some(mut predecessor) = self.read_predecessor(view, &node, took_over, read).await? {
                predecessor.is_holder |= is_granted;
                return Ok(PredecessorLookup::Found(Box::new(predecessor)));
            }
            // Another session has deleted the node, or has taken it over.
            session.claims.remove(claim);
        }
        let mut nodes = session.find(claim).await?;
        let Some(FoundContender { node, took_over, .. }) = nodes.contenders.pop() else {
            // A list can be old in spite of the sync, if the leader has just changed. A transaction cannot.
            if session.has_no_contender(claim).await? {
                return Ok(PredecessorLookup::NoContender);
            }
            session.remove_stray_marker(claim, &nodes).await?;
            return Ok(PredecessorLookup::ViewOutdated);
        };
        let predecessor = self.read_predecessor(view, &node, took_over, None).await?;
        Ok(predecessor.map_or(PredecessorLookup::ViewOutdated, |p| PredecessorLookup::Found(Box::new(p))))
    }

    /// Reads the predecessor's node, unless it was read already. `None` if it is not in the view, or belongs to
    /// another owner now.
    async fn read_predecessor(
        &self,
        view: Option<&ResourceView>,
        node: &str,
        took_over: bool,
        read: Option<PredecessorNode>,
    ) -> Result<Option<Predecessor>, StoreError> {
        let claim = &self.predecessor;
        let Some(view) = view else { return Ok(None) };
        let Some(position) = view.list.position(node) else { return Ok(None) };
        let (record, stat) = match read {
            Some(read) => (read.record, read.stat),
            None => {
                let read = self.session.read_contenders(&claim.resource, &view.list, &[position]).await?;
                let Some(read) = read.into_iter().next() else { return Ok(None) };
                (read.record, read.stat)
            }
        };
        if !record.belongs_to(claim.owner, took_over) {
            return Ok(None);
        }
        let named_weight = view.list.contenders[position].share.weight();
        Ok(Some(Predecessor {
            claim: claim.clone(),
            node: node.to_owned(),
            weight: record.weight(named_weight),
            named_weight,
            is_holder: position < view.admission().holder_count,
            is_of_this_session: stat.ephemeral_owner == self.session.id,
            record,
            stat,
        }))
    }
}

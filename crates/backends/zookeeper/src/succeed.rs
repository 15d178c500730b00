//! Takes over from someone: a seat that nobody waits for, a place in the line, or a heavier seat for a lighter one.
//!
//! A place and a downgraded seat keep their node, whose name they cannot change: its data names the heir, and the heir's
//! marker says where to look. Any other seat is left, and its heir comes to the end of the line, in one transaction: if
//! nobody waits there, that is the seat. Either way the marker of the predecessor goes in that transaction: `marker.rs`.

use std::sync::Arc;

use leasehold_core::{Claim, ClaimRef, Grant, Handover, Timestamp, Verdict, WhenBlocked};
use zookeeper_client::{Error as Driver, MultiWriteError, Stat};

use crate::{
    acquire::Made,
    backend::ZooKeeper,
    claims::Entry,
    error::Fault,
    evaluate::LOOKS,
    marker::Found,
    names::{folder, marker},
    record::{Record, token},
    session::Session,
    view::View,
};

/// Whom a claim takes over from, as it is now.
struct Predecessor {
    claim: ClaimRef,
    node: String,
    record: Record,
    stat: Stat,
    weight: u32,
    named_weight: u32,
    seated: bool,
    ours: bool,
}

/// What is found of a predecessor.
enum Lookup {
    There(Box<Predecessor>),
    Nobody,
    /// It was found, but not in the line that was listed before.
    LookAgain,
}

impl ZooKeeper {
    /// `None` if someone else changed the line at the same time.
    pub(crate) async fn succeed(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        placed: bool,
        began: Timestamp,
    ) -> Result<Option<Verdict>, Fault> {
        let Some(from) = claim.takes_over_from else { return Ok(None) };
        if session.buried(&claim.reference(), began).await?.is_some() {
            // The claim is dead, but whom it was to succeed wanted to go all the same.
            self.depart(session, claim, from).await?;
            return self.is_buried(session, &claim.reference()).await.map(Some);
        }
        let has_marker =
            session.client.check_stat(&marker(&claim.reference())).await.map_err(Fault::of)?.is_some();
        let mut view = session.weighed(&claim.resource, began).await?;
        if session.forget_gone(&claim.reference(), view.as_ref()) {
            return Ok(None);
        }
        if !placed && has_marker {
            return self.resume(session, claim, from).await;
        }
        let capacity = view
            .as_ref()
            .and_then(|view| view.line.capacity_of(view.line.contenders.len(), view.control.as_ref()));
        if let Some(capacity) = capacity.filter(|capacity| *capacity != claim.share.capacity()) {
            self.remove(session, &claim.reference()).await?;
            return Ok(Some(Verdict::Mismatch { capacity }));
        }
        let predecessor = ClaimRef { resource: claim.resource.clone(), owner: from.owner };
        if let Some(keep) = from.tombstone {
            session.tombstone(&predecessor, keep, began).await?;
            // What it did before its tombstone is seen from now on; afterwards it does nothing.
            view = session.weighed(&claim.resource, began).await?;
        }
        let taken = async {
            let found = self.predecessor(session, &predecessor, view.as_ref()).await?;
            match (found, view) {
                (Lookup::LookAgain, _) => Ok(None),
                (Lookup::There(predecessor), Some(view)) => {
                    self.take_over(session, claim, placed, (&predecessor, &view), began).await
                }
                _ => self.come(session, claim, placed, (None, 0), began).await,
            }
        };
        taken.await.map_err(Fault::after_effect)
    }

    /// The claim has a contender that this session does not know: the answer to an attempt before was lost.
    async fn resume(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        from: Handover,
    ) -> Result<Option<Verdict>, Fault> {
        let resumed = async {
            match self.recover(session, claim).await? {
                known @ (None | Some(Verdict::Granted(_))) => Ok(known),
                // It waits, with a node of another session.
                Some(_) => {
                    self.depart(session, claim, from).await?;
                    self.recover(session, claim).await
                }
            }
        };
        resumed.await.map_err(Fault::after_effect)
    }

    async fn take_over(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        placed: bool,
        (from, view): (&Predecessor, &View),
        began: Timestamp,
    ) -> Result<Option<Verdict>, Fault> {
        let weight = claim.share.weight();
        if from.seated && weight < from.weight {
            return self.inherit(session, claim, placed, from, began).await;
        }
        let queues = claim.when_blocked == WhenBlocked::Queue && !placed;
        if !from.seated && queues && weight <= from.named_weight && from.ours {
            return self.inherit(session, claim, placed, from, began).await;
        }
        let seated = view.seating().seated;
        let waiting = view.line.contenders.len()
            - seated
            - usize::from(placed).min(view.line.contenders.len() - seated);
        let paused = view.control.as_ref().is_some_and(crate::control::Control::is_paused);
        let hands_over =
            from.seated && weight == from.weight && waiting == 0 && !paused && !from.record.evicting;
        let turns = if hands_over { from.record.turns + 1 } else { 0 };
        self.come(session, claim, placed, (Some(from), turns), began).await
    }

    /// Takes a node as it stands, and leaves the one that the claim has in the line, in one transaction.
    async fn inherit(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        placed: bool,
        from: &Predecessor,
        began: Timestamp,
    ) -> Result<Option<Verdict>, Fault> {
        let (reference, sent) = (claim.reference(), self.now());
        let record = self.inherited(session, claim, from);
        let own = session.entries().get(&reference).map(|entry| (entry.node.clone(), entry.version));
        let own = own.filter(|_| placed);
        let Some(stat) = self.pass_on(session, &reference, own, (from, &record)).await? else {
            if placed {
                // An operator may have written into the node that was to go.
                self.reread(session, &reference).await?;
            }
            return Ok(None);
        };
        session.committed(sent, &stat);
        let minted = token(if from.seated { stat.mzxid } else { from.stat.czxid })?;
        let mut entry = Entry::new(from.node.clone(), minted, record, claim.share.weight());
        (entry.version, entry.is_heir, entry.granted) = (stat.version, true, from.seated);
        let remaining = session.remaining(began);
        entry.ends = began.after(remaining);
        let (old, other) = {
            let mut entries = session.entries();
            let other = if from.ours { entries.insert(reference, entry) } else { entries.remove(&reference) };
            (entries.remove(&from.claim), other)
        };
        drop((old, other));
        if !from.ours {
            // The node lives as long as another session does, for which we cannot vouch.
            return Ok(Some(Verdict::Granted(Grant::new(minted, std::time::Duration::ZERO))));
        }
        if from.seated {
            return Ok(Some(Verdict::Granted(Grant::new(minted, remaining))));
        }
        self.settle(session, claim, false, began).await
    }

    /// What stands in a node that was taken over.
    fn inherited(&self, session: &Session, claim: &Claim, from: &Predecessor) -> Record {
        let mut record = Record::new(&claim.holder, session.silence, claim.note.as_deref());
        record.set_heir(claim.owner);
        let weight = claim.share.weight();
        record.weight = (weight < from.named_weight).then_some(weight);
        if from.seated {
            // The same work goes on with less: what an operator said to it stands, or evicting would be in vain.
            (record.downgraded, record.turns) = (true, from.record.turns);
            (record.asked, record.evicting) = (from.record.asked.clone(), from.record.evicting);
        }
        record
    }

    /// The transaction of [`ZooKeeper::inherit`]. The stat of the node; `None` if something has changed.
    async fn pass_on(
        &self,
        session: &Session,
        heir: &ClaimRef,
        own: Option<(String, i32)>,
        (from, record): (&Predecessor, &Record),
    ) -> Result<Option<Stat>, Fault> {
        let folder = folder(&heir.resource);
        // Without a marker: see `delete_contender`.
        for has_marker in [true, false] {
            let mut transaction = session.transaction();
            session.check_not_buried(&mut transaction, heir);
            if let Some((node, version)) = &own {
                transaction.delete(&format!("{folder}/{node}"), Some(*version));
                transaction.delete(&marker(heir), None);
            }
            transaction.create(&marker(heir), from.node.as_bytes(), &session.ephemeral());
            let path = format!("{folder}/{}", from.node);
            transaction.set_data(&path, &record.to_bytes(), Some(from.stat.version));
            // For `remove_stray_marker`.
            transaction.set_data(&folder, heir.resource.key().as_bytes(), None);
            let last = transaction.len();
            if has_marker {
                transaction.delete(&marker(&from.claim), None);
            }
            match transaction.commit().await {
                Ok(committed) => return Ok(committed.stat().copied()),
                Err(MultiWriteError::OperationFailed { index, source: Driver::NoNode })
                    if has_marker && index == last => {}
                Err(MultiWriteError::OperationFailed {
                    source: Driver::NoNode | Driver::BadVersion | Driver::NodeExists,
                    ..
                }) => return Ok(None),
                Err(error) => return Err(Fault::from(error)),
            }
        }
        Ok(None)
    }

    /// The predecessor goes, and the claim comes to the end of the line, or stays where it is in it.
    async fn come(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        placed: bool,
        (from, turns): (Option<&Predecessor>, u32),
        began: Timestamp,
    ) -> Result<Option<Verdict>, Fault> {
        if placed {
            if let Some(from) = from {
                self.depart(session, claim, Handover::from(from.claim.owner)).await?;
            }
            self.count_turns(session, &claim.reference(), turns).await?;
            return self.settle(session, claim, false, began).await;
        }
        match self.make_instead_of(session, claim, from, turns).await? {
            Made::Done => {
                let old = from.and_then(|from| session.entries().remove(&from.claim));
                drop(old);
                self.settle(session, claim, true, began).await
            }
            Made::Cancelled => {
                if let Some(from) = from {
                    self.depart(session, claim, Handover::from(from.claim.owner)).await?;
                }
                self.is_buried(session, &claim.reference()).await.map(Some)
            }
            Made::Present | Made::Failed(_, Driver::NoNode | Driver::BadVersion) => Ok(None),
            Made::Failed(_, error) => Err(Fault::of(error)),
        }
    }

    /// Makes the contender of a claim, and deletes that of its predecessor, in one transaction.
    async fn make_instead_of(
        &self,
        session: &Session,
        claim: &Claim,
        from: Option<&Predecessor>,
        turns: u32,
    ) -> Result<Made, Fault> {
        const MARKER: usize = 1;
        let folder = folder(&claim.resource);
        let mut record = Record::new(&claim.holder, session.silence, claim.note.as_deref());
        record.turns = turns;
        let make = async |has_marker: bool| {
            let made = self.make(session, claim, record.clone(), |transaction| {
                let Some(from) = from else { return };
                transaction.delete(&format!("{folder}/{}", from.node), Some(from.stat.version));
                if has_marker {
                    transaction.delete(&marker(&from.claim), None);
                }
            });
            made.await
        };
        match make(true).await? {
            // See `delete_contender`.
            Made::Failed(MARKER, Driver::NoNode) => make(false).await,
            made => Ok(made),
        }
    }

    /// Says in the node how many times in a row the seat was handed over to get here.
    async fn count_turns(&self, session: &Session, claim: &ClaimRef, turns: u32) -> Result<(), Fault> {
        for _ in 0..LOOKS {
            let known = session.entries().get(claim).map(|e| (e.node.clone(), e.record.clone(), e.version));
            let Some((node, mut record, version)) = known.filter(|(_, record, _)| record.turns != turns)
            else {
                return Ok(());
            };
            record.turns = turns;
            let path = format!("{}/{node}", folder(&claim.resource));
            match session.write(&path, &record, version).await {
                Ok(stat) => {
                    if let Some(entry) = session.entries().get_mut(claim) {
                        (entry.record, entry.version) = (record, stat.version);
                    }
                    return Ok(());
                }
                Err(Driver::BadVersion | Driver::NoNode) => self.reread(session, claim).await?,
                Err(error) => return Err(Fault::of(error)),
            }
        }
        Err(Fault::too_busy())
    }

    /// The predecessor goes, and is buried if some request of it may still come.
    async fn depart(&self, session: &Session, claim: &Claim, from: Handover) -> Result<(), Fault> {
        let predecessor = ClaimRef { resource: claim.resource.clone(), owner: from.owner };
        if let Some(keep) = from.tombstone {
            session.tombstone(&predecessor, keep, self.now()).await?;
        }
        self.remove_known(session, &predecessor).await?;
        self.remove_unknown(session, &predecessor).await?;
        Ok(())
    }

    async fn predecessor(
        &self,
        session: &Session,
        claim: &ClaimRef,
        view: Option<&View>,
    ) -> Result<Lookup, Fault> {
        let known = session.entries().get(claim).map(|e| (e.node.clone(), e.is_heir, e.granted));
        if let Some((node, is_heir, granted)) = known {
            if let Some(mut from) = Self::at(session, claim, view, (&node, is_heir)).await? {
                from.seated |= granted;
                return Ok(Lookup::There(Box::new(from)));
            }
            // Another session has let it go, or has taken it over.
            let entry = session.entries().remove(claim);
            drop(entry); // outside of the lock: it rings
        }
        let mut search = self.find(session, claim).await?;
        let Some(Found { node, is_heir, .. }) = search.found.pop() else {
            // A list may be old although it was synchronised, if the leader has just changed. A transaction is not.
            if self.has_nothing(session, claim).await? {
                return Ok(Lookup::Nobody);
            }
            self.remove_stray_marker(session, claim, &search).await?;
            return Ok(Lookup::LookAgain);
        };
        let found = Self::at(session, claim, view, (&node, is_heir)).await?;
        Ok(found.map_or(Lookup::LookAgain, |from| Lookup::There(Box::new(from))))
    }

    /// The predecessor, if this node is in the line and still its own.
    async fn at(
        session: &Session,
        claim: &ClaimRef,
        view: Option<&View>,
        (node, is_heir): (&str, bool),
    ) -> Result<Option<Predecessor>, Fault> {
        let Some(view) = view else { return Ok(None) };
        let Some(position) = view.line.position(node) else { return Ok(None) };
        let seen = session.read(&claim.resource, &view.line, &[position]).await?;
        let Some(seen) = seen.into_iter().next() else { return Ok(None) };
        if !seen.record.is_of(claim.owner, is_heir) {
            return Ok(None);
        }
        let named_weight = view.line.contenders[position].share.weight();
        Ok(Some(Predecessor {
            claim: claim.clone(),
            node: node.to_owned(),
            weight: seen.record.weight.map_or(named_weight, |weight| weight.min(named_weight)),
            named_weight,
            seated: position < view.seating().seated,
            ours: seen.stat.ephemeral_owner == session.id,
            record: seen.record,
            stat: seen.stat,
        }))
    }
}

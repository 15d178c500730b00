//! Takes over from someone: a seat that nobody waits for, a place in the line, or a heavier seat for a lighter one.
//!
//! A place and a downgraded seat keep their node, whose name they cannot change: its data names the heir, and a node of
//! the heir's own name says where to look. Any other seat is left, and its heir comes to the end of the line, in one
//! transaction: if nobody waits there, that is the seat.

use std::sync::Arc;

use leasehold_core::{Claim, ClaimRef, Grant, Moment, Succession, Verdict, WhenBlocked};
use zookeeper_client::{CreateMode, Error as Driver, MultiWriteError, MultiWriteResult, Stat};

use crate::{
    acquire::Made,
    backend::ZooKeeper,
    claims::Entry,
    error::Fault,
    names::{folder, heir},
    record::{Record, token},
    release::Found,
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
    is_heir: bool,
    ours: bool,
}

impl ZooKeeper {
    /// `None` if someone else changed the line at the same time.
    pub(crate) async fn succeed(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        placed: bool,
        began: Moment,
    ) -> Result<Option<Verdict>, Fault> {
        let Some(from) = claim.succeeds else { return Ok(None) };
        if session.buried(&claim.reference(), began).await?.is_some() {
            // The claim is dead, but whom it was to succeed wanted to go all the same.
            self.depart(session, claim, from).await?;
            return Ok(Some(Verdict::Buried));
        }
        let (inherited, view) =
            (session.client.check_stat(&heir(&claim.reference())), session.weighed(&claim.resource, began));
        let (inherited, view) = (inherited.await.map_err(Fault::of)?, view.await?);
        if session.forget_gone(&claim.reference(), view.as_ref()) {
            return Ok(None);
        }
        let named = view.as_ref().is_some_and(|view| view.line.of_owner(claim.owner).next().is_some());
        if !placed && (inherited.is_some() || named) {
            let known = self.recover(session, claim).await?;
            if let Some(verdict @ Verdict::Granted(_)) = known {
                return Ok(Some(verdict));
            }
            if known.is_none() && session.entries().contains_key(&claim.reference()) {
                return Ok(None);
            }
        }
        let capacity = view
            .as_ref()
            .and_then(|view| view.line.capacity_of(view.line.contenders.len(), view.control.as_ref()));
        if let Some(capacity) = capacity.filter(|capacity| *capacity != claim.share.capacity()) {
            self.remove(session, &claim.reference()).await?;
            return Ok(Some(Verdict::Mismatch { capacity }));
        }
        let predecessor = ClaimRef { resource: claim.resource.clone(), owner: from.owner };
        if let Some(keep) = from.bury {
            session.bury(&predecessor, keep, began).await?;
        }
        let predecessor = match &view {
            Some(view) => self.predecessor(session, &predecessor, view).await?,
            None => None,
        };
        match (predecessor, view) {
            (Some(predecessor), Some(view)) => {
                let took = self.take_over(session, claim, placed, &predecessor, &view, began).await;
                took.map_err(Fault::after_effect)
            }
            _ => self.come(session, claim, placed, None, 0, began).await.map_err(Fault::after_effect),
        }
    }

    async fn take_over(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        placed: bool,
        from: &Predecessor,
        view: &View,
        began: Moment,
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
        self.come(session, claim, placed, Some(from), turns, began).await
    }

    /// Takes a node as it stands.
    async fn inherit(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        placed: bool,
        from: &Predecessor,
        began: Moment,
    ) -> Result<Option<Verdict>, Fault> {
        let (folder, reference, sent) = (folder(&claim.resource), claim.reference(), self.now());
        let mut record = Record::new(&claim.holder, session.silence, claim.note.as_deref());
        record.set_heir(claim.owner);
        let weight = claim.share.weight();
        record.weight = (weight < from.named_weight).then_some(weight);
        if from.seated {
            // The same work goes on with less: what an operator said to it stands, or evicting would be in vain.
            (record.downgraded, record.turns) = (true, from.record.turns);
            (record.asked, record.evicting) = (from.record.asked.clone(), from.record.evicting);
        }
        let mut writer = session.client.new_multi_writer();
        session.guard(&mut writer, &reference)?;
        let path = format!("{folder}/{}", from.node);
        writer.add_set_data(&path, &record.to_bytes(), Some(from.stat.version)).map_err(Fault::of)?;
        let mode = session.mode(CreateMode::Ephemeral);
        writer.add_create(&heir(&reference), from.node.as_bytes(), &mode).map_err(Fault::of)?;
        if from.is_heir {
            writer.add_delete(&heir(&from.claim), None).map_err(Fault::of)?;
        }
        let stat = match writer.commit().await {
            Ok(answers) => answers.into_iter().find_map(|answer| match answer {
                MultiWriteResult::SetData { stat } => Some(stat),
                _ => None,
            }),
            Err(MultiWriteError::OperationFailed { source: Driver::NoNode | Driver::BadVersion, .. }) => {
                return Ok(None);
            }
            Err(MultiWriteError::OperationFailed { source: Driver::NodeExists, index }) => {
                if index > 0 {
                    // A sign of an attempt that went unanswered.
                    drop(session.client.delete(&heir(&reference), None).await);
                }
                return Ok(None);
            }
            Err(error) => return Err(Fault::from(error)),
        };
        let stat = stat.ok_or_else(Fault::too_busy)?;
        session.committed(sent, &stat);
        if placed {
            self.remove(session, &reference).await?;
        }
        let minted = token(if from.seated { stat.mzxid } else { from.stat.czxid })?;
        if !from.ours {
            // The node lives as long as another session does, for which we cannot vouch.
            return Ok(Some(Verdict::Granted(Grant::new(minted, std::time::Duration::ZERO))));
        }
        let mut entry = Entry::new(from.node.clone(), minted, record, weight);
        (entry.version, entry.is_heir, entry.granted) = (stat.version, true, from.seated);
        let remaining = session.remaining(began);
        entry.ends = began.after(remaining);
        let (old, other) = {
            let mut entries = session.entries();
            (entries.remove(&from.claim), entries.insert(reference, entry))
        };
        drop((old, other));
        if from.seated {
            return Ok(Some(Verdict::Granted(Grant::new(minted, remaining))));
        }
        self.settle(session, claim, false, began).await
    }

    /// The predecessor goes, and the claim comes to the end of the line, or stays where it is in it.
    async fn come(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        placed: bool,
        from: Option<&Predecessor>,
        turns: u32,
        began: Moment,
    ) -> Result<Option<Verdict>, Fault> {
        if placed {
            if let Some(from) = from {
                self.depart(session, claim, Succession::from(from.claim.owner)).await?;
            }
            self.count_turns(session, &claim.reference(), turns).await?;
            return self.settle(session, claim, false, began).await;
        }
        let mut record = Record::new(&claim.holder, session.silence, claim.note.as_deref());
        record.turns = turns;
        let folder = folder(&claim.resource);
        let made = self.make(session, claim, record, |writer, _| {
            let Some(from) = from else { return Ok(()) };
            writer
                .add_delete(&format!("{folder}/{}", from.node), Some(from.stat.version))
                .map_err(Fault::of)?;
            if from.is_heir {
                writer.add_delete(&heir(&from.claim), None).map_err(Fault::of)?;
            }
            Ok(())
        });
        match made.await? {
            Made::Done => {
                let old = from.and_then(|from| session.entries().remove(&from.claim));
                drop(old);
                self.settle(session, claim, true, began).await
            }
            Made::Buried => {
                if let Some(from) = from {
                    self.depart(session, claim, Succession::from(from.claim.owner)).await?;
                }
                Ok(Some(Verdict::Buried))
            }
            Made::Inherited | Made::Failed(Driver::NoNode | Driver::BadVersion) => Ok(None),
            Made::Failed(error) => Err(Fault::of(error)),
        }
    }

    /// Says in the node how many times in a row the seat was handed over to get here.
    async fn count_turns(&self, session: &Session, claim: &ClaimRef, turns: u32) -> Result<(), Fault> {
        let known = session.entries().get(claim).map(|entry| (entry.node.clone(), entry.record.clone()));
        let Some((node, mut record)) = known.filter(|(_, record)| record.turns != turns) else {
            return Ok(());
        };
        record.turns = turns;
        let path = format!("{}/{node}", folder(&claim.resource));
        let written = session.client.set_data(&path, &record.to_bytes(), None).await;
        let stat = written.map_err(Fault::of)?;
        if let Some(entry) = session.entries().get_mut(claim) {
            (entry.record, entry.version) = (record, stat.version);
        }
        Ok(())
    }

    /// The predecessor goes, and is buried if some request of it may still come.
    async fn depart(&self, session: &Session, claim: &Claim, from: Succession) -> Result<(), Fault> {
        let predecessor = ClaimRef { resource: claim.resource.clone(), owner: from.owner };
        if let Some(keep) = from.bury {
            session.bury(&predecessor, keep, self.now()).await?;
        }
        self.remove(session, &predecessor).await?;
        self.remove_unknown(session, &predecessor).await?;
        Ok(())
    }

    async fn predecessor(
        &self,
        session: &Session,
        claim: &ClaimRef,
        view: &View,
    ) -> Result<Option<Predecessor>, Fault> {
        let known = session.entries().get(claim).map(|e| (e.node.clone(), e.is_heir, e.granted));
        if let Some((node, is_heir, granted)) = known {
            let found = Self::at(session, claim, view, (node, is_heir)).await?;
            if let Some(mut from) = found {
                from.seated |= granted;
                return Ok(Some(from));
            }
            // Another session has let it go, or has taken it over.
            let entry = session.entries().remove(claim);
            drop(entry); // outside of the lock: it rings
        }
        match self.find(session, claim).await?.into_iter().next() {
            Some(Found { path, is_heir, .. }) => {
                let node = path.rsplit('/').next().unwrap_or_default().to_owned();
                Self::at(session, claim, view, (node, is_heir)).await
            }
            None => Ok(None),
        }
    }

    /// The predecessor, if this node is in the line and still its own.
    async fn at(
        session: &Session,
        claim: &ClaimRef,
        view: &View,
        (node, is_heir): (String, bool),
    ) -> Result<Option<Predecessor>, Fault> {
        let Some(position) = view.line.position(&node) else { return Ok(None) };
        let seen = session.read(&claim.resource, &view.line, &[position]).await?;
        let Some(seen) = seen.into_iter().next() else { return Ok(None) };
        if !seen.record.is_of(claim.owner, is_heir) {
            return Ok(None);
        }
        let named_weight = view.line.contenders[position].share.weight();
        Ok(Some(Predecessor {
            claim: claim.clone(),
            node,
            weight: seen.record.weight.map_or(named_weight, |weight| weight.min(named_weight)),
            named_weight,
            seated: position < view.seating().seated,
            is_heir,
            ours: seen.stat.ephemeral_owner == session.id,
            record: seen.record,
            stat: seen.stat,
        }))
    }
}

//! Asks for a grant: one transaction that makes the contender, one look at the line. As many requests as Curator makes.
//!
//! A claim whose answer was lost has a contender already. Then the transaction fails, and the claim goes on with that
//! contender: `marker.rs` says why there is never a second one.

use std::{sync::Arc, time::Duration};

use leasehold_core::{
    Claim, ClaimRef, Effect, Error, ErrorKind, FencingToken, Grant, Released, RenewRequest, Renewal,
    Result as Answer, Timestamp, Verdict, WhenBlocked,
};
use zookeeper_client::{CreateMode, Error as Driver, MultiWriteError, Stat};

use crate::{
    backend::ZooKeeper,
    claims::Entry,
    error::Fault,
    evaluate::{LOOKS, blocked},
    line::Seating,
    marker::{Deleted, Found},
    names::{contender, folder, marker},
    record::{Record, token},
    session::Session,
    transaction::Transaction,
};

/// What came of an attempt to make a contender.
pub(crate) enum Made {
    Done,
    Cancelled,
    /// The claim has a contender already.
    Present,
    /// An operation of the caller's own failed so; they are counted from zero.
    Failed(usize, Driver),
}

/// The operations of the transaction that makes a contender. Those of the caller follow.
mod operation {
    pub(super) const NOT_BURIED: usize = 0;
    pub(super) const MARKER: usize = 2;
    pub(super) const FOLDER: usize = 3;
    pub(super) const CONTENDER: usize = 4;
    pub(super) const FIRST_OF_CALLER: usize = 5;
}

impl ZooKeeper {
    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Verdict, Fault> {
        self.check(claim)?;
        let began = self.now();
        let session = self.link.session().await?;
        let reference = claim.reference();
        for _ in 0..LOOKS {
            let known = session.entries().get(&reference).map(|entry| entry.granted);
            if known == Some(true) {
                // It has what it asks for; whether that is still so, the ensemble says.
                if let Some(verdict) = self.still_granted(&session, claim, began).await? {
                    return Ok(verdict);
                }
                continue;
            }
            if claim.takes_over_from.is_some() {
                if let Some(verdict) = self.succeed(&session, claim, known.is_some(), began).await? {
                    return Ok(verdict);
                }
                continue;
            }
            let fresh = known.is_none();
            if fresh {
                let record = Record::new(&claim.holder, session.silence, claim.note.as_deref());
                match self.make(&session, claim, record, |_| ()).await? {
                    Made::Done => {}
                    Made::Cancelled => return self.is_buried(&session, &reference).await,
                    Made::Present => {
                        let recovered = self.recover(&session, claim).await;
                        if let Some(verdict) = recovered.map_err(Fault::after_effect)? {
                            return Ok(verdict);
                        }
                        continue;
                    }
                    Made::Failed(_, error) => return Err(Fault::of(error)),
                }
            }
            if let Some(verdict) = self.settle(&session, claim, fresh, began).await? {
                return Ok(verdict);
            }
        }
        Err(Fault::too_busy().after_effect())
    }

    fn check(&self, claim: &Claim) -> Answer<()> {
        let (most, name) = (self.info.limits.note, crate::NAME);
        if claim.note.as_ref().is_some_and(|note| note.len() > most) {
            return Err(Error::new(ErrorKind::Limit, format!("a note has at most {most} bytes")));
        }
        let least = self.info.limits.ttl;
        if claim.ttl < least {
            let asked = claim.ttl;
            let message = format!(
                "{name} keeps a lease as long as its session, which is {least:?} here: a dead holder would keep one of \
                 {asked:?} for longer than it says. Connect with a shorter session_timeout"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(())
    }

    /// Whether a contender that was just made, or waits, holds.
    pub(crate) async fn settle(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        fresh: bool,
        began: Timestamp,
    ) -> Result<Option<Verdict>, Fault> {
        self.evaluate(session, claim, fresh, began).await.map_err(Fault::after_effect)
    }

    /// Makes the contender of a claim and its marker, in one transaction with what the caller adds.
    pub(crate) async fn make(
        &self,
        session: &Session,
        claim: &Claim,
        record: Record,
        add: impl Fn(&mut Transaction<'_>),
    ) -> Result<Made, Fault> {
        let (folder, reference) = (folder(&claim.resource), claim.reference());
        let prefix = format!("{folder}/{}", contender(claim.owner, claim.share));
        for _ in 0..LOOKS {
            let sent = self.now();
            let mut transaction = session.transaction();
            session.check_not_buried(&mut transaction, &reference);
            transaction.create(&marker(&reference), b"", &session.ephemeral());
            // Servers answer a creation in a transaction without its czxid (ZOOKEEPER-4667). A node that the same
            // transaction changes tells it. What is written there names the resource, for those who read: `view.rs`.
            transaction.set_data(&folder, claim.resource.key().as_bytes(), None);
            let mode = session.mode(CreateMode::EphemeralSequential);
            transaction.create_sequential(&prefix, &record.to_bytes(), &mode);
            add(&mut transaction);
            match transaction.commit().await {
                Ok(committed) => {
                    let node = committed.created(operation::CONTENDER).unwrap_or_default().to_owned();
                    let stat = committed.stat().ok_or_else(|| Fault::too_busy().after_effect())?;
                    session.committed(sent, stat);
                    self.enter(session, claim, node, stat, record).await?;
                    return Ok(Made::Done);
                }
                Err(MultiWriteError::OperationFailed { index, source }) => match (index, source) {
                    (operation::NOT_BURIED, Driver::NodeExists) => {
                        if session.buried(&reference, sent).await?.is_some() {
                            return Ok(Made::Cancelled);
                        }
                    }
                    (operation::MARKER, Driver::NodeExists) => return Ok(Made::Present),
                    (operation::FOLDER | operation::CONTENDER, Driver::NoNode) => {
                        let mode = session.mode(CreateMode::Container);
                        session.client.mkdir(&folder, &mode).await.map_err(Fault::of)?;
                    }
                    (index, source) if index >= operation::FIRST_OF_CALLER => {
                        return Ok(Made::Failed(index - operation::FIRST_OF_CALLER, source));
                    }
                    (_, source) => return Err(Fault::of(source)),
                },
                Err(error) => return Err(Fault::from(error)),
            }
        }
        Err(Fault::too_busy())
    }

    /// Remembers a contender that was just made, unless its token does not do.
    async fn enter(
        &self,
        session: &Session,
        claim: &Claim,
        node: String,
        stat: &Stat,
        record: Record,
    ) -> Result<(), Fault> {
        let minted = token(stat.mzxid).map_err(|error| error.with_effect(Effect::Unknown))?;
        let reference = claim.reference();
        let entry = Entry::new(node, minted, record, claim.share.weight());
        let old = session.entries().insert(reference, entry);
        drop(old);
        self.check_floor(session, claim, minted).await
    }

    /// Answers a claim that has a tombstone. Nobody asks for it again, so nothing of it may be left: see `marker.rs`.
    pub(crate) async fn is_buried(&self, session: &Session, claim: &ClaimRef) -> Result<Verdict, Fault> {
        self.remove(session, claim).await.map_err(Fault::after_effect)?;
        Ok(Verdict::Cancelled)
    }

    /// Refuses a contender whose token is not above the floor, and deletes it.
    async fn check_floor(&self, session: &Session, claim: &Claim, minted: FencingToken) -> Result<(), Fault> {
        let Some(floor) = claim.floor.filter(|floor| *floor >= minted) else { return Ok(()) };
        self.remove(session, &claim.reference()).await.map_err(Fault::after_effect)?;
        let message = format!(
            "token {floor} has been seen, and the ensemble gives {minted}: it was restored from an older state, and its \
             tokens would go back"
        );
        Err(Fault::from(Error::new(ErrorKind::Invalid, message)))
    }

    /// Asks the ensemble whether a claim that was granted is still there.
    async fn still_granted(
        &self,
        session: &Session,
        claim: &Claim,
        began: Timestamp,
    ) -> Result<Option<Verdict>, Fault> {
        let held = RenewRequest::new(claim.reference(), claim.ttl);
        let kept = self.renew_known(session, std::slice::from_ref(&held), began).await?;
        match kept.into_iter().next().flatten() {
            Some(Renewal::Renewed(kept)) => {
                let grant = Grant::new(kept.token, kept.remaining);
                Ok(Some(Verdict::Granted(grant)))
            }
            _ => Ok(None),
        }
    }

    /// Goes on with the contender that a claim has: the answer to the request that made it was lost, or another session
    /// made it. `None` if it is known now, or gone.
    pub(crate) async fn recover(&self, session: &Session, claim: &Claim) -> Result<Option<Verdict>, Fault> {
        let reference = claim.reference();
        let mut search = self.find(session, &reference).await?;
        let Some(found) = search.found.pop() else {
            self.remove_stray_marker(session, &reference, &search).await?;
            return Ok(None);
        };
        let minted = session.token_of(&claim.resource, &found.record, &found.stat).await?;
        let Some(view) = session.weighed(&claim.resource, self.now()).await? else { return Ok(None) };
        let Some(position) = view.line.position(&found.node) else { return Ok(None) };
        if found.stat.ephemeral_owner != session.id {
            return self.foreign(session, claim, position, minted).await;
        }
        let granted = position < view.seating().seated;
        session.adopt(reference, found, (minted, claim.share.weight()), granted);
        self.check_floor(session, claim, minted).await?;
        Ok(None)
    }

    /// What is said to a claim whose node belongs to another session.
    async fn foreign(
        &self,
        session: &Session,
        claim: &Claim,
        position: usize,
        minted: FencingToken,
    ) -> Result<Option<Verdict>, Fault> {
        let now = self.now();
        let Some(view) = session.weighed(&claim.resource, now).await? else { return Ok(None) };
        let Seating { seated, .. } = view.seating();
        if position < seated {
            return Ok(Some(Verdict::Granted(Grant::new(minted, Duration::ZERO))));
        }
        let capacity =
            view.line.capacity_of(view.line.contenders.len().min(position + 1), view.control.as_ref());
        if let Some(capacity) = capacity.filter(|capacity| *capacity != claim.share.capacity()) {
            self.remove_unknown(session, &claim.reference()).await?;
            return Ok(Some(Verdict::Mismatch { capacity }));
        }
        if claim.when_blocked == WhenBlocked::Leave {
            self.remove_unknown(session, &claim.reference()).await?;
            return self.leave(session, claim, "").await.map(Some);
        }
        let (holders, newest) = session.holders(&claim.resource, &view, now).await?;
        let mut blocked = blocked(&view, holders, newest);
        blocked.queued = true;
        blocked.ahead = u32::try_from(position - seated).unwrap_or(u32::MAX);
        Ok(Some(Verdict::Blocked(blocked)))
    }

    /// Deletes the contender of a claim.
    pub(crate) async fn remove(&self, session: &Session, claim: &ClaimRef) -> Result<Released, Fault> {
        if self.remove_known(session, claim).await? {
            return Ok(Released::Now);
        }
        self.remove_unknown(session, claim).await
    }

    /// Deletes the contender that this session knows of, if it is there and still the claim's. Whether it has.
    pub(crate) async fn remove_known(&self, session: &Session, claim: &ClaimRef) -> Result<bool, Fault> {
        for _ in 0..LOOKS {
            let known = session.entries().get(claim).map(|entry| (entry.node.clone(), entry.version));
            let Some((node, version)) = known else { return Ok(false) };
            let deleted = self.delete_contender(session, claim, (&node, version)).await?;
            if deleted == Deleted::Changed {
                // An operator has written there, or another session has taken it over: then it is not ours to delete.
                self.reread(session, claim).await?;
                continue;
            }
            let entry = session.entries().remove(claim);
            drop(entry); // outside of the lock: it rings
            return Ok(deleted == Deleted::Done);
        }
        Err(Fault::too_busy())
    }
}

impl Session {
    /// Remembers a contender that was found.
    pub(crate) fn adopt(
        &self,
        claim: ClaimRef,
        found: Found,
        (token, share): (FencingToken, u32),
        granted: bool,
    ) {
        let weight = found.record.weight.unwrap_or(share);
        let mut entry = Entry::new(found.node, token, found.record, weight);
        (entry.version, entry.is_heir, entry.granted) = (found.stat.version, found.is_heir, granted);
        let old = self.entries().insert(claim, entry);
        drop(old); // outside of the lock: it rings
    }
}

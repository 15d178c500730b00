//! Asks for a grant: one transaction that makes the contender, one look at the line. As many requests as Curator makes.

use std::{sync::Arc, time::Duration};

use leasehold_core::{
    Claim, ClaimRef, Effect, Error, ErrorKind, FencingToken, Grant, Held, Moment, Released, Renewal,
    Result as Answer, Verdict, WhenBlocked,
};
use zookeeper_client::{CreateMode, Error as Driver, MultiWriteError, MultiWriteResult, MultiWriter, Stat};

use crate::{
    backend::ZooKeeper,
    claims::Entry,
    error::Fault,
    evaluate::{LOOKS, blocked},
    line::Seating,
    names::{contender, folder, heir},
    record::{Record, token},
    release::Found,
    session::Session,
    view::View,
};

/// What came of an attempt to make a contender.
pub(crate) enum Made {
    Done,
    Buried,
    /// It has taken over somebody's node: there is no need for one of its own.
    Inherited,
    /// An operation of the caller's own failed so.
    Failed(Driver),
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
            if claim.succeeds.is_some() {
                if let Some(verdict) = self.succeed(&session, claim, known.is_some(), began).await? {
                    return Ok(verdict);
                }
                continue;
            }
            let fresh = known.is_none();
            if fresh {
                let record = Record::new(&claim.holder, session.silence, claim.note.as_deref());
                match self.make(&session, claim, record, |_, _| Ok(())).await? {
                    Made::Done => {}
                    Made::Buried => return Ok(Verdict::Buried),
                    Made::Inherited => {
                        if let Some(verdict) = self.recover(&session, claim).await? {
                            return Ok(verdict);
                        }
                        continue;
                    }
                    Made::Failed(error) => return Err(Fault::of(error)),
                }
            }
            if let Some(verdict) = self.settle(&session, claim, fresh, began).await? {
                return Ok(verdict);
            }
        }
        Err(Fault::too_busy())
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
        began: Moment,
    ) -> Result<Option<Verdict>, Fault> {
        self.evaluate(session, claim, fresh, began).await.map_err(Fault::after_effect)
    }

    /// Makes the contender of a claim, in one transaction with what the caller adds.
    pub(crate) async fn make(
        &self,
        session: &Session,
        claim: &Claim,
        record: Record,
        add: impl Fn(&mut MultiWriter<'_>, Moment) -> Result<(), Fault>,
    ) -> Result<Made, Fault> {
        let (folder, reference) = (folder(&claim.resource), claim.reference());
        let prefix = format!("{folder}/{}", contender(claim.owner, claim.share));
        for _ in 0..LOOKS {
            let sent = self.now();
            let mut writer = session.client.new_multi_writer();
            session.guard(&mut writer, &reference)?;
            // Servers answer a creation in a transaction without its czxid (ZOOKEEPER-4667). A node that the same
            // transaction changes tells it.
            writer.add_set_data(&folder, b"", None).map_err(Fault::of)?;
            let mode = session.mode(CreateMode::EphemeralSequential);
            writer.add_create(&prefix, &record.to_bytes(), &mode).map_err(Fault::of)?;
            add(&mut writer, sent)?;
            match writer.commit().await {
                Ok(answers) => {
                    let (stat, node) = made(answers)?;
                    session.committed(sent, &stat);
                    self.enter(session, claim, node, &stat, record).await?;
                    return Ok(Made::Done);
                }
                Err(MultiWriteError::OperationFailed { index: 0, source: Driver::NodeExists }) => {
                    if session.buried(&reference, sent).await?.is_some() {
                        return Ok(Made::Buried);
                    }
                }
                Err(MultiWriteError::OperationFailed { index: 2, source: Driver::NodeExists }) => {
                    return Ok(Made::Inherited);
                }
                Err(MultiWriteError::OperationFailed { index: 4 | 5, source: Driver::NoNode }) => {
                    let mode = session.mode(CreateMode::Container);
                    session.client.mkdir(&folder, &mode).await.map_err(Fault::of)?;
                }
                Err(MultiWriteError::OperationFailed { index, source }) if index > 5 => {
                    return Ok(Made::Failed(source));
                }
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
        let old = session.entries().insert(reference.clone(), entry);
        drop(old);
        if claim.floor.is_some_and(|floor| floor >= minted) {
            self.remove(session, &reference).await.map_err(Fault::after_effect)?;
            let message = "the ensemble is behind a token that was seen before: it was restored from an older state. \
                           Do not go on before the tokens have passed the highest one seen";
            return Err(Fault::from(Error::new(ErrorKind::Limit, message)));
        }
        Ok(())
    }

    /// Asks the ensemble whether a claim that was granted is still there.
    async fn still_granted(
        &self,
        session: &Session,
        claim: &Claim,
        began: Moment,
    ) -> Result<Option<Verdict>, Fault> {
        let held = Held::new(claim.reference(), claim.ttl);
        let kept = self.renew_known(session, std::slice::from_ref(&held), began).await?;
        match kept.into_iter().next().flatten() {
            Some(Renewal::Kept(kept)) => {
                let grant = Grant::new(kept.token, kept.remaining);
                Ok(Some(Verdict::Granted(grant)))
            }
            _ => Ok(None),
        }
    }

    /// A request whose answer was lost may have made a contender before. Then that is the claim, and the one just made
    /// goes.
    pub(crate) async fn found_again(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        view: &View,
        began: Moment,
    ) -> Result<Option<Verdict>, Fault> {
        let reference = claim.reference();
        let own = session.entries().get(&reference).map(|entry| entry.node.clone());
        let named = view.line.of_owner(claim.owner).filter(|contender| Some(&contender.name) != own.as_ref());
        let named: Vec<_> = named.filter_map(|contender| view.line.position(&contender.name)).collect();
        // A node that was handed on bears the name of whoever had it first.
        let seen = session.read(&claim.resource, &view.line, &named).await?;
        let Some(seen) = seen.into_iter().find(|seen| seen.record.heir().is_none()) else { return Ok(None) };
        let position = seen.position;
        self.remove(session, &reference).await?;
        let node = view.line.contenders[position].name.clone();
        let minted = token(seen.stat.czxid)?;
        if seen.stat.ephemeral_owner != session.id {
            // Of another session, which may end before ours: we cannot vouch for it.
            return self.foreign(session, claim, position, minted).await;
        }
        let mut entry = Entry::new(node, minted, seen.record, claim.share.weight());
        entry.version = seen.stat.version;
        let old = session.entries().insert(reference, entry);
        drop(old);
        self.evaluate(session, claim, false, began).await
    }

    /// Finds the node of a claim that this session does not know, but that is there: the answer was lost, or another
    /// session made it. `None` if it is known now, or gone.
    pub(crate) async fn recover(&self, session: &Session, claim: &Claim) -> Result<Option<Verdict>, Fault> {
        let reference = claim.reference();
        let Some(Found { path, is_heir, .. }) = self.find(session, &reference).await?.into_iter().next()
        else {
            // A sign that leads nowhere.
            drop(session.client.delete(&heir(&reference), None).await);
            return Ok(None);
        };
        let Ok((bytes, stat)) = session.client.get_data(&path).await else { return Ok(None) };
        let (record, node) = (Record::read(&bytes), path.rsplit('/').next().unwrap_or_default().to_owned());
        let minted = session.token_of(&claim.resource, &record, &stat).await?;
        let Some(view) = session.weighed(&claim.resource, self.now()).await? else { return Ok(None) };
        let Some(position) = view.line.position(&node) else { return Ok(None) };
        if stat.ephemeral_owner != session.id {
            return self.foreign(session, claim, position, minted).await;
        }
        let weight = record.weight.unwrap_or(claim.share.weight());
        let mut entry = Entry::new(node, minted, record, weight);
        (entry.version, entry.is_heir) = (stat.version, is_heir);
        entry.granted = position < view.seating().seated;
        let old = session.entries().insert(reference, entry);
        drop(old);
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
        blocked.placed = true;
        blocked.ahead = u32::try_from(position - seated).unwrap_or(u32::MAX);
        Ok(Some(Verdict::Blocked(blocked)))
    }

    /// Deletes the node of a claim of this session, if it is there and still its own.
    pub(crate) async fn remove(&self, session: &Session, claim: &ClaimRef) -> Result<Released, Fault> {
        for _ in 0..LOOKS {
            let known =
                session.entries().get(claim).map(|entry| (entry.node.clone(), entry.version, entry.is_heir));
            let Some((node, version, is_heir)) = known else { return Ok(Released::AlreadyGone) };
            let path = format!("{}/{node}", folder(&claim.resource));
            let sent = self.now();
            let released = match session.client.delete(&path, Some(version)).await {
                Ok(()) => {
                    session.vouch(sent);
                    Released::Now
                }
                Err(Driver::NoNode) => Released::AlreadyGone,
                // An operator has written there, or another session has taken it over: then it is not ours to delete.
                Err(Driver::BadVersion) => {
                    self.reread(session, claim).await?;
                    continue;
                }
                Err(error) => return Err(Fault::of(error)),
            };
            if is_heir {
                drop(session.client.delete(&heir(claim), None).await);
            }
            let entry = session.entries().remove(claim);
            drop(entry); // outside of the lock: it rings
            return Ok(released);
        }
        Err(Fault::too_busy())
    }
}

/// The stat of the folder and the name of the node, out of the answers to the transaction.
fn made(answers: Vec<MultiWriteResult>) -> Result<(Stat, String), Fault> {
    let mut answers = answers.into_iter().skip(4);
    match (answers.next(), answers.next()) {
        (Some(MultiWriteResult::SetData { stat }), Some(MultiWriteResult::Create { path, .. })) => {
            let name = path.rsplit('/').next().unwrap_or_default().to_owned();
            Ok((stat, name))
        }
        _ => {
            let message = "a transaction was answered with something else";
            Err(Fault::from(Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)))
        }
    }
}

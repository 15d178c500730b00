//! Goes on: one transaction asks the ensemble whether all the nodes are still there.
//!
//! A write, although nothing is changed: a read is answered by the server that we happen to talk to, and if that one is
//! cut off from the others they may have ended our session already. A transaction is answered by the ensemble.

use leasehold_core::{
    ClaimRef, Error, ErrorKind, GoneReason, RenewRequest, Renewal, Renewed, Result as Answer, Timestamp,
};
use zookeeper_client::{Error as Driver, MultiWriteError};

use crate::{
    backend::ZooKeeper, error::Fault, evaluate::LOOKS, names::folder, record::Record, session::Session,
};

/// How many bytes of paths go into one request; servers refuse more than a megabyte.
const REQUEST_BYTES: usize = 256 * 1024;

impl ZooKeeper {
    pub(crate) async fn renew_all(&self, held: &[RenewRequest]) -> Vec<Answer<Renewal>> {
        let began = self.now();
        let session = match self.link.session().await {
            Ok(session) => session,
            Err(fault) => return repeat(&fault.into_error(), held.len()),
        };
        let mut answers = Vec::with_capacity(held.len());
        for part in parts(held) {
            match self.renew_known(&session, part, began).await {
                Ok(known) => {
                    for (held, answer) in part.iter().zip(known) {
                        answers.push(match answer {
                            Some(renewal) => Ok(renewal),
                            None => {
                                self.renew_unknown(&session, held, began).await.map_err(Fault::into_error)
                            }
                        });
                    }
                }
                // All that the session held is gone with it.
                Err(fault) if fault.ended => {
                    answers.extend(part.iter().map(|_| Ok(Renewal::Gone { why: GoneReason::NotThere })));
                }
                Err(fault) => answers.extend(repeat(&fault.into_error(), part.len())),
            }
        }
        answers
    }

    /// Renews what this session knows of; `None` for what it does not.
    pub(crate) async fn renew_known(
        &self,
        session: &Session,
        held: &[RenewRequest],
        began: Timestamp,
    ) -> Result<Vec<Option<Renewal>>, Fault> {
        for held in held.iter().filter(|held| held.note.is_some()) {
            self.renote(session, held).await?;
        }
        for _ in 0..held.len() + LOOKS as usize {
            let mut transaction = session.transaction();
            let mut asked = Vec::new();
            {
                let entries = session.entries();
                for held in held {
                    let claim = reference(held);
                    if let Some(entry) = entries.get(&claim) {
                        let path = format!("{}/{}", folder(&held.resource), entry.node);
                        transaction.check_version(&path, entry.version);
                        asked.push(claim);
                    }
                }
            }
            if asked.is_empty() {
                break;
            }
            let sent = self.now();
            match transaction.commit_named().await {
                Ok(_) => {
                    session.vouch(sent);
                    break;
                }
                Err(MultiWriteError::OperationFailed { index, source }) => {
                    let Some(claim) = asked.get(index) else { return Err(Fault::of(source)) };
                    match source {
                        Driver::NoNode => drop(session.entries().remove(claim)),
                        Driver::BadVersion => self.reread(session, claim).await?,
                        source => return Err(Fault::of(source)),
                    }
                }
                Err(error) => return Err(Fault::from(error)),
            }
        }
        Ok(held.iter().map(|held| self.answer(session, held, began)).collect())
    }

    fn answer(&self, session: &Session, held: &RenewRequest, began: Timestamp) -> Option<Renewal> {
        let remaining = session.remaining(began);
        let mut entries = session.entries();
        let entry = entries.get_mut(&reference(held))?;
        if !entry.granted {
            return Some(Renewal::Queued { remaining });
        }
        let evicting = entry.record.evicting;
        if !evicting {
            entry.ends = entry.ends.max(began.after(remaining));
        }
        let mut kept = Renewed::new(entry.token, began.until(entry.ends));
        kept.evicting = evicting;
        kept.asked = entry.record.asked(session.server_millis(self.now()));
        Some(Renewal::Renewed(kept))
    }

    /// Somebody has written into the node: an operator, or whoever took it over.
    pub(crate) async fn reread(&self, session: &Session, claim: &ClaimRef) -> Result<(), Fault> {
        let known = session.entries().get(claim).map(|entry| (entry.node.clone(), entry.is_heir));
        let Some((node, is_heir)) = known else { return Ok(()) };
        let path = format!("{}/{node}", folder(&claim.resource));
        let (bytes, stat) = match session.client.get_data(&path).await {
            Ok(found) => found,
            Err(Driver::NoNode) => {
                let entry = session.entries().remove(claim);
                drop(entry); // outside of the lock: it rings
                return Ok(());
            }
            Err(error) => return Err(Fault::of(error)),
        };
        let mut record = Record::read(&bytes);
        let mut entries = session.entries();
        let Some(entry) = entries.get_mut(claim) else { return Ok(()) };
        if record.holder.is_empty() {
            // Curator's revoker leaves nothing but its wish; the rest is known here.
            let asked = record.asked;
            record = entry.record.clone();
            record.asked = asked;
        }
        if record.is_of(claim.owner, is_heir) {
            entry.weight = record.weight.map_or(entry.weight, |weight| weight.min(entry.weight));
            (entry.record, entry.version) = (record, stat.version);
        } else {
            let entry = entries.remove(claim);
            drop(entries);
            drop(entry);
        }
        Ok(())
    }

    /// Replaces the note.
    async fn renote(&self, session: &Session, held: &RenewRequest) -> Result<(), Fault> {
        let claim = reference(held);
        for _ in 0..LOOKS {
            let written = {
                let entries = session.entries();
                let Some(entry) = entries.get(&claim).filter(|entry| entry.granted) else { return Ok(()) };
                let mut record = entry.record.clone();
                record.set_note(held.note.as_deref());
                (entry.node.clone(), entry.version, record)
            };
            let (node, version, record) = written;
            let path = format!("{}/{node}", folder(&held.resource));
            match session.write(&path, &record, version).await {
                Ok(stat) => {
                    if let Some(entry) = session.entries().get_mut(&claim) {
                        (entry.record, entry.version) = (record, stat.version);
                    }
                    return Ok(());
                }
                Err(Driver::BadVersion) => self.reread(session, &claim).await?,
                Err(Driver::NoNode) => return Ok(()),
                Err(error) => return Err(Fault::of(error)),
            }
        }
        Err(Fault::too_busy())
    }

    /// A claim that this session does not know: of another one, or gone.
    async fn renew_unknown(
        &self,
        session: &Session,
        held: &RenewRequest,
        began: Timestamp,
    ) -> Result<Renewal, Fault> {
        let (claim, now) = (reference(held), self.now());
        if let Some(mut found) = self.find(session, &claim).await?.found.pop()
            && let Some(view) = session.weighed(&held.resource, now).await?
            && let Some(position) = view.line.position(&found.node)
        {
            let minted = session.token_of(&held.resource, &found.record, &found.stat).await?;
            let granted = position < view.seating().seated;
            if found.stat.ephemeral_owner == session.id {
                // Its node was said to be gone, by an answer that was not about it; or it was never answered.
                let weight = view.line.weight(&view.line.contenders[position]);
                session.adopt(claim, found, (minted, weight), granted);
                let renewed = self.renew_known(session, std::slice::from_ref(held), began).await?;
                return Ok(renewed
                    .into_iter()
                    .flatten()
                    .next()
                    .unwrap_or(Renewal::Gone { why: GoneReason::NotThere }));
            }
            if !granted {
                return Ok(Renewal::Queued { remaining: std::time::Duration::ZERO });
            }
            if let Some(note) = &held.note {
                found.record.set_note(Some(note));
                let path = format!("{}/{}", folder(&held.resource), found.node);
                session.write(&path, &found.record, found.stat.version).await.map_err(Fault::of)?;
            }
            // It lives as long as another session does, for which we cannot vouch.
            let mut kept = Renewed::new(minted, std::time::Duration::ZERO);
            kept.evicting = found.record.evicting;
            kept.asked = found.record.asked(session.server_millis(now));
            return Ok(Renewal::Renewed(kept));
        }
        let why = session.buried(&claim, now).await?.unwrap_or(GoneReason::NotThere);
        Ok(Renewal::Gone { why })
    }

    /// Refuses what is beyond the bounds, before anything is asked.
    pub(crate) fn renewal_bounds(&self, held: &[RenewRequest]) -> Option<Error> {
        let limits = &self.info.limits;
        (held.len() > limits.batch).then(|| {
            Error::new(ErrorKind::Limit, format!("at most {} renewals go into one call", limits.batch))
        })
    }
}

fn reference(held: &RenewRequest) -> ClaimRef {
    ClaimRef { resource: held.resource.clone(), owner: held.owner }
}

fn repeat(error: &Error, times: usize) -> Vec<Answer<Renewal>> {
    (0..times).map(|_| Err(error.clone())).collect()
}

/// The batch in parts that fit a request.
fn parts(held: &[RenewRequest]) -> impl Iterator<Item = &[RenewRequest]> {
    let mut rest = held;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |held: &&RenewRequest| {
            bytes += held.resource.key().len() + 128;
            bytes <= REQUEST_BYTES
        };
        let count = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (part, after) = rest.split_at(count);
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

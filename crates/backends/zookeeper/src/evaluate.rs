//! Looks at the line, and says whether a claim holds; if not, watches who stands in its way.

use std::{sync::Arc, time::Duration};

use leasehold_core::{
    Blocked, Claim, ClaimRef, Cursor, Error, ErrorKind, Grant, HeldBy, Timestamp, Verdict, WhenBlocked,
};
use zookeeper_client::Error as Driver;

use crate::{
    backend::ZooKeeper,
    control::{self, Control},
    error::Fault,
    names::{CONTROL, folder},
    record::Record,
    session::Session,
    view::{Seen, View},
};

/// How often the line is looked at again when it changes between two looks.
pub(crate) const LOOKS: u32 = 32;
impl ZooKeeper {
    /// Whether the claim, whose node is there, holds. `None` if its node is gone.
    pub(crate) async fn evaluate(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        fresh: bool,
        began: Timestamp,
    ) -> Result<Option<Verdict>, Fault> {
        let reference = claim.reference();
        for _ in 0..LOOKS {
            let node = match session.entries().get_mut(&reference) {
                Some(entry) => {
                    entry.look_again();
                    entry.node.clone()
                }
                None => return Ok(None),
            };
            let view = session.view(&claim.resource, self.now()).await?;
            // A list that contains the node is of this line, and not older than the node. A contender that is seated in an
            // old list is still seated: those ahead of it only leave.
            let own = view.as_ref().and_then(|view| view.line.position(&node));
            let (Some(mut view), Some(own)) = (view, own) else {
                session.entries().remove(&reference);
                return Ok(None);
            };
            if let Some(verdict) = self.mismatch(session, claim, &mut view, own, fresh).await? {
                return Ok(Some(verdict));
            }
            if own < view.seating().seated || self.lightened(session, claim, &mut view, own).await? {
                return self.grant(session, claim, began).await;
            }
            let verdict = match claim.when_blocked {
                WhenBlocked::Leave => Some(self.leave(session, claim, &node).await?),
                WhenBlocked::Queue => self.stand(session, claim, &view, own, fresh).await?,
            };
            if verdict.is_some() {
                return Ok(verdict);
            }
        }
        Err(Fault::too_busy().after_effect())
    }

    /// Others use another capacity: then the claim leaves.
    async fn mismatch(
        &self,
        session: &Session,
        claim: &Claim,
        view: &mut View,
        own: usize,
        fresh: bool,
    ) -> Result<Option<Verdict>, Fault> {
        // Whoever has just come minds those who were there before; whoever waits is one of them.
        let there = if fresh { own } else { own + 1 };
        match view.line.capacity_of(there, view.control.as_ref()) {
            Some(capacity) if capacity != claim.share.capacity() => {
                self.remove(session, &claim.reference()).await?;
                Ok(Some(Verdict::Mismatch { capacity }))
            }
            None => {
                let stale = view.control.take_if(|control| control.capacity.is_some());
                if let Some(control) = stale {
                    session.forget_capacity(&claim.resource, &control).await;
                    view.control = session.control(&claim.resource, self.now()).await?;
                }
                Ok(None)
            }
            Some(_) => Ok(None),
        }
    }

    /// Nodes may weigh less than their names say, this one's too if it now asks for less. Whether it holds, then.
    async fn lightened(
        &self,
        session: &Session,
        claim: &Claim,
        view: &mut View,
        own: usize,
    ) -> Result<bool, Fault> {
        let capacity = view.seating().capacity;
        if capacity == 1 {
            return Ok(false);
        }
        let reference = claim.reference();
        let (name, known) = {
            let entries = session.entries();
            let Some(entry) = entries.get(&reference) else { return Ok(false) };
            (entry.node.clone(), entry.weight)
        };
        session.weigh(&claim.resource, &mut view.line, own, Some(&name)).await?;
        view.line.lower(&name, known);
        if own < view.seating().seated {
            return Ok(true);
        }
        let weight = claim.share.weight();
        if weight >= known || view.is_paused() || !view.line.would_hold(own, weight, capacity) {
            return Ok(false);
        }
        self.lower_own(session, &reference, weight).await
    }

    /// Says in the claim's own node that it weighs less than its name. Whether it does now.
    async fn lower_own(&self, session: &Session, claim: &ClaimRef, weight: u32) -> Result<bool, Fault> {
        for _ in 0..LOOKS {
            let (node, mut record, version) = {
                let entries = session.entries();
                let Some(entry) = entries.get(claim) else { return Ok(false) };
                if entry.weight <= weight {
                    return Ok(true);
                }
                (entry.node.clone(), entry.record.clone(), entry.version)
            };
            record.weight = Some(weight);
            let (path, sent) = (format!("{}/{node}", folder(&claim.resource)), self.now());
            match session.write(&path, &record, version).await {
                Ok(stat) => {
                    session.committed(sent, &stat);
                    if let Some(entry) = session.entries().get_mut(claim) {
                        (entry.record, entry.version, entry.weight) = (record, stat.version, weight);
                    }
                }
                // An operator has written there; or we have, and the answer was lost.
                Err(Driver::BadVersion | Driver::NoNode) => self.reread(session, claim).await?,
                Err(error) => return Err(Fault::of(error)),
            }
        }
        Err(Fault::too_busy())
    }

    /// It holds. What we vouch for begins with a write: one that is long ago is made anew.
    async fn grant(
        &self,
        session: &Session,
        claim: &Claim,
        began: Timestamp,
    ) -> Result<Option<Verdict>, Fault> {
        let reference = claim.reference();
        let known = session.entries().get(&reference).map(|entry| (entry.node.clone(), entry.token));
        let Some((node, token)) = known else { return Ok(None) };
        if session.is_stale(self.now()) {
            let sent = self.now();
            let mut transaction = session.transaction();
            transaction.check_version(&format!("{}/{node}", folder(&claim.resource)), -1);
            match transaction.commit_named().await.map_err(Driver::from) {
                Ok(_) => session.vouch(sent),
                Err(Driver::NoNode) => {
                    session.entries().remove(&reference);
                    return Ok(None);
                }
                Err(error) => return Err(Fault::of(error)),
            }
        }
        self.carry_note(session, claim).await?;
        let remaining = session.remaining(began);
        if let Some(entry) = session.entries().get_mut(&reference) {
            (entry.granted, entry.ends) = (true, began.after(remaining));
            entry.watch_only(&[]);
        }
        Ok(Some(Verdict::Granted(Grant::new(token, remaining))))
    }

    /// A claim may come with another note than it had when it took its place.
    async fn carry_note(&self, session: &Session, claim: &Claim) -> Result<(), Fault> {
        let reference = claim.reference();
        let changed = session.entries().get(&reference).and_then(|entry| {
            let mut record = entry.record.clone();
            record.set_note(claim.note.as_deref());
            (record != entry.record).then(|| (entry.node.clone(), entry.version, record))
        });
        let Some((node, version, record)) = changed else { return Ok(()) };
        let path = format!("{}/{node}", folder(&claim.resource));
        match session.write(&path, &record, version).await {
            Ok(stat) => {
                if let Some(entry) = session.entries().get_mut(&reference) {
                    (entry.record, entry.version) = (record, stat.version);
                }
                Ok(())
            }
            // An operator has written there: the note comes with the next renewal, if it comes again.
            Err(Driver::BadVersion | Driver::NoNode) => Ok(()),
            Err(error) => Err(Fault::of(error)),
        }
    }

    /// It leaves no trace; and says who is there.
    pub(crate) async fn leave(&self, session: &Session, claim: &Claim, node: &str) -> Result<Verdict, Fault> {
        self.remove(session, &claim.reference()).await?;
        let now = self.now();
        let Some(view) = session.weighed(&claim.resource, now).await? else {
            return Ok(Verdict::Blocked(Blocked::default()));
        };
        let seated = view.seating().seated;
        let (holders, newest) = session.holders(&claim.resource, &view, now).await?;
        let mut blocked = blocked(&view, holders, newest);
        let others = view.line.contenders.iter().filter(|contender| contender.name != node).count();
        blocked.ahead = u32::try_from(others.saturating_sub(seated)).unwrap_or(u32::MAX);
        Ok(Verdict::Blocked(blocked))
    }

    /// It stands in line, and watches who is in its way. `None` if someone of those has just left.
    async fn stand(
        &self,
        session: &Session,
        claim: &Claim,
        view: &View,
        own: usize,
        fresh: bool,
    ) -> Result<Option<Verdict>, Fault> {
        let (seating, reference) = (view.seating(), claim.reference());
        let most = self.info.limits.queue;
        if fresh && own - seating.seated >= most as usize {
            self.remove(session, &reference).await?;
            let message = format!("the line is full: {most} wait already");
            return Err(Fault::from(Error::new(ErrorKind::Limit, message)));
        }
        let weight = view.line.weight(&view.line.contenders[own]);
        let names = match view.line.blockers(own, weight, seating.capacity) {
            Some(blockers) => blockers.into_iter().map(|blocker| blocker.name.clone()).collect(),
            // It would fit: an operator is in its way.
            None if view.is_paused() && view.line.would_hold(own, weight, seating.capacity) => {
                vec![CONTROL.to_owned()]
            }
            None => vec![String::new()],
        };
        let missing = match session.entries().get_mut(&reference) {
            Some(entry) => entry.watch_only(&names),
            None => return Ok(None),
        };
        for name in missing {
            if !self.watch(session, &reference, name).await? {
                return Ok(None);
            }
        }
        let now = self.now();
        let (mut holders, mut all) = (Vec::new(), true);
        for position in 0..seating.seated.min(Blocked::HOLDERS_MAX) {
            let name = &view.line.contenders[position].name;
            let known = session.entries().get(&reference).and_then(|entry| entry.seen(name).cloned());
            match known {
                Some((record, stat)) => {
                    let seen = Seen { position, record, stat };
                    holders.push(session.held_by(&claim.resource, &view.line, &seen, now).await?);
                }
                None => all = false,
            }
        }
        // Whoever has just come deep into the line learns who holds it with its first look again.
        if !all && !fresh {
            holders = session.holders(&claim.resource, view, now).await?.0;
        }
        let mut blocked = blocked(view, holders, view.pzxid);
        blocked.queued = true;
        blocked.ahead = u32::try_from(own - seating.seated).unwrap_or(u32::MAX);
        Ok(Some(Verdict::Blocked(blocked)))
    }

    /// Watches one node; the whole folder, if that is too many. False if it is gone.
    async fn watch(&self, session: &Session, claim: &ClaimRef, name: String) -> Result<bool, Fault> {
        let folder = folder(&claim.resource);
        let (watcher, seen) = if name.is_empty() {
            match session.client.list_and_watch_children(&folder).await {
                Ok((_, watcher)) => (watcher, None),
                Err(Driver::NoNode) => return Ok(false),
                Err(error) => return Err(Fault::of(error)),
            }
        } else {
            let path =
                if name == CONTROL { control::path(&claim.resource) } else { format!("{folder}/{name}") };
            match session.client.get_and_watch_data(&path).await {
                Ok((data, stat, watcher)) => (watcher, Some((Record::read(&data), stat))),
                Err(Driver::NoNode) => return Ok(false),
                Err(error) => return Err(Fault::of(error)),
            }
        };
        if let Some(entry) = session.entries().get_mut(claim) {
            entry.watch(name, watcher, seen, &*self.link.environment);
        }
        Ok(true)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.link.environment.now()
    }
}

/// What is said to a claim that does not hold.
pub(crate) fn blocked(view: &View, holders: Vec<HeldBy>, newest: i64) -> Blocked {
    let mut blocked = Blocked::default();
    blocked.holders = holders;
    blocked.paused = view.is_paused();
    // Sessions end when they are silent, which nobody can foretell; a pause has an end.
    blocked.changes_in =
        view.control.as_ref().and_then(Control::paused_for).map(|left| left + Duration::from_millis(1));
    blocked.cursor = Cursor(u64::try_from(newest).unwrap_or(0));
    blocked
}

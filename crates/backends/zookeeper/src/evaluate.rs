//! Decides whether a claim whose contender exists is granted. If it is not, sets the watches that wake it.
//!
//! 1. List the folder. The list must contain the claim's own contender; otherwise the contender is gone.
//! 2. If the claim uses another capacity than the contenders before it, delete its contender: capacity
//!    mismatch.
//! 3. Apply the admission rule to the names (`contender.rs`). If the claim is blocked by heavy contenders,
//!    read whether their weights were lowered, and apply the rule again.
//! 4. Granted: if the last committed write of this session is old, send one first (ADR 0026).
//! 5. Blocked, and the claim does not want to wait: delete its contender and say who holds the resource.
//! 6. Blocked, and the claim waits: watch as few contenders as possible, such that the claim cannot be
//!    granted while all of them exist. If one of them has left meanwhile, start again.

use std::time::Duration;

use leasehold_core::{Blocked, ClaimRef, Cursor, Error, ErrorKind, Grant, Verdict, WhenBlocked};
use zookeeper_client::Error as Driver;

use crate::{
    ROUNDS_MAX, RoundOutcome,
    acquire::AcquireContext,
    claim_record::ClaimRecord,
    error::StoreError,
    local_claims::RecordWrite,
    paths::{self, CONTROL, folder},
    resource_view::{ContenderNode, Holders, ResourceView},
    session::Session,
};

/// In place of the name of a node to watch: watch the whole folder, because too many nodes would have to be
/// watched.
const WHOLE_FOLDER: &str = "";
/// A check with this version succeeds for every version of the node.
const ANY_VERSION: i32 = -1;
/// Added to the end of a pause, so that a waiter that asks again then does not come too early.
const AFTER_PAUSE: Duration = Duration::from_millis(1);

/// Which call created the contender that is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContenderOrigin {
    /// This `acquire` call: other clients do not count on it yet.
    ThisCall,
    /// An earlier call: the contender has a place in the queue.
    EarlierCall,
}

/// The outcome of one evaluation.
enum Evaluation {
    Decided(Verdict),
    /// The contender of the claim does not exist any more.
    NodeGone,
    /// A contender that was to be watched has left.
    BlockerLeft,
    /// The claim is refused, and its contender is deleted again: there is no effect.
    Refused(Error),
}

/// The claim's own contender in a view of its resource.
struct OwnContender {
    position: usize,
    origin: ContenderOrigin,
}

impl AcquireContext<'_> {
    /// Decides about a claim that has a contender of this session. `Retry` if the contender is gone.
    ///
    /// `listed` is a list of the folder, if this call has one that was requested after the contender's
    /// creation.
    pub(crate) async fn evaluate(
        &self,
        origin: ContenderOrigin,
        mut listed: Option<ResourceView>,
    ) -> Result<RoundOutcome<Verdict>, StoreError> {
        for _ in 0..ROUNDS_MAX {
            // The contender exists already, so the call has an effect even if it fails from here on.
            match self.evaluate_once(origin, listed.take()).await.map_err(StoreError::after_effect)? {
                Evaluation::Decided(verdict) => return Ok(RoundOutcome::Done(verdict)),
                Evaluation::NodeGone => return Ok(RoundOutcome::Retry),
                Evaluation::BlockerLeft => {}
                Evaluation::Refused(error) => return Err(StoreError::from(error)),
            }
        }
        Err(StoreError::contention().after_effect())
    }

    async fn evaluate_once(
        &self,
        origin: ContenderOrigin,
        listed: Option<ResourceView>,
    ) -> Result<Evaluation, StoreError> {
        let session = self.session;
        let node = session.claims.update(&self.reference, |local| {
            // Before the listing, so that a change after it notifies again.
            local.prepare_evaluation();
            local.node.clone()
        });
        let Some(node) = node else { return Ok(Evaluation::NodeGone) };
        let view = match listed.filter(|listed| listed.list.position(&node).is_some()) {
            Some(listed) => Some(listed),
            None => session.view(&self.claim.resource).await?,
        };
        // A list that contains the claim's node is of this folder and not older than the node (ADR 0033). An
        // old list is safe: a contender that is granted in it is still granted, because contenders ahead of
        // it can only leave.
        let position = view.as_ref().and_then(|view| view.list.position(&node));
        let (Some(mut view), Some(position)) = (view, position) else {
            session.claims.remove(&self.reference);
            return Ok(Evaluation::NodeGone);
        };
        let own = OwnContender { position, origin };
        if let Some(verdict) = self.check_capacity(&mut view, &own).await? {
            return Ok(Evaluation::Decided(verdict));
        }
        if position < view.admission().holder_count
            || self.fits_by_lowered_weights(&mut view, position).await?
        {
            return self.grant().await;
        }
        match self.claim.when_blocked {
            WhenBlocked::Leave => Ok(Evaluation::Decided(self.leave(Some(&node)).await?)),
            WhenBlocked::Queue => self.queue(&view, &own).await,
        }
    }

    /// Step 2: if other contenders use another capacity, deletes the claim's contender.
    async fn check_capacity(
        &self,
        view: &mut ResourceView,
        own: &OwnContender,
    ) -> Result<Option<Verdict>, StoreError> {
        // A new contender must agree with the contenders before it. A contender that waits already counts
        // as one of them.
        let established = match own.origin {
            ContenderOrigin::ThisCall => own.position,
            ContenderOrigin::EarlierCall => own.position + 1,
        };
        match view.capacity_of_first(established) {
            Some(capacity) if capacity != self.claim.share.capacity() => {
                self.session.remove(&self.reference).await?;
                Ok(Some(Verdict::Mismatch { capacity }))
            }
            Some(_) => Ok(None),
            None => {
                // The resource was free. A capacity that an operator set applied to contenders that are gone.
                if let Some(control) = view.control.take_if(|control| control.capacity.is_some()) {
                    self.session.clear_capacity(&self.claim.resource, &control).await;
                    view.control = self.session.read_control_node(&self.claim.resource).await?;
                }
                Ok(None)
            }
        }
    }

    /// Step 3: whether the claim is granted once lowered weights are known, its own included.
    ///
    /// A waiting claim can be sent again with a lower weight. If that weight fits, it is written into the
    /// node.
    async fn fits_by_lowered_weights(
        &self,
        view: &mut ResourceView,
        position: usize,
    ) -> Result<bool, StoreError> {
        let capacity = view.admission().capacity;
        if capacity == 1 {
            return Ok(false); // all weights are 1 and cannot be lowered
        }
        let known = self.session.claims.read(&self.reference, |local| (local.node.clone(), local.weight));
        let Some((node, known_weight)) = known else { return Ok(false) };
        let resource = &self.claim.resource;
        self.session.read_lowered_weights(resource, &mut view.list, position, Some(&node)).await?;
        view.list.lower_weight(&node, known_weight);
        if position < view.admission().holder_count {
            return Ok(true);
        }
        let weight = self.claim.share.weight();
        if weight >= known_weight || view.is_paused() || !view.list.fits(position, weight, capacity) {
            return Ok(false);
        }
        self.lower_own_weight(weight).await
    }

    /// Writes a lower weight into the node of the claim. False if the node is gone.
    async fn lower_own_weight(&self, weight: u32) -> Result<bool, StoreError> {
        for _ in 0..ROUNDS_MAX {
            let known = self.session.claims.read(&self.reference, |local| {
                (local.weight, local.node.clone(), local.record.clone(), local.version)
            });
            let Some((known_weight, node, mut record, version)) = known else { return Ok(false) };
            if known_weight <= weight {
                return Ok(true);
            }
            record.lowered_weight = Some(weight);
            let sent = self.session.now();
            match self.session.write_local_record(&self.reference, (&node, version), record).await? {
                RecordWrite::Written(stat) => self.session.note_commit_with_stat(sent, &stat),
                // An operator has written to the node; or we have, and the reply was lost.
                RecordWrite::VersionChanged | RecordWrite::NodeGone => {
                    self.session.reread(&self.reference).await?;
                }
            }
        }
        Err(StoreError::contention())
    }

    /// Step 4: the claim holds the resource.
    async fn grant(&self) -> Result<Evaluation, StoreError> {
        let (session, reference) = (self.session, &self.reference);
        let known = session.claims.read(reference, |local| (local.node.clone(), local.token));
        let Some((node, token)) = known else { return Ok(Evaluation::NodeGone) };
        // The time of a grant counts from a committed write, so an old one would leave too little time (ADR
        // 0026).
        if session.needs_write() {
            let sent = session.now();
            let mut transaction = session.transaction();
            transaction.check_version(&paths::contender(&self.claim.resource, &node), ANY_VERSION);
            match transaction.commit_with_request_id().await.map_err(Driver::from) {
                Ok(_) => session.note_commit(sent),
                Err(Driver::NoNode) => {
                    session.claims.remove(reference);
                    return Ok(Evaluation::NodeGone);
                }
                Err(error) => return Err(StoreError::from(error)),
            }
        }
        self.write_changed_note().await?;
        let remaining = session.remaining(self.began);
        session.claims.update(reference, |local| {
            (local.is_granted, local.valid_until) = (true, self.began.after(remaining));
            local.keep_watches(&[]);
        });
        Ok(Evaluation::Decided(Verdict::Granted(Grant::new(token, remaining))))
    }

    /// Writes the claim's note into its node if the note has changed since the contender was created.
    async fn write_changed_note(&self) -> Result<(), StoreError> {
        let changed = self.session.claims.read(&self.reference, |local| {
            let mut record = local.record.clone();
            record.set_note(self.claim.note.as_deref());
            (record != local.record).then(|| (local.node.clone(), local.version, record))
        });
        if let Some((node, version, record)) = changed.flatten() {
            // If an operator has written to the node meanwhile, the old note stays until a renewal brings a
            // new one. A grant does not fail because of a note.
            self.session.write_local_record(&self.reference, (&node, version), record).await?;
        }
        Ok(())
    }

    /// Step 5: deletes all nodes of the claim, and says who holds the resource. `own_node` may still be in an
    /// old listing and is not counted.
    pub(crate) async fn leave(&self, own_node: Option<&str>) -> Result<Verdict, StoreError> {
        let (session, resource) = (self.session, &self.claim.resource);
        session.remove(&self.reference).await?;
        let Some(view) = session.view_with_weights(resource).await? else {
            return Ok(Verdict::Blocked(Blocked::default()));
        };
        let (holders, newest) = session.read_holders(resource, &view).await?;
        let mut blocked = blocked(&view, holders, newest);
        let is_other = |name: &str| own_node.is_none_or(|own| own != name);
        let others = view.list.contenders.iter().filter(|contender| is_other(&contender.name)).count();
        let waiting = others.saturating_sub(view.admission().holder_count);
        blocked.ahead = u32::try_from(waiting).unwrap_or(u32::MAX);
        Ok(Verdict::Blocked(blocked))
    }

    /// Step 6: the claim waits.
    async fn queue(&self, view: &ResourceView, own: &OwnContender) -> Result<Evaluation, StoreError> {
        let ahead = own.position - view.admission().holder_count;
        if own.origin == ContenderOrigin::ThisCall && ahead >= self.queue_max as usize {
            self.session.remove(&self.reference).await?;
            let message = format!(
                "the queue is full: {ahead} claims wait, and at most {} may. Try again later",
                self.queue_max
            );
            return Ok(Evaluation::Refused(Error::new(ErrorKind::Limit, message)));
        }
        let names = nodes_to_watch(view, own.position);
        let missing = self.session.claims.update(&self.reference, |local| local.keep_watches(&names));
        // `BlockerLeft` although our own node is gone: the next evaluation finds that out.
        let Some(missing) = missing else { return Ok(Evaluation::BlockerLeft) };
        for name in missing {
            if !self.session.watch_node(&self.reference, name).await? {
                return Ok(Evaluation::BlockerLeft);
            }
        }
        let mut blocked = blocked(view, self.holders_for_waiter(view, own.origin).await?, view.pzxid);
        blocked.queued = true;
        blocked.ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
        Ok(Evaluation::Decided(Verdict::Blocked(blocked)))
    }

    /// The holders to report to a waiting claim. Nodes that it watches are known without a request.
    async fn holders_for_waiter(
        &self,
        view: &ResourceView,
        origin: ContenderOrigin,
    ) -> Result<Holders, StoreError> {
        let resource = &self.claim.resource;
        let (mut holders, mut knows_all) = (Holders::default(), true);
        for position in 0..view.admission().holder_count.min(Blocked::HOLDERS_MAX) {
            let name = &view.list.contenders[position].name;
            let watched =
                self.session.claims.read(&self.reference, |local| local.watched_node(name).cloned());
            match watched.flatten() {
                Some((record, stat)) => {
                    let node = ContenderNode { position, record, stat };
                    self.session.describe_holder(resource, &view.list, &node, &mut holders).await?;
                }
                None => knows_all = false,
            }
        }
        // A claim that has just joined the queue saves this request. It learns all holders when it asks again.
        if !knows_all && origin == ContenderOrigin::EarlierCall {
            holders = self.session.read_holders(resource, view).await?.0;
        }
        Ok(holders)
    }
}

/// The nodes that a waiting contender must watch, so that it is woken when it may be granted.
fn nodes_to_watch(view: &ResourceView, position: usize) -> Vec<String> {
    let (list, capacity) = (&view.list, view.admission().capacity);
    let weight = list.weight(&list.contenders[position]);
    match list.blockers(position, weight, capacity) {
        Some(blockers) => blockers.into_iter().map(|blocker| blocker.name.clone()).collect(),
        // It would fit: only the pause blocks it.
        None if view.is_paused() && list.fits(position, weight, capacity) => vec![CONTROL.to_owned()],
        None => vec![WHOLE_FOLDER.to_owned()],
    }
}

impl Session {
    /// Watches a node for a waiting claim, or the whole folder if the name is [`WHOLE_FOLDER`]. False if the
    /// node is gone.
    async fn watch_node(&self, claim: &ClaimRef, name: String) -> Result<bool, StoreError> {
        let watched = if name == WHOLE_FOLDER {
            let listed = self.client.list_and_watch_children(&folder(&claim.resource)).await;
            listed.map(|(_, watcher)| (watcher, None))
        } else {
            // One request both watches and reads the node, so that the holder is known without another one.
            let read = self.client.get_and_watch_data(&paths::contender(&claim.resource, &name)).await;
            read.map(|(data, stat, watcher)| (watcher, Some((ClaimRecord::from_bytes(&data), stat))))
        };
        let (watcher, node) = match watched {
            Ok(watched) => watched,
            Err(Driver::NoNode) => return Ok(false),
            Err(error) => return Err(StoreError::from(error)),
        };
        self.claims.update(claim, |local| local.add_watch(name, watcher, node, self.environment()));
        Ok(true)
    }
}

/// The answer to a claim that is not granted, except for its own place in the queue.
pub(crate) fn blocked(view: &ResourceView, holders: Holders, newest_zxid: i64) -> Blocked {
    let mut blocked = Blocked::default();
    blocked.holders = holders.claims;
    blocked.foreign = holders.foreign.into_iter().next();
    blocked.paused = view.is_paused();
    // The end of a pause is known. The end of a holder's session is not: it depends on its last heartbeat.
    blocked.pause_ends_in = view.control.as_ref().and_then(|control| control.paused_for);
    blocked.changes_in = blocked.pause_ends_in.map(|left| left + AFTER_PAUSE);
    blocked.cursor = Cursor(u64::try_from(newest_zxid).unwrap_or(0));
    blocked
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_core::{Backend as _, BackendExt as _, Claim, Effect, Holder, OwnerToken, Query, Share};
    use leasehold_testkit::servers::ZooKeeperServer;

    use super::*;
    use crate::{backend::ZooKeeper, config::Config};

    fn claim(owner: u8) -> Claim {
        let (resource, ttl) = ("report/42".parse().unwrap(), Duration::from_secs(60));
        let holder = Arc::new(Holder::new("host", 1, "test"));
        Claim::new(resource, OwnerToken::from_bytes([owner; 16]), Share::WHOLE, ttl, holder).queued()
    }

    #[tokio::test]
    async fn a_claim_that_a_full_queue_refuses_has_no_effect() {
        let server = ZooKeeperServer::start();
        let config = Config::parse(&server.url()).unwrap();
        let mut zookeeper = ZooKeeper::connect(config, Arc::new(leasehold::System::current())).await.unwrap();
        zookeeper.info.limits.queue = 1;
        assert!(matches!(zookeeper.acquire_one(&claim(1)).await, Ok(Verdict::Granted(_))));
        assert!(matches!(zookeeper.acquire_one(&claim(2)).await, Ok(Verdict::Blocked(_))));
        let error = zookeeper.acquire_one(&claim(3)).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Limit, Effect::None), "{error:?}");
        let page = zookeeper.inspect(&Query::One(claim(3).resource)).await.unwrap();
        assert_eq!(page.into_snapshots()[0].queue_length, 1, "nothing is left of it");
    }
}

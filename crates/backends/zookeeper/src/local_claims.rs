//! What this process remembers of the claims whose nodes belong to its session.
//!
//! The nodes on the servers are the truth. These records save looking for the nodes, and hold the watches of
//! the waiters.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use leasehold_core::{ClaimRef, Environment, FencingToken, Timestamp};
use leasehold_support::race::first;
use tokio::sync::{Notify, oneshot};
use zookeeper_client::{Error as Driver, OneshotWatcher, Stat};

use crate::{claim_record::ClaimRecord, error::StoreError, paths, session::Session};

/// The local claims of one session.
#[derive(Debug, Default)]
pub(crate) struct LocalClaims(Mutex<HashMap<ClaimRef, LocalClaim>>);

impl LocalClaims {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<ClaimRef, LocalClaim>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads something of a claim. `None` if the claim is not known here.
    pub(crate) fn read<T>(&self, claim: &ClaimRef, read: impl FnOnce(&LocalClaim) -> T) -> Option<T> {
        self.lock().get(claim).map(read)
    }

    /// Changes a claim, and returns the result of `change`. `None` if the claim is not known here.
    pub(crate) fn update<T>(&self, claim: &ClaimRef, change: impl FnOnce(&mut LocalClaim) -> T) -> Option<T> {
        self.lock().get_mut(claim).map(change)
    }

    // The methods below drop a removed claim outside of the lock, because its `Drop` wakes the task that
    // waits for it.

    pub(crate) fn insert(&self, claim: ClaimRef, local: LocalClaim) {
        let old = self.lock().insert(claim, local);
        drop(old);
    }

    pub(crate) fn remove(&self, claim: &ClaimRef) {
        let removed = self.lock().remove(claim);
        drop(removed);
    }

    /// Removes a claim if `condition` holds for it. Whether it was removed.
    pub(crate) fn remove_if(&self, claim: &ClaimRef, condition: impl FnOnce(&LocalClaim) -> bool) -> bool {
        let removed = {
            let mut claims = self.lock();
            let matches = claims.get(claim).is_some_and(condition);
            if matches { claims.remove(claim) } else { None }
        };
        removed.is_some()
    }

    /// Removes the predecessor and sets the record of its successor in one step. `None` if the successor's
    /// node does not belong to this session.
    pub(crate) fn replace(&self, predecessor: &ClaimRef, successor: ClaimRef, local: Option<LocalClaim>) {
        let removed = {
            let mut claims = self.lock();
            let old = match local {
                Some(local) => claims.insert(successor, local),
                None => claims.remove(&successor),
            };
            (old, claims.remove(predecessor))
        };
        drop(removed);
    }
}

/// A claim whose contender's node belongs to our session.
#[derive(Debug)]
pub(crate) struct LocalClaim {
    /// The name of the contender's node in the folder of the resource.
    pub(crate) node: String,
    pub(crate) token: FencingToken,
    /// The claim was granted, or held the resource when its node was first found.
    pub(crate) is_granted: bool,
    /// The data of the node, as we last wrote or read it.
    pub(crate) record: ClaimRecord,
    /// The version of the node that belongs to `record`.
    pub(crate) version: i32,
    pub(crate) weight: u32,
    /// The claim took the node over, so that the node has another owner in its name.
    pub(crate) took_over: bool,
    /// Until when the client was told that it holds the lease. An eviction at expiry lets it run out then.
    pub(crate) valid_until: Timestamp,
    pub(crate) changes: Arc<ChangeNotifier>,
    watches: HashMap<String, BlockerWatch>,
}

/// Tells the task that waits for a claim that it should ask again.
#[derive(Debug, Default)]
pub(crate) struct ChangeNotifier {
    /// Set before the task waits if the change came earlier.
    has_changed: AtomicBool,
    wakeup: Notify,
}

impl ChangeNotifier {
    pub(crate) fn notify(&self) {
        self.has_changed.store(true, Ordering::Release);
        self.wakeup.notify_waiters();
    }

    fn reset(&self) {
        self.has_changed.store(false, Ordering::Release);
    }

    /// Returns when something has changed since the last reset.
    pub(crate) async fn changed(&self) {
        loop {
            // Registered before the flag is read, so that a notification in between is not lost.
            let notified = self.wakeup.notified();
            if self.has_changed.load(Ordering::Acquire) {
                return;
            }
            notified.await;
        }
    }
}

/// The watch on a node that blocks a waiting claim. Dropping it ends the watch.
#[derive(Debug)]
struct BlockerWatch {
    fired: Arc<AtomicBool>,
    /// The data of the node when the watch was set. It has not changed as long as the watch has not fired.
    node: Option<(ClaimRecord, Stat)>,
    _stop: oneshot::Sender<()>,
}

impl LocalClaim {
    pub(crate) fn new(node: String, token: FencingToken, record: ClaimRecord, weight: u32) -> LocalClaim {
        LocalClaim {
            node,
            token,
            is_granted: false,
            record,
            version: 0,
            weight,
            took_over: false,
            valid_until: Timestamp::default(),
            changes: Arc::default(),
            watches: HashMap::new(),
        }
    }

    /// Prepares for listing the contenders again: later changes notify again, and watches that have fired are
    /// removed.
    pub(crate) fn prepare_evaluation(&mut self) {
        self.changes.reset();
        self.watches.retain(|_, watch| !watch.fired.load(Ordering::Acquire));
    }

    /// Ends all watches but those on these nodes. Returns the nodes that are not watched yet.
    pub(crate) fn keep_watches(&mut self, names: &[String]) -> Vec<String> {
        self.watches.retain(|name, _| names.contains(name));
        names.iter().filter(|name| !self.watches.contains_key(*name)).cloned().collect()
    }

    /// The data of a watched node.
    pub(crate) fn watched_node(&self, name: &str) -> Option<&(ClaimRecord, Stat)> {
        self.watches.get(name)?.node.as_ref()
    }

    /// Remembers a watch, and starts a task that notifies this claim when the watch fires.
    pub(crate) fn add_watch(
        &mut self,
        name: String,
        watcher: OneshotWatcher,
        node: Option<(ClaimRecord, Stat)>,
        environment: &dyn Environment,
    ) {
        let fired = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = oneshot::channel::<()>();
        let (flag, changes) = (Arc::clone(&fired), Arc::clone(&self.changes));
        environment.spawn(Box::pin(async move {
            // The watcher also resolves when the session ends: then the claim must ask again too.
            first(watcher.changed(), stopped).await;
            flag.store(true, Ordering::Release);
            changes.notify();
        }));
        self.watches.insert(name, BlockerWatch { fired, node, _stop: stop });
    }
}

impl Drop for LocalClaim {
    fn drop(&mut self) {
        // A task that waits for this claim must ask again, because its node is not in the queue any more.
        self.changes.notify();
    }
}

/// The outcome of writing the record of a local claim into its node.
pub(crate) enum RecordWrite {
    Written(Stat),
    /// The node has another version than this session knows: an operator or another session has written to
    /// it.
    VersionChanged,
    /// The node does not exist any more.
    NodeGone,
}

impl Session {
    /// Writes the record into a contender's node if the node has this version.
    pub(crate) async fn write_record(
        &self,
        path: &str,
        record: &ClaimRecord,
        version: i32,
    ) -> Result<Stat, Driver> {
        let mut transaction = self.transaction();
        transaction.set_data(path, &record.to_bytes(), Some(version));
        let committed = transaction.commit_with_request_id().await.map_err(Driver::from)?;
        committed.stat().copied().ok_or_else(|| Driver::UnexpectedError("no stat".to_owned()))
    }

    /// Writes a new record into the node of a local claim, and remembers it.
    ///
    /// `node` and `version` are those of the local claim from which the record was made.
    pub(crate) async fn write_local_record(
        &self,
        claim: &ClaimRef,
        (node, version): (&str, i32),
        record: ClaimRecord,
    ) -> Result<RecordWrite, StoreError> {
        let path = paths::contender(&claim.resource, node);
        match self.write_record(&path, &record, version).await {
            Ok(stat) => {
                self.claims.update(claim, |local| {
                    local.weight = record.weight(local.weight);
                    (local.record, local.version) = (record, stat.version);
                });
                Ok(RecordWrite::Written(stat))
            }
            Err(Driver::BadVersion) => Ok(RecordWrite::VersionChanged),
            Err(Driver::NoNode) => Ok(RecordWrite::NodeGone),
            Err(error) => Err(StoreError::from(error)),
        }
    }

    /// Reads the node of a local claim again, because another client has written to it or deleted it.
    ///
    /// An operator may have written a request or a flag; another session may have taken the node over. The
    /// local claim is removed if the node is gone or belongs to another owner.
    pub(crate) async fn reread(&self, claim: &ClaimRef) -> Result<(), StoreError> {
        let known = self.claims.read(claim, |local| (local.node.clone(), local.took_over));
        let Some((node, took_over)) = known else { return Ok(()) };
        let path = paths::contender(&claim.resource, &node);
        let Some((bytes, stat)) = self.read_node(&path).await? else {
            self.claims.remove(claim);
            return Ok(());
        };
        let mut record = ClaimRecord::from_bytes(&bytes);
        let removed = {
            let mut claims = self.claims.lock();
            let Some(local) = claims.get_mut(claim) else { return Ok(()) };
            if record.holder.is_empty() {
                // Curator's `Revoker` overwrites the whole data with its request. The rest is known here.
                let finish_request = record.finish_request.take();
                record = local.record.clone();
                record.finish_request = finish_request;
            }
            if record.belongs_to(claim.owner, took_over) {
                local.weight = record.weight(local.weight);
                (local.record, local.version) = (record, stat.version);
                None
            } else {
                claims.remove(claim)
            }
        };
        // Outside of the lock, because dropping a claim wakes the task that waits for it.
        drop(removed);
        Ok(())
    }
}

//! Markers: an owner has at most one contender, and none once its claim has ended, whatever reply is lost or
//! late.
//!
//! The marker of a claim is an ephemeral node whose path contains the owner token and a hash of the resource.
//! It exists if and only if the claim has a contender: either a contender with the owner's token in its name,
//! or one that the claim took over from another owner. In the second case the data of the marker is the name
//! of that contender.
//!
//! Why no owner has two contenders:
//!
//! 1. Every transaction that gives a claim a contender also creates the claim's marker, so it fails if the
//!    marker exists. It does not matter which client sends it, how often, over which connection or session,
//!    or when the servers execute it.
//! 2. A marker is deleted only in a transaction that also deletes its contender at a known version, or that
//!    passes the contender on to another claim (`takeover.rs`), or that proves that there is no contender
//!    ([`Session::remove_stray_marker`]). If such a transaction is executed late or twice, the first two fail
//!    because the contender is gone or has another version, and the third because the folder has another
//!    version.
//! 3. Marker and contender are created by the same session and end together with it. There is one exception:
//!    a claim may take over a contender of another session. No time is granted for such a claim. If its own
//!    session ends first, the contender stays until the other session ends too.
//!
//! Why no contender of an ended claim remains:
//!
//! 4. If a request of the owner went unanswered, a tombstone is created first. A request that the servers
//!    execute after that fails (`tombstone.rs`). A request that they executed before that has created the
//!    marker, which step 5 sees.
//! 5. A release ends with a transaction that deletes contender and marker, or with a transaction that creates
//!    the marker and deletes it at once. The latter succeeds only if there is no marker, and so no contender.
//!    Until one of them is answered, the release fails with an unknown effect, and the engine repeats it.
//! 6. A claim that takes over from another claim does so in one transaction: the predecessor's contender and
//!    marker are deleted, or pass on to the claim. If the reply is lost, the claim's own marker shows what
//!    happened.
//! 7. If a claim is sent again after a lost reply, step 1 refuses a second contender. The claim finds the
//!    first contender by its name or by the marker's data ([`Session::find`]) and goes on with it. If the
//!    claim has a tombstone, it ends as in step 5 before it is answered.
//!
//! Early versions created a marker only for a claim that took over a contender. They can read and evict
//! contenders that have a marker. A marker that their eviction leaves behind blocks no other owner; step 2
//! deletes it when its owner asks or releases again, and it ends with its session.

use leasehold_core::{ClaimRef, Released};
use zookeeper_client::{Error as Driver, Stat};

use crate::{
    ROUNDS_MAX,
    claim_record::ClaimRecord,
    contender::Contender,
    error::StoreError,
    paths::{self, folder},
    session::Session,
    transaction::TransactionError,
};

/// A contender that belongs to the claim that was searched for.
#[derive(Debug)]
pub(crate) struct FoundContender {
    /// The name of the node in the folder of its resource.
    pub(crate) node: String,
    /// The claim took the node over, so that the node has another owner in its name.
    pub(crate) took_over: bool,
    pub(crate) record: ClaimRecord,
    pub(crate) stat: Stat,
}

/// All nodes of a claim on the servers.
#[derive(Debug, Default)]
pub(crate) struct ClaimNodes {
    /// At most one, unless a version without markers created more.
    pub(crate) contenders: Vec<FoundContender>,
    pub(crate) has_marker: bool,
    /// The version of the resource's folder when it was listed. `None` if there is no folder.
    folder_version: Option<i32>,
}

/// The outcome of deleting a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeleteOutcome {
    Deleted,
    /// The contender did not exist.
    NotFound,
    /// The contender has another version: another client has written to it since it was read.
    Changed,
}

impl Session {
    /// Looks for the nodes of a claim, whichever session created them.
    pub(crate) async fn find(&self, claim: &ClaimRef) -> Result<ClaimNodes, StoreError> {
        // The server that we are connected to may be behind the server that executed our earlier request.
        self.sync(&folder(&claim.resource)).await?;
        let mut nodes = ClaimNodes::default();
        if let Some(view) = self.view(&claim.resource).await? {
            nodes.folder_version = Some(view.folder_version);
            let named: Vec<_> = view.list.positions_of_owner(claim.owner).collect();
            for contender in self.read_contenders(&claim.resource, &view.list, &named).await? {
                // A contender with a successor belongs to the successor, although it has our owner token in
                // its name.
                if contender.record.successor().is_none() {
                    nodes.contenders.push(FoundContender {
                        node: view.list.contenders[contender.position].name.clone(),
                        took_over: false,
                        record: contender.record,
                        stat: contender.stat,
                    });
                }
            }
        }
        let Some((name, _)) = self.read_node(&paths::marker(claim)).await? else { return Ok(nodes) };
        nodes.has_marker = true;
        nodes.contenders.extend(self.find_taken_over(claim, &name).await?);
        Ok(nodes)
    }

    /// The contender that the data of the claim's marker names, if the claim took one over and still has it.
    async fn find_taken_over(
        &self,
        claim: &ClaimRef,
        marker_data: &[u8],
    ) -> Result<Option<FoundContender>, StoreError> {
        let node = String::from_utf8_lossy(marker_data).into_owned();
        if node.is_empty() {
            return Ok(None);
        }
        if Contender::parse(node.clone()).owner.is_none() {
            // No marker has such data, so this is the reply to another request (ADR 0033).
            return Err(StoreError::foreign_reply());
        }
        let path = paths::contender(&claim.resource, &node);
        let Some((data, stat)) = self.read_node(&path).await? else { return Ok(None) };
        let record = ClaimRecord::from_bytes(&data);
        let is_ours = record.successor() == Some(claim.owner);
        Ok(is_ours.then_some(FoundContender { node, took_over: true, record, stat }))
    }

    /// Deletes the contender of a claim, whichever session created it.
    pub(crate) async fn remove(&self, claim: &ClaimRef) -> Result<Released, StoreError> {
        if self.remove_local(claim).await? {
            return Ok(Released::Now);
        }
        self.remove_all(claim).await
    }

    /// Deletes the contender that this session remembers, if it still exists and belongs to the claim.
    /// Whether it was deleted.
    pub(crate) async fn remove_local(&self, claim: &ClaimRef) -> Result<bool, StoreError> {
        for _ in 0..ROUNDS_MAX {
            let known = self.claims.read(claim, |local| (local.node.clone(), local.version));
            let Some((node, version)) = known else { return Ok(false) };
            let outcome = self.delete_contender(claim, &node, version).await?;
            if outcome == DeleteOutcome::Changed {
                // If another session has taken the node over, `reread` forgets the claim and nothing is
                // deleted.
                self.reread(claim).await?;
                continue;
            }
            self.claims.remove(claim);
            return Ok(outcome == DeleteOutcome::Deleted);
        }
        Err(StoreError::contention())
    }

    /// Deletes all nodes of a claim, whichever session created them. Returns when the ensemble has confirmed
    /// that none is left.
    pub(crate) async fn remove_all(&self, claim: &ClaimRef) -> Result<Released, StoreError> {
        let mut released = Released::AlreadyGone;
        for _ in 0..ROUNDS_MAX {
            if self.has_no_contender(claim).await? {
                return Ok(released);
            }
            let nodes = self.find(claim).await?;
            if nodes.contenders.is_empty() {
                self.remove_stray_marker(claim, &nodes).await?;
            }
            for FoundContender { node, stat, .. } in &nodes.contenders {
                let outcome = self.delete_contender(claim, node, stat.version).await?;
                if outcome == DeleteOutcome::Deleted {
                    released = Released::Now;
                }
            }
        }
        Err(StoreError::contention())
    }

    /// Whether a claim has no marker and so no contender.
    ///
    /// A transaction and not a read, because a read can be served by a server that is behind.
    pub(crate) async fn has_no_contender(&self, claim: &ClaimRef) -> Result<bool, StoreError> {
        let sent = self.now();
        let mut transaction = self.transaction();
        transaction.check_absent(&paths::marker(claim));
        match transaction.commit().await {
            Ok(_) => {
                self.note_commit(sent);
                Ok(true)
            }
            Err(TransactionError::Operation { source: Driver::NodeExists, .. }) => Ok(false),
            Err(error) => Err(StoreError::from(error)),
        }
    }

    /// Deletes a contender that has this version, and the marker of its claim, in one transaction.
    pub(crate) async fn delete_contender(
        &self,
        claim: &ClaimRef,
        node: &str,
        version: i32,
    ) -> Result<DeleteOutcome, StoreError> {
        let path = paths::contender(&claim.resource, node);
        // The marker is missing if an early version created the contender, or after the exception of step 3
        // above. Then the first transaction fails at the marker, and the second one leaves the marker out.
        for has_marker in [true, false] {
            let sent = self.now();
            let mut transaction = self.transaction();
            let delete_node = transaction.delete(&path, Some(version));
            let delete_marker = has_marker.then(|| transaction.delete(&paths::marker(claim), None));
            match transaction.commit_with_request_id().await {
                Ok(_) => {
                    self.note_commit(sent);
                    return Ok(DeleteOutcome::Deleted);
                }
                Err(TransactionError::Operation { position, source: Driver::NoNode })
                    if position == delete_node =>
                {
                    return Ok(DeleteOutcome::NotFound);
                }
                Err(TransactionError::Operation { position, source: Driver::BadVersion })
                    if position == delete_node =>
                {
                    return Ok(DeleteOutcome::Changed);
                }
                Err(TransactionError::Operation { position, source: Driver::NoNode })
                    if Some(position) == delete_marker => {}
                Err(error) => return Err(StoreError::from(error)),
            }
        }
        Ok(DeleteOutcome::Changed)
    }

    /// Deletes a marker that has no contender, unless a contender may have been created since `nodes` was
    /// read.
    ///
    /// Every transaction that gives a claim a contender sets the data of the resource's folder. So if the
    /// folder still has the version that it had when it was listed, no contender has been created since.
    pub(crate) async fn remove_stray_marker(
        &self,
        claim: &ClaimRef,
        nodes: &ClaimNodes,
    ) -> Result<(), StoreError> {
        let folder = folder(&claim.resource);
        let Some(version) = nodes.folder_version else {
            // The version check needs a folder. The caller searches again, and finds it then.
            return self.create_folder(&folder).await;
        };
        if !nodes.has_marker {
            return Ok(());
        }
        let mut transaction = self.transaction();
        transaction.check_version(&folder, version);
        transaction.delete(&paths::marker(claim), None);
        match transaction.commit_with_request_id().await {
            Ok(_) | Err(TransactionError::Operation { source: Driver::NoNode | Driver::BadVersion, .. }) => {
                Ok(())
            }
            Err(error) => Err(StoreError::from(error)),
        }
    }
}

//! Markers: an owner has at most one contender, and none once it has ended, whatever answer is lost or late.
//!
//! The marker of a claim is an ephemeral node whose path contains the owner token and the resource. It is there if and
//! only if the claim has a contender: one that bears its name, or one that it took over, which the marker's data names.
//!
//! Why no owner has two contenders:
//!
//! 1. Every transaction that gives a claim a contender also creates its marker, so it fails if the marker is there. It
//!    does not matter who sends it, how often, over which connection or session, or when the servers execute it.
//! 2. A marker is deleted only in a transaction that deletes its contender at that version, or passes the contender on to
//!    another claim (`succeed.rs`); or in one that proves that there is no contender ([`ZooKeeper::remove_stray_marker`]).
//!    Executed late or again, the first kind fails because the contender is gone or has changed, and the second because
//!    the folder has.
//! 3. Marker and contender are created by one session, and go together when it ends. There is one exception: a claim may
//!    take over a contender of another session, for which nothing is vouched. If its own session ends first, that
//!    contender stays until the other session ends too.
//!
//! Why no contender is left of an owner that has ended:
//!
//! 4. If some request of the owner went unanswered, a tombstone is created first. A request that the servers execute
//!    after it fails (`grave.rs`). One that they executed before it has made the marker, which is seen by 5.
//! 5. A release ends in a transaction that deletes contender and marker, or in one that creates the marker and deletes it
//!    at once: that succeeds only if there is none, so there is no contender either. Until one of them is answered the
//!    release fails with an unknown effect, and the engine repeats it.
//! 6. A claim that takes over from another one does so in one transaction: the predecessor's contender and marker go, or
//!    pass on to the claim. If the answer is lost, the claim is found again by its own marker.
//! 7. A claim that is asked for again after a lost answer is refused a second contender by 1. It finds the first one by
//!    its name or by the marker's data ([`ZooKeeper::find`]), and goes on with it. If it has a tombstone, it ends as in 5
//!    before it is answered.
//!
//! A version of this program from before markers made one only for a claim that took over a contender; it reads and
//! evicts contenders that have one. A marker that its eviction leaves behind blocks nobody else, and is deleted by 2 when
//! its owner asks or releases again, or with the session.

use leasehold_core::{ClaimRef, Released};
use zookeeper_client::{CreateMode, Error as Driver, MultiWriteError, Stat};

use crate::{
    backend::ZooKeeper,
    error::Fault,
    evaluate::LOOKS,
    names::{Contender, folder, marker},
    record::Record,
    session::Session,
};

/// A contender that is a claim's.
#[derive(Debug)]
pub(crate) struct Found {
    /// Its name in the folder of its line.
    pub(crate) node: String,
    /// It bears another owner's name.
    pub(crate) is_heir: bool,
    pub(crate) record: Record,
    pub(crate) stat: Stat,
}

/// What the servers have of a claim.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// More than one only if a version from before markers made them.
    pub(crate) found: Vec<Found>,
    pub(crate) has_marker: bool,
    /// The version of the folder, if there is one, as of when it was listed.
    folder_version: Option<i32>,
}

/// What came of an attempt to delete a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deleted {
    Done,
    /// It was not there.
    Gone,
    /// Someone has written to it since it was read.
    Changed,
}

impl ZooKeeper {
    /// Looks for the contender of a claim, wherever it was made.
    pub(crate) async fn find(&self, session: &Session, claim: &ClaimRef) -> Result<Search, Fault> {
        let folder = folder(&claim.resource);
        // The server that we talk to may be behind the one that executed a request of ours.
        match session.client.sync(&folder).await {
            Ok(()) | Err(Driver::NoNode) => {}
            Err(error) => return Err(Fault::of(error)),
        }
        let mut search = Search::default();
        if let Some(view) = session.view(&claim.resource, self.now()).await? {
            search.folder_version = Some(view.version);
            let named = view.line.of_owner(claim.owner).filter_map(|named| view.line.position(&named.name));
            let named: Vec<_> = named.collect();
            for seen in session.read(&claim.resource, &view.line, &named).await? {
                if seen.record.heir().is_none() {
                    let node = view.line.contenders[seen.position].name.clone();
                    search.found.push(Found { node, is_heir: false, record: seen.record, stat: seen.stat });
                }
            }
        }
        let Some((name, _)) = session.data(&marker(claim)).await? else { return Ok(search) };
        search.has_marker = true;
        let node = String::from_utf8_lossy(&name).into_owned();
        if node.is_empty() {
            return Ok(search);
        }
        if Contender::read(node.clone()).owner.is_none() {
            // Not the data of a marker.
            return Err(Fault::unfit());
        }
        if let Some((data, stat)) = session.data(&format!("{folder}/{node}")).await? {
            let record = Record::read(&data);
            if record.heir() == Some(claim.owner) {
                search.found.push(Found { node, is_heir: true, record, stat });
            }
        }
        Ok(search)
    }

    /// Deletes all that there is of a claim, whichever session made it, and returns when the ensemble says that nothing is left.
    pub(crate) async fn remove_unknown(
        &self,
        session: &Session,
        claim: &ClaimRef,
    ) -> Result<Released, Fault> {
        let mut released = Released::AlreadyGone;
        for _ in 0..LOOKS {
            if self.has_nothing(session, claim).await? {
                return Ok(released);
            }
            let search = self.find(session, claim).await?;
            if search.found.is_empty() {
                self.remove_stray_marker(session, claim, &search).await?;
            }
            for Found { node, stat, .. } in &search.found {
                if self.delete_contender(session, claim, (node, stat.version)).await? == Deleted::Done {
                    released = Released::Now;
                }
            }
        }
        Err(Fault::too_busy())
    }

    /// Whether a claim has no contender. One transaction, which names the claim.
    pub(crate) async fn has_nothing(&self, session: &Session, claim: &ClaimRef) -> Result<bool, Fault> {
        let sent = self.now();
        let mut transaction = session.transaction();
        transaction.check_absent(&marker(claim));
        match transaction.commit().await {
            Ok(_) => {
                session.vouch(sent);
                Ok(true)
            }
            Err(MultiWriteError::OperationFailed { source: Driver::NodeExists, .. }) => Ok(false),
            Err(error) => Err(Fault::from(error)),
        }
    }

    /// Deletes a contender at this version, and the marker of its claim, in one transaction.
    pub(crate) async fn delete_contender(
        &self,
        session: &Session,
        claim: &ClaimRef,
        (node, version): (&str, i32),
    ) -> Result<Deleted, Fault> {
        let path = format!("{}/{node}", folder(&claim.resource));
        // Without a marker: a version from before markers made it, or its claim's session ended (3.).
        for has_marker in [true, false] {
            let sent = self.now();
            let mut transaction = session.transaction();
            transaction.delete(&path, Some(version));
            if has_marker {
                transaction.delete(&marker(claim), None);
            }
            match transaction.commit_named().await {
                Ok(_) => {
                    session.vouch(sent);
                    return Ok(Deleted::Done);
                }
                Err(MultiWriteError::OperationFailed { index: 0, source: Driver::NoNode }) => {
                    return Ok(Deleted::Gone);
                }
                Err(MultiWriteError::OperationFailed { index: 0, source: Driver::BadVersion }) => {
                    return Ok(Deleted::Changed);
                }
                Err(MultiWriteError::OperationFailed { index: 1, source: Driver::NoNode }) if has_marker => {}
                Err(error) => return Err(Fault::from(error)),
            }
        }
        Ok(Deleted::Changed)
    }

    /// Deletes a marker that has no contender, unless something has changed since that was found.
    ///
    /// Every transaction that gives a claim a contender sets the data of the folder. So if the folder has the same version
    /// as when it was listed, no contender has come since.
    pub(crate) async fn remove_stray_marker(
        &self,
        session: &Session,
        claim: &ClaimRef,
        search: &Search,
    ) -> Result<(), Fault> {
        let folder = folder(&claim.resource);
        let Some(version) = search.folder_version else {
            // Only a folder that is there can be checked.
            let mode = session.mode(CreateMode::Container);
            return session.client.mkdir(&folder, &mode).await.map_err(Fault::of);
        };
        if !search.has_marker {
            return Ok(());
        }
        let mut transaction = session.transaction();
        transaction.check_version(&folder, version);
        transaction.delete(&marker(claim), None);
        match transaction.commit_named().await {
            Ok(_)
            | Err(MultiWriteError::OperationFailed { source: Driver::NoNode | Driver::BadVersion, .. }) => {
                Ok(())
            }
            Err(error) => Err(Fault::from(error)),
        }
    }
}

//! Release on ZooKeeper: deletes the contender of a claim and its marker.
//!
//! 1. If a request of the claim went unanswered, create its tombstone first, so that a late request fails
//!    (ADR 0004).
//! 2. Delete the contender that this session remembers.
//! 3. If there was none, or there is a tombstone, look for other nodes of the claim: a request may have been
//!    executed without a reply, or by another session. This step ends only when the ensemble has confirmed
//!    that nothing is left (`marker.rs`).

use leasehold_core::{ClaimRef, Error, ErrorKind, ReleaseRequest, Released};

use crate::{backend::ZooKeeper, error::StoreError};

impl ZooKeeper {
    pub(crate) async fn try_release(&self, request: &ReleaseRequest) -> Result<Released, StoreError> {
        match self.release_once(request).await {
            // The nodes of a session end with it. A new session looks for what is left.
            Err(error) if error.session_ended => self.release_once(request).await,
            result => result,
        }
    }

    async fn release_once(&self, request: &ReleaseRequest) -> Result<Released, StoreError> {
        if request.keep_for.is_some_and(|keep_for| !keep_for.is_zero()) {
            let message = "a resource cannot stay closed after a release: a node of ZooKeeper ends with its \
                           session, and TTL nodes are off by default. Release without keep_for";
            return Err(StoreError::from(Error::new(ErrorKind::Unsupported, message)));
        }
        let session = self.session().await?;
        let claim = ClaimRef { resource: request.resource.clone(), owner: request.owner };
        if let Some(keep) = request.tombstone {
            // Before the search of step 3: a request that is executed after the search then finds the
            // tombstone.
            session.write_tombstone(&claim, keep).await?;
        }
        let was_local = session.remove_local(&claim).await.map_err(StoreError::after_effect)?;
        let mut released = if was_local { Released::Now } else { Released::AlreadyGone };
        if !was_local || request.tombstone.is_some() {
            let others = session.remove_all(&claim).await.map_err(StoreError::after_effect)?;
            if others == Released::Now {
                released = Released::Now;
            }
        }
        if request.tombstone.is_some() {
            session.sweep_tombstones().await;
        }
        Ok(released)
    }
}

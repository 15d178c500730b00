//! Ends a claim: its node goes. If some request of it went unanswered, a tombstone first. Why nothing is left is said in
//! `marker.rs`.

use leasehold_core::{ClaimRef, Error, ErrorKind, ReleaseRequest, Released};

use crate::{backend::ZooKeeper, error::Fault};

impl ZooKeeper {
    /// A session that turns out to be over took with it what it held: then the next one looks what is left.
    pub(crate) async fn try_release(&self, farewell: &ReleaseRequest) -> Result<Released, Fault> {
        match self.release_once(farewell).await {
            Err(fault) if fault.ended => self.release_once(farewell).await,
            answer => answer,
        }
    }

    async fn release_once(&self, farewell: &ReleaseRequest) -> Result<Released, Fault> {
        if farewell.keep_for.is_some_and(|keep_for| !keep_for.is_zero()) {
            let message =
                "ZooKeeper has no node that ends after a while by itself: nothing can be kept closed";
            return Err(Fault::from(Error::new(ErrorKind::Unsupported, message)));
        }
        let session = self.link.session().await?;
        let claim = ClaimRef { resource: farewell.resource.clone(), owner: farewell.owner };
        if let Some(keep) = farewell.tombstone {
            // First the tombstone, then the look: whatever comes later finds it.
            session.tombstone(&claim, keep, self.now()).await?;
        }
        let known = self.remove_known(&session, &claim).await.map_err(Fault::after_effect)?;
        let mut released = if known { Released::Now } else { Released::AlreadyGone };
        // What we remember may not be all there is: a request may have gone unanswered, or another session was used.
        if !known || farewell.tombstone.is_some() {
            let found = self.remove_unknown(&session, &claim).await.map_err(Fault::after_effect)?;
            released = if found == Released::Now { found } else { released };
        }
        if farewell.tombstone.is_some() {
            session.sweep(self.link.environment.random(), self.now()).await;
        }
        Ok(released)
    }
}

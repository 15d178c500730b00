//! Ends a claim: its node goes. If some request of it went unanswered, a tombstone first. Why nothing is left is said in
//! `marker.rs`.

use leasehold_core::{ClaimRef, Error, ErrorKind, ReleaseRequest, Released};

use crate::{backend::ZooKeeper, error::Fault};

impl ZooKeeper {
    /// A session that turns out to be over took with it what it held: then the next one looks what is left.
    pub(crate) async fn try_release(&self, request: &ReleaseRequest) -> Result<Released, Fault> {
        match self.release_once(request).await {
            Err(fault) if fault.ended => self.release_once(request).await,
            answer => answer,
        }
    }

    async fn release_once(&self, request: &ReleaseRequest) -> Result<Released, Fault> {
        if request.keep_for.is_some_and(|keep_for| !keep_for.is_zero()) {
            let message =
                "ZooKeeper has no node that ends after a while by itself: nothing can be kept closed";
            return Err(Fault::from(Error::new(ErrorKind::Unsupported, message)));
        }
        let session = self.link.session().await?;
        let claim = ClaimRef { resource: request.resource.clone(), owner: request.owner };
        if let Some(keep) = request.tombstone {
            // First the tombstone, then the look: whatever comes later finds it.
            session.tombstone(&claim, keep, self.now()).await?;
        }
        let known = self.remove_known(&session, &claim).await.map_err(Fault::after_effect)?;
        let mut released = if known { Released::Now } else { Released::AlreadyGone };
        // What we remember may not be all there is: a request may have gone unanswered, or another session was used.
        if !known || request.tombstone.is_some() {
            let found = self.remove_unknown(&session, &claim).await.map_err(Fault::after_effect)?;
            released = if found == Released::Now { found } else { released };
        }
        if request.tombstone.is_some() {
            session.sweep(self.link.environment.random(), self.now()).await;
        }
        Ok(released)
    }
}

//! Ends a claim: its node goes. If some request of it went unanswered, a tombstone first.

use leasehold_core::{ClaimRef, Error, ErrorKind, Farewell, Released};
use zookeeper_client::Error as Driver;

use crate::{
    backend::ZooKeeper,
    error::Fault,
    names::{folder, heir},
    record::Record,
    session::Session,
};

/// A node that is a claim's.
pub(crate) struct Found {
    pub(crate) path: String,
    /// It bears another owner's name.
    pub(crate) is_heir: bool,
    pub(crate) version: i32,
}

impl ZooKeeper {
    /// A session that turns out to be over took with it what it held: then the next one looks what is left.
    pub(crate) async fn try_release(&self, farewell: &Farewell) -> Result<Released, Fault> {
        match self.release_once(farewell).await {
            Err(fault) if fault.ended => self.release_once(farewell).await,
            answer => answer,
        }
    }

    async fn release_once(&self, farewell: &Farewell) -> Result<Released, Fault> {
        if farewell.keep_for.is_some_and(|keep_for| !keep_for.is_zero()) {
            let message =
                "ZooKeeper has no node that ends after a while by itself: nothing can be kept closed";
            return Err(Fault::from(Error::new(ErrorKind::Unsupported, message)));
        }
        let session = self.link.session().await?;
        let claim = ClaimRef { resource: farewell.resource.clone(), owner: farewell.owner };
        if let Some(keep) = farewell.bury {
            // First the tombstone, then the look: whatever comes later finds it.
            session.bury(&claim, keep, self.now()).await?;
        }
        let mut released = self.remove(&session, &claim).await.map_err(Fault::after_effect)?;
        // What we remember may not be all there is: a request may have gone unanswered, or another session was used.
        if released == Released::AlreadyGone || farewell.bury.is_some() {
            let found = self.remove_unknown(&session, &claim).await.map_err(Fault::after_effect)?;
            released = if found == Released::Now { found } else { released };
        }
        if farewell.bury.is_some() {
            session.sweep(self.link.environment.random(), self.now()).await;
        }
        Ok(released)
    }

    /// Looks for all that is left of a claim, wherever it was made, and deletes it.
    pub(crate) async fn remove_unknown(
        &self,
        session: &Session,
        claim: &ClaimRef,
    ) -> Result<Released, Fault> {
        let mut released = Released::AlreadyGone;
        for Found { path, is_heir, version } in self.find(session, claim).await? {
            match session.client.delete(&path, Some(version)).await {
                Ok(()) => released = Released::Now,
                Err(Driver::NoNode) => {}
                Err(error) => return Err(Fault::of(error)),
            }
            if is_heir {
                drop(session.client.delete(&heir(claim), None).await);
            }
        }
        Ok(released)
    }

    /// All nodes that are this claim's.
    pub(crate) async fn find(&self, session: &Session, claim: &ClaimRef) -> Result<Vec<Found>, Fault> {
        let folder = folder(&claim.resource);
        // The server that we talk to may be behind the one that executed a request of ours.
        match session.client.sync(&folder).await {
            Ok(()) | Err(Driver::NoNode) => {}
            Err(error) => return Err(Fault::of(error)),
        }
        let mut found = Vec::new();
        let Some(view) = session.view(&claim.resource, self.now()).await? else { return Ok(found) };
        let named = view.line.of_owner(claim.owner).filter_map(|named| view.line.position(&named.name));
        let named: Vec<_> = named.collect();
        for seen in session.read(&claim.resource, &view.line, &named).await? {
            if seen.record.heir().is_none() {
                let path = format!("{folder}/{}", view.line.contenders[seen.position].name);
                found.push(Found { path, is_heir: false, version: seen.stat.version });
            }
        }
        if let Ok((bytes, _)) = session.client.get_data(&heir(claim)).await {
            let path = format!("{folder}/{}", String::from_utf8_lossy(&bytes));
            if let Ok((data, stat)) = session.client.get_data(&path).await
                && Record::read(&data).heir() == Some(claim.owner)
            {
                found.push(Found { path, is_heir: true, version: stat.version });
            }
        }
        Ok(found)
    }
}

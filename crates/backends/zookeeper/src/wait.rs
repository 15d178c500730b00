//! Wait on ZooKeeper: returns when the caller should ask for its claim again.
//!
//! - A claim that has a contender was given watches by `evaluate.rs`. Each of them notifies the claim's
//!   `ChangeNotifier`.
//! - A claim without a contender (the engine polls for it, or it was not allowed to queue) watches the folder
//!   of the resource, its first few holders, and the control node. Its cursor is the newest zxid of these
//!   nodes when it was blocked: if they have a newer one now, something has changed since, and it does not
//!   wait at all.
//!
//! Watches fire once and end with the session. Both cases wake the caller, which then asks again. The caller
//! also bounds every wait, so that a lost wake-up delays it, but does not stop it.

use std::{future::Future, pin::Pin, sync::Arc, task::Poll};

use leasehold_core::{Blocked, ClaimRef, Cursor};
use zookeeper_client::{Error as Driver, OneshotWatcher};

use crate::{
    backend::ZooKeeper,
    contender::ContenderList,
    error::StoreError,
    paths::{self, folder},
    session::Session,
};

impl ZooKeeper {
    /// Returns when something has changed for the claim since the cursor.
    pub(crate) async fn wait_for_change(&self, claim: &ClaimRef, since: Cursor) -> Result<(), StoreError> {
        let session = self.session().await?;
        match session.claims.read(claim, |local| Arc::clone(&local.changes)) {
            Some(changes) => changes.changed().await,
            None => session.wait_without_contender(claim, since).await?,
        }
        Ok(())
    }
}

impl Session {
    /// Waits until the contenders, one of the first holders, or the control node change.
    async fn wait_without_contender(&self, claim: &ClaimRef, since: Cursor) -> Result<(), StoreError> {
        let folder = folder(&claim.resource);
        let (children, stat, watcher) = match self.client.get_and_watch_children(&folder).await {
            Ok(listed) => listed,
            Err(Driver::NoNode) => return self.wait_for_folder(&folder, since).await,
            Err(error) => return Err(StoreError::from(error)),
        };
        let (mut watchers, mut newest) = (vec![watcher], stat.pzxid);
        for path in self.holder_and_control_paths(claim, children).await? {
            match self.client.get_and_watch_data(&path).await {
                Ok((_, stat, watcher)) => {
                    newest = newest.max(stat.mzxid);
                    watchers.push(watcher);
                }
                // It has changed while we set the watches.
                Err(Driver::NoNode) => return Ok(()),
                Err(error) => return Err(StoreError::from(error)),
            }
        }
        if u64::try_from(newest).unwrap_or(0) == since.0 {
            any_fires(watchers).await;
        }
        Ok(())
    }

    /// The paths of the first few holders, and of the control node if there is one.
    async fn holder_and_control_paths(
        &self,
        claim: &ClaimRef,
        children: Vec<String>,
    ) -> Result<Vec<String>, StoreError> {
        let mut list = ContenderList::parse(children)?;
        let all = list.contenders.len();
        self.read_lowered_weights(&claim.resource, &mut list, all, None).await?;
        let control =
            if list.has_control_node { self.read_control_node(&claim.resource).await? } else { None };
        let holder_count = list.admission(control.as_ref()).holder_count.min(Blocked::HOLDERS_MAX);
        let holders = list.contenders.iter().take(holder_count);
        let mut paths: Vec<_> =
            holders.map(|holder| paths::contender(&claim.resource, &holder.name)).collect();
        paths.extend(control.map(|_| paths::control_node(&claim.resource)));
        Ok(paths)
    }

    /// Waits until the resource gets a folder.
    async fn wait_for_folder(&self, folder: &str, since: Cursor) -> Result<(), StoreError> {
        let (stat, watcher) = self.client.check_and_watch_stat(folder).await?;
        // A cursor of 0 means that there was no folder when the claim was blocked.
        if stat.is_none() && since == Cursor(0) {
            any_fires(vec![watcher]).await;
        }
        Ok(())
    }
}

/// Returns when one of the watches fires, or the session ends.
async fn any_fires(watchers: Vec<OneshotWatcher>) {
    type Fired = Pin<Box<dyn Future<Output = ()> + Send>>;
    let fired = |watcher: OneshotWatcher| -> Fired {
        Box::pin(async move {
            watcher.changed().await;
        })
    };
    let mut fired: Vec<Fired> = watchers.into_iter().map(fired).collect();
    std::future::poll_fn(|cx| match fired.iter_mut().any(|fired| fired.as_mut().poll(cx).is_ready()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

//! Waits for news. Whoever has a place is told by the watches that were set when it took it; whoever has none watches
//! the line as a whole.

use std::{future::Future, pin::Pin, sync::Arc, task::Poll};

use leasehold_core::{Blocked, ClaimRef, Cursor};
use zookeeper_client::{Error as Driver, OneshotWatcher};

use crate::{backend::ZooKeeper, control, error::Fault, line::Line, names::folder, session::Session};

impl ZooKeeper {
    pub(crate) async fn wait_for_news(&self, claim: &ClaimRef, since: Cursor) -> Result<(), Fault> {
        let session = self.link.session().await?;
        let bell = session.entries().get(claim).map(|entry| Arc::clone(&entry.bell));
        match bell {
            Some(bell) => bell.rings().await,
            None => self.observe(&session, claim, since).await?,
        }
        Ok(())
    }

    /// Until the line or one of its first holders changes. Returns at once if that was so since the cursor.
    async fn observe(&self, session: &Session, claim: &ClaimRef, since: Cursor) -> Result<(), Fault> {
        let folder = folder(&claim.resource);
        let (children, stat, watcher) = match session.client.get_and_watch_children(&folder).await {
            Ok(found) => found,
            Err(Driver::NoNode) => return self.observe_nothing(session, &folder, since).await,
            Err(error) => return Err(Fault::of(error)),
        };
        let mut line = Line::of(children)?;
        let all = line.contenders.len();
        session.weigh(&claim.resource, &mut line, all, None).await?;
        let (mut watchers, mut newest) = (vec![watcher], stat.pzxid);
        let said = if line.has_control { session.control(&claim.resource, self.now()).await? } else { None };
        let first = line.contenders.iter().take(line.seating(said.as_ref()).seated.min(Blocked::HOLDERS_MAX));
        let mut paths: Vec<_> = first.map(|contender| format!("{folder}/{}", contender.name)).collect();
        paths.extend(said.map(|_| control::path(&claim.resource)));
        for path in paths {
            match session.client.get_and_watch_data(&path).await {
                Ok((_, stat, watcher)) => {
                    newest = newest.max(stat.mzxid);
                    watchers.push(watcher);
                }
                Err(Driver::NoNode) => return Ok(()),
                Err(error) => return Err(Fault::of(error)),
            }
        }
        if u64::try_from(newest).unwrap_or(0) == since.0 {
            any(watchers).await;
        }
        Ok(())
    }

    async fn observe_nothing(&self, session: &Session, folder: &str, since: Cursor) -> Result<(), Fault> {
        let (stat, watcher) = session.client.check_and_watch_stat(folder).await.map_err(Fault::of)?;
        if stat.is_none() && since == Cursor(0) {
            any(vec![watcher]).await;
        }
        Ok(())
    }
}

/// Resolves when one of these is told something, or the session ends.
async fn any(watchers: Vec<OneshotWatcher>) {
    let told = |watcher: OneshotWatcher| Box::pin(async move { drop(watcher.changed().await) });
    let mut told: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = watchers
        .into_iter()
        .map(|watcher| told(watcher) as Pin<Box<dyn Future<Output = ()> + Send>>)
        .collect();
    std::future::poll_fn(|cx| match told.iter_mut().any(|told| told.as_mut().poll(cx).is_ready()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

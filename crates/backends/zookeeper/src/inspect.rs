//! Looks, and changes nothing.

use std::time::Duration;

use leasehold_core::{
    AuditRecord, Cursor, Error, ErrorKind, FencingToken, Leak, Listing, Page, Query, QueueEntry, Resource,
    Snapshot, Timestamp, WallTime,
};
use serde::{Deserialize, Serialize};
use zookeeper_client::MultiReadResult;

use crate::{
    backend::ZooKeeper,
    error::Fault,
    names::{AUDIT, GRAVES, LOCKS, folder, key},
    session::Session,
    view::{READ, View},
};

/// A line of the audit trail, as it is stored.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) resource: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) token: Option<u64>,
    pub(crate) by: String,
    pub(crate) why: String,
    pub(crate) command: String,
    pub(crate) done: bool,
}

impl ZooKeeper {
    pub(crate) async fn answer_query(&self, query: &Query) -> Result<Page, Fault> {
        let session = self.link.session().await?;
        // The server that we talk to may be behind what others have seen already.
        session.client.sync(LOCKS).await.map_err(Fault::of)?;
        match query {
            Query::One(resource) => {
                let snapshot = self.snapshot(&session, resource).await?;
                Ok(Page::Resources { snapshots: vec![snapshot], next: None })
            }
            Query::Resources(listing) => self.resources(&session, listing).await,
            Query::Audit(listing) => self.audit(&session, listing).await,
            Query::Leaks(listing) => self.leaks(&session, listing).await,
            _ => {
                let message =
                    "in ZooKeeper a lock of another program ends with its session: nothing can leak";
                Err(Fault::from(Error::new(ErrorKind::Unsupported, message)))
            }
        }
    }

    fn limit(&self, listing: &Listing) -> usize {
        let most = self.info.limits.page;
        let limit = if listing.limit == 0 { most } else { listing.limit.min(most) };
        limit as usize
    }

    async fn snapshot(&self, session: &Session, resource: &Resource) -> Result<Snapshot, Fault> {
        let now = self.now();
        match session.weighed(resource, now).await? {
            Some(view) => snapshot_of(session, resource, &view, now).await,
            None => Ok(Snapshot::empty(resource.clone())),
        }
    }

    /// The keys of all resources that have a folder, and begin so.
    async fn keys(&self, session: &Session, prefix: &str) -> Result<Vec<String>, Fault> {
        let kinds = session.client.list_children(LOCKS).await.map_err(Fault::of)?;
        let mut keys = Vec::new();
        for kinds in kinds.chunks(READ) {
            let mut reader = session.client.new_multi_reader();
            for kind in kinds {
                reader.add_get_children(&format!("{LOCKS}/{kind}")).map_err(Fault::of)?;
            }
            let answers = reader.commit().await.map_err(Fault::of)?;
            for (kind, answer) in kinds.iter().zip(answers) {
                if let MultiReadResult::Children { children } = answer {
                    keys.extend(children.iter().map(|id| key(kind, id)));
                }
            }
        }
        keys.retain(|key| key.starts_with(prefix));
        keys.sort_unstable();
        Ok(keys)
    }

    /// Of these resources, those whose folder has anything in it.
    async fn busy(&self, session: &Session, resources: Vec<Resource>) -> Result<Vec<Resource>, Fault> {
        let mut reader = session.client.new_multi_reader();
        for resource in &resources {
            reader.add_get_children(&folder(resource)).map_err(Fault::of)?;
        }
        let answers = reader.commit().await.map_err(Fault::of)?;
        let busy = |answer: &MultiReadResult| matches!(answer, MultiReadResult::Children { children } if !children.is_empty());
        Ok(resources.into_iter().zip(answers).filter(|(_, answer)| busy(answer)).map(|(r, _)| r).collect())
    }

    async fn resources(&self, session: &Session, listing: &Listing) -> Result<Page, Fault> {
        let limit = self.limit(listing);
        let after = listing.after.as_deref().unwrap_or_default();
        let keys = self.keys(session, &listing.prefix).await?;
        let keys: Vec<_> = keys.into_iter().filter(|key| key.as_str() > after).collect();
        let mut snapshots = Vec::new();
        for keys in keys.chunks(READ) {
            let resources = keys.iter().filter_map(|key| Resource::from_key(key).ok()).collect();
            for resource in self.busy(session, resources).await? {
                if snapshots.len() == limit {
                    let next = snapshots.last().map(|last: &Snapshot| last.resource.key().to_owned());
                    return Ok(Page::Resources { snapshots, next });
                }
                let seen = self.snapshot(session, &resource).await?;
                if seen.holder_count + seen.queue_length > 0 || seen.paused_for.is_some() {
                    snapshots.push(seen);
                }
            }
        }
        Ok(Page::Resources { snapshots, next: None })
    }

    async fn audit(&self, session: &Session, listing: &Listing) -> Result<Page, Fault> {
        let (limit, after) = (self.limit(listing), listing.after.as_deref());
        let mut names = session.client.list_children(AUDIT).await.map_err(Fault::of)?;
        names.sort_unstable_by(|a, b| b.cmp(a));
        names.retain(|name| after.is_none_or(|after| name.as_str() < after));
        let (mut records, mut last) = (Vec::new(), None);
        for names in names.chunks(READ) {
            let mut reader = session.client.new_multi_reader();
            for name in names {
                reader.add_get_data(&format!("{AUDIT}/{name}")).map_err(Fault::of)?;
            }
            let answers = reader.commit().await.map_err(Fault::of)?;
            for (name, answer) in names.iter().zip(answers) {
                let MultiReadResult::Data { data, stat } = answer else { continue };
                let Some(record) = read_audit(&data, stat.ctime) else { continue };
                if !record.resource.key().starts_with(&listing.prefix) {
                    continue;
                }
                if records.len() == limit {
                    return Ok(Page::Audit { records, next: last });
                }
                records.push(record);
                last = Some(name.clone());
            }
        }
        Ok(Page::Audit { records, next: None })
    }

    /// Tombstones that are over and that nobody has cleared away yet.
    async fn leaks(&self, session: &Session, listing: &Listing) -> Result<Page, Fault> {
        let (limit, after) = (self.limit(listing), listing.after.as_deref().unwrap_or_default());
        let mut names = session.client.list_children(GRAVES).await.map_err(Fault::of)?;
        names.sort_unstable();
        names.retain(|name| name.as_str() > after);
        let now = session.server_millis(self.now());
        let next = names.get(limit.saturating_sub(1)).filter(|_| names.len() > limit).cloned();
        let mut found = Vec::new();
        for name in names.iter().take(limit) {
            let Ok((data, _)) = session.client.get_data(&format!("{GRAVES}/{name}")).await else { continue };
            let until = serde_json::from_slice::<Until>(&data).map_or(0, |stone| stone.until);
            if until <= now {
                // The name begins with an owner token, which is nobody's business.
                let shown = format!("{GRAVES}/{name:.8}…");
                let mut leak = Leak::new(shown, "tombstone");
                leak.idle = Some(Duration::from_millis(u64::try_from(now - until).unwrap_or(0)));
                found.push(leak);
            }
        }
        Ok(Page::Leaks { found, next })
    }
}

#[derive(Deserialize)]
struct Until {
    until: i64,
}

fn read_audit(data: &[u8], ctime: i64) -> Option<AuditRecord> {
    let entry: Entry = serde_json::from_slice(data).ok()?;
    let at = WallTime::from_micros(u64::try_from(ctime).unwrap_or(0) * 1_000);
    let resource = Resource::from_key(&entry.resource).ok()?;
    let mut record = AuditRecord::new(at, resource, entry.command, entry.done);
    record.token = entry.token.and_then(|token| FencingToken::new(token).ok());
    (record.by, record.why) = (entry.by, entry.why);
    Some(record)
}

/// One resource, with all that is read of it.
async fn snapshot_of(
    session: &Session,
    resource: &Resource,
    view: &View,
    now: Timestamp,
) -> Result<Snapshot, Fault> {
    let most = Snapshot::LISTED_MAX;
    let (seating, there) = (view.seating(), view.line.contenders.len());
    let shown = (0..seating.seated.min(most)).chain(seating.seated..there.min(seating.seated + most));
    let seen = session.read(resource, &view.line, &shown.collect::<Vec<_>>()).await?;
    let mut snapshot = Snapshot::empty(resource.clone());
    snapshot.capacity = seating.capacity;
    snapshot.holder_count = u32::try_from(seating.seated).unwrap_or(u32::MAX);
    snapshot.queue_length = u32::try_from(there - seating.seated).unwrap_or(u32::MAX);
    let mut newest = view.control.as_ref().map_or(0, |control| control.mzxid).max(view.pzxid);
    for seen in &seen {
        if seen.position >= seating.seated {
            let held = session.held_by(resource, &view.line, seen, now).await?;
            snapshot.queue.push(QueueEntry::new(held.holder, held.weight, held.held_for, held.remaining));
            continue;
        }
        if seen.position < leasehold_core::Blocked::HOLDERS_MAX {
            newest = newest.max(seen.stat.mzxid);
        }
        snapshot.holders.push(session.held_by(resource, &view.line, seen, now).await?);
    }
    snapshot.holders.sort_by_key(|by| by.token);
    snapshot.paused_for = view.control.as_ref().and_then(crate::control::Control::paused_for);
    snapshot.cursor = Cursor(u64::try_from(newest).unwrap_or(0));
    Ok(snapshot)
}

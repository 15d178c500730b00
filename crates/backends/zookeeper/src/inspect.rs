//! Inspect on ZooKeeper: reads resources, the audit trail and leftover tombstones. Changes no lease.

use std::time::Duration;

use leasehold_core::{Blocked, Cursor, Error, ErrorKind, Leak, Listing, Page, Query, Resource, Snapshot};
use zookeeper_client::MultiReadResult;

use crate::{
    audit::parse_audit_record,
    backend::ZooKeeper,
    error::StoreError,
    paths::{AUDIT, LOCKS, TOMBSTONES, folder, resource_key},
    resource_view::{Holders, NODES_PER_READ, ResourceView},
    session::Session,
    tombstone::end_of_tombstone_ms,
};

/// One page of a listing.
struct PageBounds<'a> {
    prefix: &'a str,
    after: Option<&'a str>,
    limit: usize,
}

impl ZooKeeper {
    pub(crate) async fn try_inspect(&self, query: &Query) -> Result<Page, StoreError> {
        if matches!(query, Query::Nodes) {
            return Ok(self.nodes().await);
        }
        match self.inspect_once(query).await {
            // A query changes nothing, so it can be repeated on a new session.
            Err(error) if error.session_ended => self.inspect_once(query).await,
            result => result,
        }
    }

    async fn inspect_once(&self, query: &Query) -> Result<Page, StoreError> {
        let session = self.session().await?;
        // The server that we are connected to may be behind what other clients have seen.
        session.sync(LOCKS).await?;
        match query {
            Query::One(resource) => {
                let snapshot = session.snapshot(resource).await?;
                Ok(Page::Resources { snapshots: vec![snapshot], next: None })
            }
            Query::Resources(listing) => session.list_resources(&self.bounds(listing)).await,
            Query::Audit(listing) => session.list_audit_trail(&self.bounds(listing)).await,
            Query::Leaks(listing) => session.list_expired_tombstones(&self.bounds(listing)).await,
            _ => {
                let message = "ZooKeeper has no leftover locks of other programs to list: such a lock ends \
                               with its session";
                Err(StoreError::from(Error::new(ErrorKind::Unsupported, message)))
            }
        }
    }

    fn bounds<'a>(&self, listing: &'a Listing) -> PageBounds<'a> {
        let most = self.info.limits.page;
        // A limit of 0 stands for the largest page.
        let limit = if listing.limit == 0 { most } else { listing.limit.min(most) };
        PageBounds { prefix: &listing.prefix, after: listing.after.as_deref(), limit: limit as usize }
    }
}

impl Session {
    async fn snapshot(&self, resource: &Resource) -> Result<Snapshot, StoreError> {
        match self.view_with_weights(resource).await? {
            Some(view) => self.snapshot_of(resource, &view).await,
            None => Ok(Snapshot::empty(resource.clone())),
        }
    }

    /// Describes a resource with its first holders and the first claims of its queue.
    async fn snapshot_of(&self, resource: &Resource, view: &ResourceView) -> Result<Snapshot, StoreError> {
        let (admission, listed_max) = (view.admission(), Snapshot::LISTED_MAX);
        let (holder_count, contender_count) = (admission.holder_count, view.list.contenders.len());
        let holders = 0..holder_count.min(listed_max);
        let queue = holder_count..contender_count.min(holder_count + listed_max);
        let positions: Vec<_> = holders.chain(queue).collect();
        let nodes = self.read_contenders(resource, &view.list, &positions).await?;
        let mut snapshot = Snapshot::empty(resource.clone());
        snapshot.capacity = admission.capacity;
        snapshot.queue_length = u32::try_from(contender_count - holder_count).unwrap_or(u32::MAX);
        let mut newest_zxid = view.control.as_ref().map_or(0, |control| control.mzxid).max(view.pzxid);
        let mut holders = Holders::default();
        for node in &nodes {
            if node.position >= holder_count {
                snapshot.queue.push(self.describe_waiter(resource, &view.list, node).await?);
                continue;
            }
            // The cursor covers the same nodes that `wait.rs` watches.
            if node.position < Blocked::HOLDERS_MAX {
                newest_zxid = newest_zxid.max(node.stat.mzxid);
            }
            self.describe_holder(resource, &view.list, node, &mut holders).await?;
        }
        let holding_claims = holder_count.saturating_sub(holders.foreign.len());
        snapshot.holder_count = u32::try_from(holding_claims).unwrap_or(u32::MAX);
        (snapshot.holders, snapshot.foreign) = (holders.claims, holders.foreign);
        snapshot.holders.sort_by_key(|by| by.token);
        snapshot.paused_for = view.control.as_ref().and_then(|control| control.paused_for);
        snapshot.cursor = Cursor(u64::try_from(newest_zxid).unwrap_or(0));
        Ok(snapshot)
    }

    /// The keys of all resources that have a folder and begin with the prefix, in order.
    async fn resource_keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let kinds = self.client.list_children(LOCKS).await?;
        let mut keys = Vec::new();
        for kinds in kinds.chunks(NODES_PER_READ) {
            let mut reader = self.client.new_multi_reader();
            for kind in kinds {
                reader.add_get_children(&format!("{LOCKS}/{kind}"))?;
            }
            for (kind, reply) in kinds.iter().zip(reader.commit().await?) {
                if let MultiReadResult::Children { children } = reply {
                    keys.extend(children.iter().map(|id| resource_key(kind, id)));
                }
            }
        }
        keys.retain(|key| key.starts_with(prefix));
        keys.sort_unstable();
        Ok(keys)
    }

    /// Keeps the resources whose folder has children. The servers delete an empty folder only after a while.
    async fn retain_used(&self, resources: Vec<Resource>) -> Result<Vec<Resource>, StoreError> {
        let mut reader = self.client.new_multi_reader();
        for resource in &resources {
            reader.add_get_children(&folder(resource))?;
        }
        let replies = reader.commit().await?;
        let is_used = |reply: &MultiReadResult| match reply {
            MultiReadResult::Children { children } => !children.is_empty(),
            _ => false,
        };
        let used = resources.into_iter().zip(replies).filter(|(_, reply)| is_used(reply));
        Ok(used.map(|(resource, _)| resource).collect())
    }

    async fn list_resources(&self, bounds: &PageBounds<'_>) -> Result<Page, StoreError> {
        let after = bounds.after.unwrap_or_default();
        let mut keys = self.resource_keys(bounds.prefix).await?;
        keys.retain(|key| key.as_str() > after);
        let mut snapshots: Vec<Snapshot> = Vec::new();
        for keys in keys.chunks(NODES_PER_READ) {
            let resources = keys.iter().filter_map(|key| Resource::from_key(key).ok()).collect();
            for resource in self.retain_used(resources).await? {
                if snapshots.len() == bounds.limit {
                    let next = snapshots.last().map(|last| last.resource.key().to_owned());
                    return Ok(Page::Resources { snapshots, next });
                }
                let snapshot = match self.snapshot(&resource).await {
                    // One resource that cannot be read does not hide all others.
                    Err(error) if error.is_unreadable() => {
                        Snapshot::unreadable(resource, error.into_error().to_string())
                    }
                    snapshot => snapshot?,
                };
                snapshots.extend(Some(snapshot).filter(Snapshot::is_in_use));
            }
        }
        Ok(Page::Resources { snapshots, next: None })
    }

    /// The audit trail, newest first.
    async fn list_audit_trail(&self, bounds: &PageBounds<'_>) -> Result<Page, StoreError> {
        let mut names = self.client.list_children(AUDIT).await?;
        names.sort_unstable_by(|a, b| b.cmp(a));
        names.retain(|name| bounds.after.is_none_or(|after| name.as_str() < after));
        let (mut records, mut last) = (Vec::new(), None);
        for names in names.chunks(NODES_PER_READ) {
            let mut reader = self.client.new_multi_reader();
            for name in names {
                reader.add_get_data(&format!("{AUDIT}/{name}"))?;
            }
            for (name, reply) in names.iter().zip(reader.commit().await?) {
                let MultiReadResult::Data { data, stat } = reply else { continue };
                let Some(record) = parse_audit_record(&data, stat.ctime) else { continue };
                if !record.resource.key().starts_with(bounds.prefix) {
                    continue;
                }
                if records.len() == bounds.limit {
                    return Ok(Page::Audit { records, next: last });
                }
                records.push(record);
                last = Some(name.clone());
            }
        }
        Ok(Page::Audit { records, next: None })
    }

    /// Tombstones that are past their end and that no client has deleted yet.
    async fn list_expired_tombstones(&self, bounds: &PageBounds<'_>) -> Result<Page, StoreError> {
        let (limit, after) = (bounds.limit, bounds.after.unwrap_or_default());
        let mut names = self.client.list_children(TOMBSTONES).await?;
        names.sort_unstable();
        names.retain(|name| name.as_str() > after);
        let server_now_ms = self.server_now_ms();
        let next = names.get(limit.saturating_sub(1)).filter(|_| names.len() > limit).cloned();
        let mut found = Vec::new();
        for name in names.iter().take(limit) {
            let Ok((data, _)) = self.client.get_data(&format!("{TOMBSTONES}/{name}")).await else { continue };
            let end_ms = end_of_tombstone_ms(&data);
            if end_ms <= server_now_ms {
                // Shortened, because the name begins with an owner token, which is a secret.
                let shown = format!("{TOMBSTONES}/{name:.8}…");
                let mut leak = Leak::new(shown, "tombstone");
                leak.idle = Some(Duration::from_millis(u64::try_from(server_now_ms - end_ms).unwrap_or(0)));
                found.push(leak);
            }
        }
        Ok(Page::Leaks { found, next })
    }
}

//! The verb `inspect`: lists resources, the audit trail, and leaked keys (keys without a lease, which would
//! never end).

use std::collections::BTreeSet;

use etcd_client::{GetOptions, SortOrder, SortTarget};
use leasehold_core::{
    AuditRecord, Cursor, Error, ErrorKind, FencingToken, Leak, Listing, Page, Query, Resource, Snapshot,
    WallTime,
};

use crate::{
    backend::Etcd,
    error::StoreError,
    keys::{range_end, split_contender},
    order::StoredAuditEntry,
    verify_reply::KeyRange,
};

/// How many keys one request reads.
const KEYS_PER_READ: i64 = 2_000;

impl Etcd {
    pub(crate) async fn try_inspect(&self, query: &Query) -> Result<Page, StoreError> {
        match query {
            Query::One(resource) => {
                Ok(Page::Resources { snapshots: vec![self.snapshot(resource).await?], next: None })
            }
            Query::Resources(listing) => self.resources(listing).await,
            Query::Audit(listing) => self.audit(listing).await,
            Query::Leaks(listing) => self.leaks(listing).await,
            Query::Nodes => Ok(self.nodes().await),
            _ => {
                let message =
                    "etcd has no locks of other programs to list: they have a lease, and end with it";
                Err(StoreError::Refused(Error::new(ErrorKind::Unsupported, message)))
            }
        }
    }

    /// How many items a page has.
    fn page_limit(&self, listing: &Listing) -> usize {
        let most = self.info.limits.page;
        let limit = if listing.limit == 0 { most } else { listing.limit.min(most) };
        usize::try_from(limit).unwrap_or(usize::MAX)
    }

    async fn snapshot(&self, resource: &Resource) -> Result<Snapshot, StoreError> {
        let keys = self.connections.config.root.keys_of(resource);
        let view = self.connections.read(&keys, &[], 0).await?.view;
        let mut snapshot = Snapshot::empty(resource.clone());
        snapshot.capacity = view.capacity().unwrap_or(0);
        self.describe_contenders(&keys, &view, &mut snapshot).await;
        if let Some(pause) = &view.pause {
            let remaining = self.lease_pool.remaining(pause.lease).await?;
            snapshot.paused_for = Some(remaining.map_or_else(Default::default, |(left, _)| left));
        }
        snapshot.cursor = Cursor(u64::try_from(view.revision).unwrap_or_default());
        Ok(snapshot)
    }

    /// Lists resources by name. etcd sorts the keys in another order than the names (`a-b/` comes before
    /// `a/`), so all keys are read for every page.
    async fn resources(&self, listing: &Listing) -> Result<Page, StoreError> {
        let limit = self.page_limit(listing);
        let mut found = self.resource_names(listing, limit).await?;
        let has_more = found.len() > limit;
        if has_more {
            found.pop_last();
        }
        let next = if has_more { found.last().cloned() } else { None };
        let mut snapshots = Vec::new();
        for resource in found.iter().filter_map(|name| Resource::from_key(name).ok()) {
            let snapshot = match self.snapshot(&resource).await {
                // One corrupt value does not hide all other resources.
                Err(error) if error.is_corrupt() => {
                    Snapshot::unreadable(resource, error.into_error().to_string())
                }
                snapshot => snapshot?,
            };
            // Its last key may have ended since.
            snapshots.extend(Some(snapshot).filter(Snapshot::is_in_use));
        }
        Ok(Page::Resources { snapshots, next })
    }

    /// The first names of a page, and one more if there are more. Resources that are only paused count as
    /// well.
    async fn resource_names(&self, listing: &Listing, limit: usize) -> Result<BTreeSet<String>, StoreError> {
        let root = &self.connections.config.root;
        let mut found = BTreeSet::new();
        let mut add = |name: Option<&str>| {
            let is_on_page = |name: &&str| listing.after.as_deref().is_none_or(|after| *name > after);
            let Some(name) = name.filter(is_on_page) else { return };
            found.insert(name.to_owned());
            if found.len() > limit + 1 {
                found.pop_last();
            }
        };
        let (locks, pauses) = (root.locks(), root.pauses());
        let with_prefix = |base: &str| format!("{base}{}", listing.prefix);
        self.for_each_key(&with_prefix(&locks), |key| {
            add(split_contender(&locks, key).map(|(name, _)| name));
        })
        .await?;
        self.for_each_key(&with_prefix(&pauses), |key| add(key.strip_prefix(&pauses))).await?;
        Ok(found)
    }

    /// Calls `visit` for every key with this prefix.
    async fn for_each_key(&self, prefix: &str, mut visit: impl FnMut(&str)) -> Result<(), StoreError> {
        let (mut from, end) = (prefix.as_bytes().to_vec(), range_end(prefix));
        loop {
            let options = GetOptions::new().with_keys_only().with_limit(KEYS_PER_READ);
            let range = KeyRange { key: from.clone(), end: Some(end.clone()) };
            let reply = self.connections.read_range(range, options).await?;
            reply.kvs().iter().filter_map(|kv| kv.key_str().ok()).for_each(&mut visit);
            match reply.kvs().last().filter(|_| reply.more()) {
                // The key directly after the last one.
                Some(last) => from = [last.key(), &[0]].concat(),
                None => return Ok(()),
            }
        }
    }

    /// Lists the audit trail, newest first by creation revision. `next` is the revision of the last entry
    /// that was read.
    async fn audit(&self, listing: &Listing) -> Result<Page, StoreError> {
        let (limit, prefix) = (self.page_limit(listing), self.connections.config.root.audit());
        let mut before = match &listing.after {
            Some(after) => Some(after.parse::<i64>().map_err(|_| bad_next())?),
            None => None,
        };
        let mut records = Vec::new();
        loop {
            let mut options =
                GetOptions::new().with_sort(SortTarget::Create, SortOrder::Descend).with_limit(KEYS_PER_READ);
            if let Some(before) = before {
                options = options.with_max_create_revision(before - 1);
            }
            let range = KeyRange { key: prefix.clone().into_bytes(), end: Some(range_end(&prefix)) };
            let reply = self.connections.read_range(range, options).await?;
            for kv in reply.kvs() {
                let record = audit_record(kv.value(), &listing.prefix);
                // The page is full, and there is one more: `next` is known to lead to something.
                if records.len() == limit && record.is_some() {
                    return Ok(Page::Audit { records, next: before.map(|before| before.to_string()) });
                }
                records.extend(record);
                before = Some(kv.create_revision());
            }
            if reply.kvs().len() < usize::try_from(KEYS_PER_READ).unwrap_or(usize::MAX) {
                return Ok(Page::Audit { records, next: None });
            }
        }
    }

    /// Lists keys under the root without a lease. This backend writes none, so they were put by hand.
    async fn leaks(&self, listing: &Listing) -> Result<Page, StoreError> {
        let (root, limit) = (self.connections.config.root.prefix().to_owned(), self.page_limit(listing));
        let from = listing
            .after
            .as_ref()
            .map_or(root.clone().into_bytes(), |after| [after.as_bytes(), &[0]].concat());
        let options = GetOptions::new().with_keys_only().with_limit(KEYS_PER_READ);
        let range = KeyRange { key: from, end: Some(range_end(&root)) };
        let reply = self.connections.read_range(range, options).await?;
        let (mut found, mut next) = (Vec::new(), None);
        for kv in reply.kvs() {
            let key = String::from_utf8_lossy(kv.key()).into_owned();
            // The part after `lock/`, `own/` and so on, which begins with the resource.
            let about = key.strip_prefix(&root).and_then(|rest| rest.split_once('/')).map(|(_, rest)| rest);
            if kv.lease() == 0 && about.is_some_and(|about| about.starts_with(&listing.prefix)) {
                found.push(Leak::new(key.clone(), "key"));
            }
            next = Some(key);
            if found.len() == limit {
                return Ok(Page::Leaks { found, next });
            }
        }
        Ok(Page::Leaks { found, next: next.filter(|_| reply.more()) })
    }
}

fn bad_next() -> StoreError {
    StoreError::Refused(Error::new(
        ErrorKind::Invalid,
        "the start of this page is not a revision: use the `next` value of the page before",
    ))
}

fn audit_record(value: &[u8], prefix: &str) -> Option<AuditRecord> {
    let entry: StoredAuditEntry = serde_json::from_slice(value).ok()?;
    let resource = Resource::from_key(&entry.resource).ok()?;
    if !entry.resource.starts_with(prefix) {
        return None;
    }
    let at = WallTime::from_micros(entry.at_us);
    let mut record = AuditRecord::new(at, resource, entry.command, entry.done);
    record.token = entry.token.and_then(|token| FencingToken::new(token).ok());
    (record.by, record.why) = (entry.by, entry.why);
    Some(record)
}

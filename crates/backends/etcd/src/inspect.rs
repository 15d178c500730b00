//! The verb `inspect`: resources, the audit trail, and keys that would never end.

use std::collections::BTreeSet;

use etcd_client::{GetOptions, SortOrder, SortTarget};
use leasehold_core::{
    AuditRecord, Cursor, Error, ErrorKind, FencingToken, Leak, Listing, Page, Query, Resource, Snapshot,
    WallTime,
};

use crate::{
    backend::Etcd,
    error::Fault,
    keys::{range_end, split_contender},
    order::Recorded,
    proof::Keyed,
};

/// How many keys are read at once.
const CHUNK: i64 = 2_000;

impl Etcd {
    pub(crate) async fn answer(&self, query: &Query) -> Result<Page, Fault> {
        match query {
            Query::One(resource) => {
                Ok(Page::Resources { snapshots: vec![self.snapshot(resource).await?], next: None })
            }
            Query::Resources(listing) => self.resources(listing).await,
            Query::Audit(listing) => self.audit(listing).await,
            Query::Leaks(listing) => self.leaks(listing).await,
            _ => {
                let message = "locks of other programs in etcd are under a lease, and end with it";
                Err(Fault::Refused(Error::new(ErrorKind::Unsupported, message)))
            }
        }
    }

    fn limit(&self, listing: &Listing) -> usize {
        let most = self.info.limits.page;
        let limit = if listing.limit == 0 { most } else { listing.limit.min(most) };
        usize::try_from(limit).unwrap_or(usize::MAX)
    }

    async fn snapshot(&self, resource: &Resource) -> Result<Snapshot, Fault> {
        let keys = self.link.config.root.of(resource);
        let line = self.link.read(&keys, &[], 0).await?.line;
        let mut snapshot = Snapshot::empty(resource.clone());
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        snapshot.capacity = line.capacity().unwrap_or(0);
        snapshot.holder_count = count(line.holders().count());
        snapshot.queue_length = count(line.places().count());
        (snapshot.holders, snapshot.queue) = self.seen(&line, Snapshot::LISTED_MAX).await;
        if let Some(pause) = &line.pause {
            snapshot.paused_for =
                Some(self.pool.left(pause.lease).await?.map_or_else(Default::default, |(left, _)| left));
        }
        snapshot.cursor = Cursor(u64::try_from(line.revision).unwrap_or_default());
        Ok(snapshot)
    }

    /// etcd has the keys in another order than that of the resources (`a-b/` before `a/`), so all of them are looked at.
    async fn resources(&self, listing: &Listing) -> Result<Page, Fault> {
        let (limit, root) = (self.limit(listing), &self.link.config.root);
        let mut found = BTreeSet::new();
        for (base, is_lock) in [(root.locks(), true), (root.pauses(), false)] {
            let prefix = format!("{base}{}", listing.prefix);
            self.each_key(&prefix, |key| {
                let name = if is_lock {
                    split_contender(&base, key).map(|(name, _)| name)
                } else {
                    key.strip_prefix(&base)
                };
                if let Some(name) =
                    name.filter(|name| listing.after.as_deref().is_none_or(|after| *name > after))
                {
                    found.insert(name.to_owned());
                    if found.len() > limit + 1 {
                        found.pop_last();
                    }
                }
            })
            .await?;
        }
        let more = found.len() > limit;
        let page: Vec<String> = found.into_iter().take(limit).collect();
        let next = if more { page.last().cloned() } else { None };
        let mut snapshots = Vec::new();
        for resource in page.iter().filter_map(|name| Resource::from_key(name).ok()) {
            let snapshot = self.snapshot(&resource).await?;
            let live = snapshot.holder_count + snapshot.queue_length > 0 || snapshot.paused_for.is_some();
            snapshots.extend(live.then_some(snapshot));
        }
        Ok(Page::Resources { snapshots, next })
    }

    /// Every key that begins so.
    async fn each_key(&self, prefix: &str, mut see: impl FnMut(&str)) -> Result<(), Fault> {
        let (mut from, end) = (prefix.as_bytes().to_vec(), range_end(prefix));
        loop {
            let options = GetOptions::new().with_keys_only().with_limit(CHUNK);
            let asked = Keyed { key: from.clone(), end: Some(end.clone()) };
            let answer = self.link.get(asked, options).await?;
            answer.kvs().iter().filter_map(|kv| kv.key_str().ok()).for_each(&mut see);
            match answer.kvs().last().filter(|_| answer.more()) {
                Some(last) => from = [last.key(), &[0]].concat(),
                None => return Ok(()),
            }
        }
    }

    /// Newest first, in the order in which etcd wrote them; `next` is the revision of the last one looked at.
    async fn audit(&self, listing: &Listing) -> Result<Page, Fault> {
        let (limit, prefix) = (self.limit(listing), self.link.config.root.audit());
        let mut before = match &listing.after {
            Some(after) => Some(after.parse::<i64>().map_err(|_| bad_next())?),
            None => None,
        };
        let mut records = Vec::new();
        loop {
            let mut options =
                GetOptions::new().with_sort(SortTarget::Create, SortOrder::Descend).with_limit(CHUNK);
            if let Some(before) = before {
                options = options.with_max_create_revision(before - 1);
            }
            let asked = Keyed { key: prefix.clone().into_bytes(), end: Some(range_end(&prefix)) };
            let answer = self.link.get(asked, options).await?;
            for kv in answer.kvs() {
                let record = audit_record(kv.value(), &listing.prefix);
                if records.len() == limit && record.is_some() {
                    return Ok(Page::Audit { records, next: before.map(|before| before.to_string()) });
                }
                records.extend(record);
                before = Some(kv.create_revision());
            }
            if answer.kvs().len() < usize::try_from(CHUNK).unwrap_or(usize::MAX) {
                return Ok(Page::Audit { records, next: None });
            }
        }
    }

    /// Whatever stands under the root without a lease: nothing of ours does.
    async fn leaks(&self, listing: &Listing) -> Result<Page, Fault> {
        let (root, limit) = (self.link.config.root.all().to_owned(), self.limit(listing));
        let from = listing
            .after
            .as_ref()
            .map_or(root.clone().into_bytes(), |after| [after.as_bytes(), &[0]].concat());
        let options = GetOptions::new().with_keys_only().with_limit(CHUNK);
        let asked = Keyed { key: from, end: Some(range_end(&root)) };
        let answer = self.link.get(asked, options).await?;
        let (mut found, mut next) = (Vec::new(), None);
        for kv in answer.kvs() {
            let key = String::from_utf8_lossy(kv.key()).into_owned();
            let about = key.strip_prefix(&root).and_then(|rest| rest.split_once('/')).map(|(_, rest)| rest);
            if kv.lease() == 0 && about.is_some_and(|about| about.starts_with(&listing.prefix)) {
                found.push(Leak::new(key.clone(), "key"));
            }
            next = Some(key);
            if found.len() == limit {
                return Ok(Page::Leaks { found, next });
            }
        }
        Ok(Page::Leaks { found, next: next.filter(|_| answer.more()) })
    }
}

fn bad_next() -> Fault {
    Fault::Refused(Error::new(ErrorKind::Invalid, "this is not where a page before said to go on"))
}

fn audit_record(value: &[u8], prefix: &str) -> Option<AuditRecord> {
    let recorded: Recorded = serde_json::from_slice(value).ok()?;
    let resource = Resource::from_key(&recorded.resource).ok()?;
    if !recorded.resource.starts_with(prefix) {
        return None;
    }
    let at = WallTime::from_micros(recorded.at_us);
    let mut record = AuditRecord::new(at, resource, recorded.command, recorded.done);
    record.token = recorded.token.and_then(|token| FencingToken::new(token).ok());
    (record.by, record.why) = (recorded.by, recorded.why);
    Some(record)
}

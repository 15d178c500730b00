//! The list of the resources that are in use. ADR 0061.
//!
//! 1. Find the names of all resources with a scan of all keys, and sort them. The next page of the same listing uses
//!    the same names, if it comes soon ([`ListedResources`]).
//! 2. Read the resources in the order of their names: those with a plain holder many at once
//!    (`scripts/inspect_plain.lua`), the others one by one (`scripts/inspect.lua`).
//! 3. Leave out those that are not in use, until the page is full.
//!
//! A resource with a key that is corrupt is listed as unreadable. So one bad value does not hide the others.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_core::{
    ClaimRef, ErrorKind, HeldBy, Listing, OwnerToken, Page, Resource, Snapshot, StoredHolder, Timestamp,
};
use redis::Value;

use crate::{
    backend::Redis,
    error::StoreError,
    keys::{IN_USE_PATTERN, Keys, pattern, resource_of},
    reply::{Fields, Read},
    script::{INSPECT, INSPECT_PLAIN},
};

/// How many resources one call of `scripts/inspect_plain.lua` reads. The server serves no other client meanwhile.
const READ_IN_ONE_CALL: usize = 100;
/// How many resources are read in one pipeline, at the least and at the most.
const READ_AT_ONCE_MIN: usize = 200;
const READ_AT_ONCE_MAX: usize = 1000;
/// How long the names of a listing serve its next page.
const NAMES_KEPT: Duration = Duration::from_secs(5);
/// With more names than this, they are not kept.
const NAMES_MAX: usize = 200_000;
/// The names of so many listings are kept: `ls` of some prefixes beside the overview of a server.
const LISTINGS_MAX: usize = 4;

/// The names that the last listings found, for their next pages. The newest listing is the last one.
#[derive(Debug, Default)]
pub(crate) struct ListedResources(Mutex<Vec<FoundNames>>);

#[derive(Clone, Debug)]
struct FoundNames {
    prefix: String,
    /// The keys of resources, sorted.
    names: Arc<Vec<String>>,
    at: Timestamp,
}

impl ListedResources {
    fn kept(&self) -> MutexGuard<'_, Vec<FoundNames>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, prefix: &str, now: Timestamp) -> Option<Arc<Vec<String>>> {
        let mut kept = self.kept();
        kept.retain(|found| now < found.at.after(NAMES_KEPT));
        kept.iter().find(|found| found.prefix == prefix).map(|found| Arc::clone(&found.names))
    }

    fn keep(&self, found: FoundNames) {
        self.forget(&found.prefix);
        let mut kept = self.kept();
        if kept.len() >= LISTINGS_MAX {
            kept.remove(0);
        }
        if found.names.len() <= NAMES_MAX {
            kept.push(found);
        }
    }

    fn forget(&self, prefix: &str) {
        self.kept().retain(|found| found.prefix != prefix);
    }
}

impl Redis {
    pub(crate) async fn list(&self, listing: &Listing) -> Result<Page, StoreError> {
        let (after, size) = (listing.after.as_deref(), self.page_size(listing));
        let names = self.names(listing).await?;
        let rest = &names[names.partition_point(|name| after.is_some_and(|after| name.as_str() <= after))..];
        let mut snapshots: Vec<Snapshot> = Vec::new();
        // One more than a page means that there is a next page.
        for some in rest.chunks((size + 1).clamp(READ_AT_ONCE_MIN, READ_AT_ONCE_MAX)) {
            snapshots.extend(self.read_listed(some).await?.into_iter().filter(Snapshot::is_in_use));
            if snapshots.len() > size {
                snapshots.truncate(size);
                let next = snapshots.last().map(|last| last.resource.key().to_owned());
                return Ok(Page::Resources { snapshots, next });
            }
        }
        self.listed.forget(&listing.prefix);
        Ok(Page::Resources { snapshots, next: None })
    }

    /// The keys of all resources of a listing, sorted.
    async fn names(&self, listing: &Listing) -> Result<Arc<Vec<String>>, StoreError> {
        let now = self.environment.now();
        // The first page always looks anew.
        if let Some(names) = listing.after.as_ref().and_then(|_| self.listed.get(&listing.prefix, now)) {
            return Ok(names);
        }
        let mut names = Vec::new();
        self.scan_all(&pattern(&listing.prefix, IN_USE_PATTERN), |key| {
            names.extend(resource_of(key).map(str::to_owned));
        })
        .await?;
        names.sort_unstable();
        names.dedup();
        let names = Arc::new(names);
        self.listed.keep(FoundNames { prefix: listing.prefix.clone(), names: Arc::clone(&names), at: now });
        Ok(names)
    }

    /// Reads resources for a list. Those that are corrupt are unreadable, and those whose slot is being moved are left out,
    /// with a warning.
    async fn read_listed(&self, names: &[String]) -> Result<Vec<Snapshot>, StoreError> {
        let resources: Vec<Resource> =
            names.iter().filter_map(|name| Resource::from_key(name).ok()).collect();
        let mut snapshots = self.read_plain(&resources).await;
        let others: Vec<usize> = (0..resources.len()).filter(|&index| snapshots[index].is_none()).collect();
        let read: Vec<Resource> = others.iter().map(|&index| resources[index].clone()).collect();
        let (mut left_out, whole) = (0, self.read_whole(&read).await);
        for (&index, snapshot) in others.iter().zip(whole) {
            snapshots[index] = match snapshot {
                Ok(snapshot) => Some(snapshot),
                Err(error) if error.is_try_again() => {
                    left_out += 1;
                    None
                }
                Err(error) => Some(unreadable(&resources[index], error)?),
            };
        }
        if left_out > 0 {
            tracing::warn!(left_out, "resources are not listed while the cluster moves their slots");
        }
        Ok(snapshots.into_iter().flatten().collect())
    }

    /// Reads the resources with a plain holder or none. `None` for the others, and for those that could not be read.
    async fn read_plain(&self, resources: &[Resource]) -> Vec<Option<Snapshot>> {
        // On a cluster the keys of a script must be in one slot.
        let in_one_call = if self.router.cluster().is_some() { 1 } else { READ_IN_ONE_CALL };
        let groups: Vec<&[Resource]> = resources.chunks(in_one_call).collect();
        let call = |group: &&[Resource]| {
            let mut call = INSPECT_PLAIN.call(3 * group.len());
            group.iter().for_each(|resource| Keys::of(resource).push_listed(&mut call));
            call
        };
        let calls = groups.iter().filter_map(|group| Some((group.first()?, call(group)))).collect();
        let replies = self.router.run_all(Some(&INSPECT_PLAIN), calls).await;
        let mut snapshots = Vec::with_capacity(resources.len());
        for (group, reply) in groups.into_iter().zip(replies) {
            let rows = reply.and_then(Fields::of).and_then(|fields| fields.rest(group.len()));
            match rows {
                Ok(rows) => snapshots.extend(group.iter().zip(rows).map(read_plain_row)),
                Err(_) => snapshots.extend(group.iter().map(|_| None)),
            }
        }
        snapshots
    }

    /// Reads resources with `scripts/inspect.lua`.
    pub(crate) async fn read_whole(&self, resources: &[Resource]) -> Vec<Result<Snapshot, StoreError>> {
        if resources.is_empty() {
            return Vec::new();
        }
        let call = |resource| {
            let mut call = self.call(&INSPECT, resource, "none", 9);
            call.arg(resource.key()).arg("").arg(Snapshot::LISTED_MAX);
            (resource, call)
        };
        let replies = self.router.run_all(Some(&INSPECT), resources.iter().map(call).collect()).await;
        let mut snapshots = Vec::with_capacity(resources.len());
        for (reply, resource) in replies.into_iter().zip(resources) {
            // The owner only names a tombstone in the search for a key of a wrong type. Here there is none.
            let claim = ClaimRef { resource: resource.clone(), owner: OwnerToken::from_bytes([0; 16]) };
            let reply = self.name_wrong_type(claim, reply).await;
            snapshots.push(reply.and_then(|reply| read_snapshot(resource, reply)));
        }
        snapshots
    }
}

/// The row of a resource that is corrupt; any other error as it is.
fn unreadable(resource: &Resource, error: StoreError) -> Result<Snapshot, StoreError> {
    let why = error.clone().into_error();
    if why.kind() == ErrorKind::Corrupt {
        return Ok(Snapshot::unreadable(resource.clone(), why.to_string()));
    }
    Err(error)
}

/// Reads a row of the reply of `scripts/inspect_plain.lua`. `None` if the resource is not plain.
fn read_plain_row((resource, row): (&Resource, Value)) -> Option<Snapshot> {
    match row {
        Value::Int(1) => Some(Snapshot::empty(resource.clone())),
        Value::Array(_) => plain_snapshot(resource, row).ok(),
        _ => None,
    }
}

fn plain_snapshot(resource: &Resource, row: Value) -> Read<Snapshot> {
    let mut fields = Fields::of(row)?;
    let Ok(StoredHolder { holder, ttl }) = fields.text()?.parse::<StoredHolder>();
    let mut by = HeldBy::new(holder, fields.token()?, 1);
    by.ttl = ttl;
    by.held_for = fields.micros()?;
    by.remaining = fields.millis()?.unwrap_or_default();
    by.handovers = fields.count()?;
    let marks = fields.text()?;
    (by.evicting, by.kept) = (marks.contains('e'), marks.contains('k'));
    let mut snapshot = Snapshot::empty(resource.clone());
    (snapshot.capacity, snapshot.holder_count) = (1, 1);
    snapshot.last_token = fields.fence(resource)?;
    snapshot.cursor = fields.cursor()?;
    snapshot.holders.push(by);
    Ok(snapshot)
}

/// Reads the reply of `scripts/inspect.lua`.
fn read_snapshot(resource: &Resource, reply: Value) -> Result<Snapshot, StoreError> {
    let mut fields = Fields::of(reply)?;
    let mut snapshot = Snapshot::empty(resource.clone());
    snapshot.capacity = fields.count()?;
    snapshot.holder_count = fields.count()?;
    snapshot.queue_length = fields.count()?;
    snapshot.last_token = fields.fence(resource)?;
    snapshot.paused_for = fields.millis()?;
    snapshot.cursor = fields.cursor()?;
    snapshot.holders = fields.each(Fields::holder)?;
    snapshot.queue = fields.each(Fields::queue_entry)?;
    snapshot.foreign.extend(fields.foreign(resource)?);
    Ok(snapshot)
}

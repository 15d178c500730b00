//! The `GET` routes: one resource, resources, the audit trail, leaks.

use std::{sync::Arc, time::Duration};

use leasehold_core::{
    AuditRecord, Cursor, Error, FinishRequest, ForeignLock, HeldBy, Holder, Leak, Listing, Page, Query,
    QueueEntry, Resource, Result, Snapshot, ValueHash, WallTime,
};
use serde::{Deserialize, Serialize};

use crate::{
    acquire::unreadable,
    fields::{self, StoreId, TokenText},
};

/// The query of `GET /v1/resource`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResourceQuery {
    /// The resource, as people write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<crate::openapi::ResourceName>"))]
    pub name: Option<String>,
    /// The resource by its key: for hashed ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<crate::openapi::ResourceKey>"))]
    pub key: Option<String>,
    /// Wait for a change since this cursor of an earlier answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// For this long at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(extend("maximum" = crate::bounds::WAIT_MS)))]
    pub wait_ms: Option<u64>,
}

/// The query of `GET /v1/resources`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResourcesQuery {
    /// Only resources whose key begins with this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// At most this many entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// The query of `GET /v1/audit`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// Only orders about resources whose key begins with this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Only orders about the resource with exactly this key. Not with `prefix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<crate::openapi::ResourceKey>"))]
    pub key: Option<String>,
    /// The `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// At most this many entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

impl AuditQuery {
    /// The resource, if the query names one by its key.
    ///
    /// # Errors
    /// `Invalid` if the key is not one, or if the query has a prefix as well.
    pub fn resource(&self) -> Result<Option<Resource>> {
        match (&self.key, &self.prefix) {
            (None, _) => Ok(None),
            (Some(_), Some(_)) => Err(fields::invalid("both `key` and `prefix` are given: send one of them")),
            (Some(key), None) => fields::read_resource(None, Some(key)).map(Some),
        }
    }
}

/// The query of `GET /v1/leaks`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LeaksQuery {
    /// Locks of other programs whose keys match this glob pattern of the store. Without it: keys of leasehold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Only keys of resources that begin with this. Not with `pattern`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// At most this many entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

impl ResourceQuery {
    /// The query for this resource, without waiting.
    pub fn of(resource: &Resource) -> ResourceQuery {
        let (name, key) = fields::write_resource(resource);
        ResourceQuery { name, key, ..ResourceQuery::default() }
    }

    /// The resource.
    ///
    /// # Errors
    /// `Invalid` if it cannot be read.
    pub fn resource(&self) -> Result<Resource> {
        match (&self.name, &self.key) {
            (None, None) => Err(fields::invalid("`name` is missing: write ?name=kind/id")),
            (Some(_), Some(_)) => Err(fields::invalid("both `name` and `key` are given: send one of them")),
            (name, key) => fields::read_resource(name.as_deref(), key.as_deref()),
        }
    }
}

impl From<&Listing> for ResourcesQuery {
    fn from(listing: &Listing) -> ResourcesQuery {
        ResourcesQuery {
            prefix: Some(listing.prefix.clone()).filter(|prefix| !prefix.is_empty()),
            after: listing.after.clone(),
            limit: Some(listing.limit).filter(|limit| *limit > 0),
        }
    }
}

impl ResourcesQuery {
    /// The page for the store.
    pub fn listing(&self) -> Listing {
        listing(self.prefix.as_deref(), self.after.clone(), self.limit)
    }
}

impl AuditQuery {
    /// The page for the store. For one resource it also has orders about resources whose keys begin with its key.
    pub fn listing(&self) -> Listing {
        listing(self.key.as_deref().or(self.prefix.as_deref()), self.after.clone(), self.limit)
    }
}

impl LeaksQuery {
    /// The query for keys of leasehold.
    pub fn of(listing: &Listing) -> LeaksQuery {
        let ResourcesQuery { prefix, after, limit } = ResourcesQuery::from(listing);
        LeaksQuery { pattern: None, prefix, after, limit }
    }

    /// The query for locks of other programs.
    pub fn foreign(pattern: &str, listing: &Listing) -> LeaksQuery {
        LeaksQuery { pattern: Some(pattern.to_owned()), prefix: None, ..LeaksQuery::of(listing) }
    }

    /// The query for the store.
    ///
    /// # Errors
    /// `Invalid` if both a pattern and a prefix are given.
    pub fn query(&self) -> Result<Query> {
        let listing = listing(self.prefix.as_deref(), self.after.clone(), self.limit);
        match &self.pattern {
            None => Ok(Query::Leaks(listing)),
            Some(_) if self.prefix.is_some() => {
                Err(fields::invalid("both `pattern` and `prefix` are given: send one of them"))
            }
            Some(pattern) => Ok(Query::Foreign { pattern: pattern.clone(), listing }),
        }
    }
}

fn listing(prefix: Option<&str>, after: Option<String>, limit: Option<u32>) -> Listing {
    let listing = Listing::of(prefix.unwrap_or("")).limit(limit.unwrap_or(0));
    match after {
        Some(after) => listing.after(after),
        None => listing,
    }
}

/// A process, for people to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct HolderBody {
    /// The host's name, as the process said.
    pub host: String,
    /// The process id there.
    pub pid: u32,
    /// The purpose.
    #[serde(default)]
    pub label: String,
    /// Who a server took the caller for, by its token or certificate.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subject: String,
}

impl From<&Holder> for HolderBody {
    fn from(holder: &Holder) -> HolderBody {
        let Holder { host, pid, label, subject, .. } = holder.clone();
        HolderBody { host, pid, label, subject }
    }
}

impl HolderBody {
    fn to_core(&self) -> Arc<Holder> {
        Arc::new(Holder::new(&self.host, self.pid, &self.label).with_subject(&self.subject))
    }
}

/// An operator's request that a holder finish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct FinishRequestBody {
    /// How much time the holder has.
    pub within_ms: u64,
    /// The operator.
    pub by: String,
    /// The reason.
    pub why: String,
}

impl From<&FinishRequest> for FinishRequestBody {
    fn from(asked: &FinishRequest) -> FinishRequestBody {
        let within_ms = fields::ms_down(asked.within);
        FinishRequestBody { within_ms, by: asked.by.to_string(), why: asked.why.to_string() }
    }
}

impl FinishRequestBody {
    pub(crate) fn to_core(&self) -> FinishRequest {
        FinishRequest::new(Duration::from_millis(self.within_ms), &*self.by, &*self.why)
    }
}

/// A holder as other processes see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct HeldByBody {
    /// The process.
    pub holder: HolderBody,
    /// The token of its grant; of a shared grant, its number.
    pub token: TokenText,
    /// Its share of the capacity.
    pub weight: u32,
    /// The time since its grant.
    pub held_for_ms: u64,
    /// The time until it expires, unless it is renewed.
    pub remaining_ms: u64,
    /// The ttl of its claim, where the store keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The note that it wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The note, if it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note_base64: Option<String>,
    /// How many times in a row the grant was handed over inside one client.
    #[serde(default)]
    pub handovers: u32,
    /// An operator's request that it finish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<FinishRequestBody>,
    /// An operator evicted it at its expiry.
    #[serde(default)]
    pub evicting: bool,
    /// It was released with `keep_for_ms`: nobody holds the resource, and it stays closed.
    #[serde(default)]
    pub kept: bool,
}

impl From<&HeldBy> for HeldByBody {
    fn from(by: &HeldBy) -> HeldByBody {
        let (note, note_base64) = fields::write_note(by.note.as_deref());
        HeldByBody {
            holder: HolderBody::from(&*by.holder),
            token: TokenText(by.token),
            weight: by.weight,
            held_for_ms: fields::ms_down(by.held_for),
            remaining_ms: fields::ms_down(by.remaining),
            ttl_ms: by.ttl.map(fields::ms_down),
            note,
            note_base64,
            handovers: by.handovers,
            asked: by.asked.as_ref().map(FinishRequestBody::from),
            evicting: by.evicting,
            kept: by.kept,
        }
    }
}

impl HeldByBody {
    /// The holder.
    pub fn to_core(&self) -> HeldBy {
        let mut by = HeldBy::new(self.holder.to_core(), self.token.0, self.weight);
        by.held_for = Duration::from_millis(self.held_for_ms);
        by.remaining = Duration::from_millis(self.remaining_ms);
        by.ttl = self.ttl_ms.map(Duration::from_millis);
        // A note is for people and for elections. One that cannot be read is none.
        by.note = fields::read_note(self.note.as_deref(), self.note_base64.as_deref()).ok().flatten();
        by.handovers = self.handovers;
        by.asked = self.asked.as_ref().map(FinishRequestBody::to_core);
        (by.evicting, by.kept) = (self.evicting, self.kept);
        by
    }
}

/// A lock of another program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ForeignLockBody {
    /// The key in the store.
    pub key: String,
    /// What it is, in the words of the store.
    pub form: String,
    /// Names it in an order to evict it.
    pub value_hash: String,
    /// The time until it expires. Without it: it has no expiry.
    pub remaining_ms: Option<u64>,
}

impl From<&ForeignLock> for ForeignLockBody {
    fn from(lock: &ForeignLock) -> ForeignLockBody {
        ForeignLockBody {
            key: lock.key.clone(),
            form: lock.form.clone(),
            value_hash: lock.value_hash.to_string(),
            remaining_ms: lock.remaining.map(fields::ms_down),
        }
    }
}

impl ForeignLockBody {
    /// The lock. `None` if its hash cannot be read.
    pub fn to_core(&self) -> Option<ForeignLock> {
        let value_hash: ValueHash = self.value_hash.parse().ok()?;
        let lock = ForeignLock::new(&self.key, &self.form, value_hash);
        Some(lock.expiring(self.remaining_ms.map(Duration::from_millis)))
    }
}

/// A queued claim as other processes see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct QueueEntryBody {
    /// The process.
    pub holder: HolderBody,
    /// The part of the capacity that it wants.
    pub weight: u32,
    /// The time since it joined the queue.
    pub waited_ms: u64,
    /// The time until its place expires, unless it is renewed.
    pub remaining_ms: u64,
    /// It could have been granted and did not answer.
    #[serde(default)]
    pub silent: bool,
    /// A lock of another program waits here.
    #[serde(default)]
    pub foreign: bool,
}

impl From<&QueueEntry> for QueueEntryBody {
    fn from(entry: &QueueEntry) -> QueueEntryBody {
        QueueEntryBody {
            holder: HolderBody::from(&*entry.holder),
            weight: entry.weight,
            waited_ms: fields::ms_down(entry.waited),
            remaining_ms: fields::ms_down(entry.remaining),
            silent: entry.silent,
            foreign: entry.foreign,
        }
    }
}

impl QueueEntryBody {
    fn to_core(&self) -> QueueEntry {
        let (waited, remaining) =
            (Duration::from_millis(self.waited_ms), Duration::from_millis(self.remaining_ms));
        let mut entry = QueueEntry::new(self.holder.to_core(), self.weight, waited, remaining);
        (entry.silent, entry.foreign) = (self.silent, self.foreign);
        entry
    }
}

/// One resource as it is now: the answer to `GET /v1/resource`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct SnapshotBody {
    /// The resource, as people write it.
    pub resource: String,
    /// Its key.
    pub key: String,
    /// The capacity, while the resource is in use.
    pub capacity: u32,
    /// The holders, by token.
    pub holders: Vec<HeldByBody>,
    /// The number of all holders.
    pub holder_count: u32,
    /// Locks of other programs that hold the resource.
    #[serde(default)]
    pub foreign: Vec<ForeignLockBody>,
    /// The head of the queue.
    pub queue: Vec<QueueEntryBody>,
    /// The number of all queued claims.
    pub queue_length: u32,
    /// The newest token, where the store remembers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_token: Option<TokenText>,
    /// The time until an operator's pause ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_for_ms: Option<u64>,
    /// Where to wait from.
    pub cursor: String,
    /// Why the resource cannot be read. Then nothing else is known about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

impl SnapshotBody {
    /// The resource as the server sends it.
    pub fn of(snapshot: &Snapshot, store: &StoreId) -> SnapshotBody {
        SnapshotBody {
            resource: snapshot.resource.to_string(),
            key: snapshot.resource.key().to_owned(),
            capacity: snapshot.capacity,
            holders: snapshot.holders.iter().map(HeldByBody::from).collect(),
            holder_count: snapshot.holder_count,
            foreign: snapshot.foreign.iter().map(ForeignLockBody::from).collect(),
            queue: snapshot.queue.iter().map(QueueEntryBody::from).collect(),
            queue_length: snapshot.queue_length,
            last_token: snapshot.last_token.map(TokenText),
            paused_for_ms: snapshot.paused_for.map(fields::ms_up),
            cursor: fields::write_cursor(snapshot.cursor, store),
            unreadable: snapshot.unreadable.clone(),
        }
    }

    /// The resource as the client reads it.
    ///
    /// # Errors
    /// `Unavailable` if its key is not one.
    pub fn to_core(&self) -> Result<Snapshot> {
        let resource = Resource::from_key(&self.key).map_err(not_a_key)?;
        let mut snapshot = Snapshot::empty(resource);
        (snapshot.capacity, snapshot.holder_count) = (self.capacity, self.holder_count);
        snapshot.holders = self.holders.iter().map(HeldByBody::to_core).collect();
        snapshot.foreign = self.foreign.iter().filter_map(ForeignLockBody::to_core).collect();
        snapshot.queue = self.queue.iter().map(QueueEntryBody::to_core).collect();
        snapshot.queue_length = self.queue_length;
        snapshot.last_token = self.last_token.map(|token| token.0);
        snapshot.paused_for = self.paused_for_ms.map(Duration::from_millis);
        snapshot.cursor =
            if self.cursor.is_empty() { Cursor::default() } else { fields::cursor_of_answer(&self.cursor) };
        snapshot.unreadable.clone_from(&self.unreadable);
        Ok(snapshot)
    }
}

fn not_a_key(error: Error) -> Error {
    unreadable("the server's answer has a key that is none")
        .with_effect(leasehold_core::Effect::None)
        .because(error)
}

/// The answer to `GET /v1/resources`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ResourcesPage {
    /// In key order.
    pub resources: Vec<SnapshotBody>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// One entry of the audit trail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct AuditRecordBody {
    /// The time by the store's clock, for people: RFC 3339.
    #[serde(default)]
    pub at: String,
    /// The same in microseconds since 1970.
    pub at_us: u64,
    /// The resource, as people write it.
    pub resource: String,
    /// Its key.
    pub key: String,
    /// The token that the command named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenText>,
    /// The operator.
    pub by: String,
    /// The reason.
    pub why: String,
    /// The command, by its stable name.
    pub command: String,
    /// Whether it was carried out.
    pub done: bool,
}

impl From<&AuditRecord> for AuditRecordBody {
    fn from(record: &AuditRecord) -> AuditRecordBody {
        AuditRecordBody {
            at: humantime::format_rfc3339_millis(record.at.to_system_time()).to_string(),
            at_us: record.at.as_micros(),
            resource: record.resource.to_string(),
            key: record.resource.key().to_owned(),
            token: record.token.map(TokenText),
            by: record.by.clone(),
            why: record.why.clone(),
            command: record.command.clone(),
            done: record.done,
        }
    }
}

impl AuditRecordBody {
    /// The record as the client reads it.
    ///
    /// # Errors
    /// `Unavailable` if its key is not one.
    pub fn to_core(&self) -> Result<AuditRecord> {
        let resource = Resource::from_key(&self.key).map_err(not_a_key)?;
        let mut record =
            AuditRecord::new(WallTime::from_micros(self.at_us), resource, self.command.clone(), self.done);
        record.token = self.token.map(|token| token.0);
        (record.by, record.why) = (self.by.clone(), self.why.clone());
        Ok(record)
    }
}

/// The answer to `GET /v1/audit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct AuditPage {
    /// Newest first.
    pub records: Vec<AuditRecordBody>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// A key without an expiry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct LeakBody {
    /// The key in the store.
    pub key: String,
    /// The type of the value, in the words of the store.
    pub form: String,
    /// The time since it was last read or written, where the store knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
}

/// The answer to `GET /v1/leaks`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct LeaksPage {
    /// In the order of the store. May be empty although there are more pages.
    pub leaks: Vec<LeakBody>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

impl From<&Leak> for LeakBody {
    fn from(leak: &Leak) -> LeakBody {
        LeakBody { key: leak.key.clone(), form: leak.form.clone(), idle_ms: leak.idle.map(fields::ms_down) }
    }
}

impl ResourcesPage {
    /// The page as the server sends it.
    pub fn of(snapshots: &[Snapshot], next: Option<String>, store: &StoreId) -> ResourcesPage {
        ResourcesPage { resources: snapshots.iter().map(|one| SnapshotBody::of(one, store)).collect(), next }
    }

    /// The page as the client reads it.
    ///
    /// # Errors
    /// As [`SnapshotBody::to_core`].
    pub fn to_core(&self) -> Result<Page> {
        let snapshots = self.resources.iter().map(SnapshotBody::to_core).collect::<Result<_>>()?;
        Ok(Page::Resources { snapshots, next: self.next.clone() })
    }
}

impl AuditPage {
    /// The page as the server sends it.
    pub fn of(records: &[AuditRecord], next: Option<String>) -> AuditPage {
        AuditPage { records: records.iter().map(AuditRecordBody::from).collect(), next }
    }

    /// The page as the client reads it.
    ///
    /// # Errors
    /// As [`AuditRecordBody::to_core`].
    pub fn to_core(&self) -> Result<Page> {
        let records = self.records.iter().map(AuditRecordBody::to_core).collect::<Result<_>>()?;
        Ok(Page::Audit { records, next: self.next.clone() })
    }
}

impl LeaksPage {
    /// The page as the server sends it.
    pub fn of(found: &[Leak], next: Option<String>) -> LeaksPage {
        LeaksPage { leaks: found.iter().map(LeakBody::from).collect(), next }
    }

    /// The page as the client reads it.
    pub fn to_core(&self) -> Page {
        let read = |body: &LeakBody| {
            let mut leak = Leak::new(&body.key, &body.form);
            leak.idle = body.idle_ms.map(Duration::from_millis);
            leak
        };
        Page::Leaks { found: self.leaks.iter().map(read).collect(), next: self.next.clone() }
    }
}

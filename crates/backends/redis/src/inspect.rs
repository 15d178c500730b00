//! The verb `inspect`: one resource, or a search over all keys with `SCAN`.
//!
//! `SCAN` returns keys in no order, and may return a key twice. So `list` and `audit` scan all keys for each
//! page, sort what they find, and read the details of one page. The search for leaks does not sort: a page is
//! some steps of the scan, and says where the next page goes on ([`ScanPosition`]).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use leasehold_core::{
    AuditRecord, Error, ErrorKind, FencingToken, Leak, Listing, Page, Query, Resource, Snapshot, WallTime,
};
use redis::{Cmd, Value};

use crate::{
    backend::Redis,
    cluster::PrimaryNode,
    connection::Connection,
    error::StoreError,
    keys::{BIRTH, Keys, pattern, resource_of},
    reply::{Fields, number},
    script::INSPECT,
};

/// How many keys the server visits for one step of a scan.
const KEYS_PER_STEP: u32 = 1000;
/// The most steps of a scan for one page of leaks.
const LEAK_STEPS_MAX: u32 = 20;
/// How many resources are read in one pipeline.
const READ_AT_ONCE: usize = 100;
/// `PTTL` of a key that does not expire.
const NO_EXPIRY: i64 = -1;
/// The cursor of `SCAN` before the first and after the last step.
const SCAN_START: &str = "0";

impl Redis {
    pub(crate) async fn try_inspect(&self, query: &Query) -> Result<Page, StoreError> {
        match query {
            Query::One(resource) => {
                let snapshots = self.read(std::slice::from_ref(resource)).await?;
                Ok(Page::Resources { snapshots, next: None })
            }
            Query::Resources(listing) => self.list(listing).await,
            Query::Audit(listing) => self.audit(listing).await,
            Query::Leaks(listing) => self.leaks(&pattern(&listing.prefix, ""), listing, |_| true).await,
            Query::Foreign { pattern, listing } => {
                // The birth mark of a quorum node has no expiry by design. ADR 0016.
                self.leaks(pattern, listing, |key| resource_of(key).is_none() && key != BIRTH).await
            }
            other => {
                let message = format!("the redis backend does not support the query {other:?}");
                Err(StoreError::Translated(Error::new(ErrorKind::Unsupported, message)))
            }
        }
    }

    fn page_size(&self, listing: &Listing) -> usize {
        let max = self.info.limits.page;
        if listing.limit == 0 { max as usize } else { listing.limit.min(max) as usize }
    }

    async fn read(&self, resources: &[Resource]) -> Result<Vec<Snapshot>, StoreError> {
        self.try_read(resources).await.into_iter().collect()
    }

    /// Reads snapshots. Resources whose slot is being moved are left out, with a warning.
    async fn read_unless_moving(&self, resources: &[Resource]) -> Result<Vec<Snapshot>, StoreError> {
        let mut snapshots = self.try_read(resources).await;
        let all = snapshots.len();
        snapshots.retain(|snapshot| !matches!(snapshot, Err(error) if error.is_try_again()));
        let left_out = all - snapshots.len();
        if left_out > 0 {
            tracing::warn!(left_out, "resources are not listed while the cluster moves their slots");
        }
        snapshots.into_iter().collect()
    }

    async fn try_read(&self, resources: &[Resource]) -> Vec<Result<Snapshot, StoreError>> {
        let call = |resource| {
            let mut call = self.call(&INSPECT, resource, "none", 9);
            call.arg(resource.key()).arg("").arg(Snapshot::LISTED_MAX);
            (resource, call)
        };
        let replies = self.router.run_all(Some(&INSPECT), resources.iter().map(call).collect()).await;
        replies.into_iter().zip(resources).map(|(reply, resource)| read_snapshot(resource, reply?)).collect()
    }

    /// Calls `visit` for every key that matches, on every node. A key may come twice.
    async fn scan_all(&self, pattern: &str, mut visit: impl FnMut(&str)) -> Result<(), StoreError> {
        for node in self.router.nodes() {
            let connection = node.connections.get().await?;
            let mut cursor = SCAN_START.to_owned();
            loop {
                let keys;
                (cursor, keys) = scan(&node, &connection, &cursor, pattern).await?;
                keys.iter().for_each(|key| visit(&String::from_utf8_lossy(key)));
                if cursor == SCAN_START {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Keys that do not expire. A page is some steps of a scan, so that one call does not scan a large
    /// server.
    async fn leaks(
        &self,
        pattern: &str,
        listing: &Listing,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Page, StoreError> {
        let (nodes, size) = (self.router.nodes(), self.page_size(listing));
        let (mut index, mut cursor) = ScanPosition::parse(listing.after.as_deref()).find(&nodes);
        let mut found = Vec::new();
        for _ in 0..LEAK_STEPS_MAX {
            let Some(node) = nodes.get(index).filter(|_| found.len() < size) else { break };
            let connection = node.connections.get().await?;
            let mut keys;
            (cursor, keys) = scan(node, &connection, &cursor, pattern).await?;
            keys.retain(|key| wanted(&String::from_utf8_lossy(key)));
            found.extend(without_expiry(node, &connection, keys).await?);
            if cursor == SCAN_START {
                index += 1;
            }
        }
        let next = nodes.get(index).map(|node| ScanPosition { node: node.to_string(), cursor }.to_text());
        Ok(Page::Leaks { found, next })
    }

    async fn list(&self, listing: &Listing) -> Result<Page, StoreError> {
        let mut found = BTreeSet::new();
        let after = listing.after.as_deref().unwrap_or("");
        self.scan_all(&pattern(&listing.prefix, ""), |key| {
            // Most keys belong to a resource that was found before: nothing is allocated for them.
            if let Some(resource) = resource_of(key)
                && resource > after
                && !found.contains(resource)
            {
                found.insert(resource.to_owned());
            }
        })
        .await?;
        let found: Vec<Resource> = found.iter().filter_map(|key| Resource::from_key(key).ok()).collect();
        let size = self.page_size(listing);
        let mut snapshots: Vec<Snapshot> = Vec::new();
        for some in found.chunks(READ_AT_ONCE) {
            snapshots.extend(self.read_unless_moving(some).await?.into_iter().filter(is_in_use));
            // One more than a page means that there is a next page.
            if snapshots.len() > size {
                snapshots.truncate(size);
                let next = snapshots.last().map(|last| last.resource.key().to_owned());
                return Ok(Page::Resources { snapshots, next });
            }
        }
        Ok(Page::Resources { snapshots, next: None })
    }

    /// The audit streams of all resources, merged by time, newest first.
    async fn audit(&self, listing: &Listing) -> Result<Page, StoreError> {
        let mut audited = BTreeSet::new();
        self.scan_all(&pattern(&listing.prefix, ":audit"), |key| {
            audited.extend(resource_of(key).and_then(|key| Resource::from_key(key).ok()));
        })
        .await?;
        let (size, after) =
            (self.page_size(listing), listing.after.as_deref().and_then(AuditPosition::parse));
        let audited: Vec<Resource> = audited.into_iter().collect();
        let mut entries: Vec<(AuditPosition, AuditRecord)> = Vec::new();
        for some in audited.chunks(READ_AT_ONCE) {
            let call = |resource| (resource, audit_call(resource, after.as_ref(), size));
            let replies = self.router.run_all(None, some.iter().map(call).collect()).await;
            for (reply, resource) in replies.into_iter().zip(some) {
                let records = read_records(resource, reply?)?.into_iter();
                let is_after = |position: &AuditPosition| after.as_ref().is_none_or(|after| position < after);
                entries.extend(records.filter(|(position, _)| is_after(position)));
            }
            entries.sort_by(|(a, _), (b, _)| b.cmp(a));
            // One more than a page, to see whether there is a next one.
            entries.truncate(size + 1);
        }
        let more = entries.len() > size;
        entries.truncate(size);
        let next = entries.last().filter(|_| more).map(|(position, _)| position.to_text());
        Ok(Page::Audit { records: entries.into_iter().map(|(_, record)| record).collect(), next })
    }
}

/// One step of a scan: the cursor of the next step, and the keys of this one.
async fn scan(
    node: &PrimaryNode,
    connection: &Arc<Connection>,
    cursor: &str,
    pattern: &str,
) -> Result<(String, Vec<Vec<u8>>), StoreError> {
    let mut command = Cmd::new();
    command.arg("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(KEYS_PER_STEP);
    let mut fields = Fields::of(node.connections.send(connection, &command).await?)?;
    let (next, mut list, mut keys) = (fields.text()?, fields.list()?, Vec::new());
    while let Some(key) = list.bytes()? {
        keys.push(key);
    }
    Ok((next, keys))
}

/// The keys of these that do not expire.
async fn without_expiry(
    node: &PrimaryNode,
    connection: &Arc<Connection>,
    keys: Vec<Vec<u8>>,
) -> Result<Vec<Leak>, StoreError> {
    let question = |words: &[&str], key: &[u8]| {
        let mut command = Cmd::new();
        command.arg(words).arg(key);
        command
    };
    let questions: Vec<Cmd> = keys.iter().map(|key| question(&["PTTL"], key)).collect();
    let expiries = node.connections.send_all(connection, &questions).await;
    let mut found = Vec::new();
    for (key, expiry) in keys.into_iter().zip(expiries) {
        // A key whose slot has moved since is found at its new node.
        let has_moved = matches!(&expiry, Err(error) if error.redirect().is_some());
        if has_moved || number(&expiry?) != Some(NO_EXPIRY) {
            continue;
        }
        let questions = [question(&["TYPE"], &key), question(&["OBJECT", "IDLETIME"], &key)];
        let mut replies = node.connections.send_all(connection, &questions).await.into_iter();
        let key_type = match replies.next() {
            Some(Ok(Value::SimpleString(key_type))) => key_type,
            _ => String::new(),
        };
        let mut leak = Leak::new(String::from_utf8_lossy(&key), key_type);
        let idle = replies.next().and_then(Result::ok).as_ref().and_then(number);
        leak.idle = idle.map(|seconds| Duration::from_secs(seconds.unsigned_abs()));
        found.push(leak);
    }
    Ok(found)
}

/// Where the search for leaks goes on: at which node, and at which cursor of its scan.
#[derive(Debug, PartialEq, Eq)]
struct ScanPosition {
    node: String,
    cursor: String,
}

impl ScanPosition {
    fn parse(text: Option<&str>) -> ScanPosition {
        let text = text.unwrap_or(SCAN_START);
        let (cursor, node) = text.split_once('@').unwrap_or((text, ""));
        ScanPosition { node: node.to_owned(), cursor: cursor.to_owned() }
    }

    fn to_text(&self) -> String {
        format!("{}@{}", self.cursor, self.node)
    }

    /// The index of the node, and the cursor there. If the node has left the cluster, the next node from its
    /// start.
    fn find(self, nodes: &[Arc<PrimaryNode>]) -> (usize, String) {
        match nodes.iter().position(|node| node.to_string() == self.node) {
            Some(index) => (index, self.cursor),
            None if self.node.is_empty() => (0, self.cursor),
            None => {
                let later = nodes.iter().position(|node| node.to_string() > self.node);
                (later.unwrap_or(nodes.len()), SCAN_START.to_owned())
            }
        }
    }
}

/// The position of an audit record among those of all resources.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AuditPosition {
    /// The id in the stream: microseconds, and a number within the microsecond.
    id: (u64, u64),
    resource: String,
}

impl AuditPosition {
    fn parse(text: &str) -> Option<AuditPosition> {
        let (id, resource) = text.split_once('|')?;
        Some(AuditPosition { id: parse_stream_id(id)?, resource: resource.to_owned() })
    }

    fn to_text(&self) -> String {
        format!("{}-{}|{}", self.id.0, self.id.1, self.resource)
    }
}

fn parse_stream_id(text: &str) -> Option<(u64, u64)> {
    let (time, number) = text.split_once('-')?;
    Some((time.parse().ok()?, number.parse().ok()?))
}

fn audit_call(resource: &Resource, after: Option<&AuditPosition>, size: usize) -> Cmd {
    let mut call = Cmd::new();
    let newest = after.map_or_else(|| "+".to_owned(), |after| format!("{}-{}", after.id.0, after.id.1));
    // One more to see whether there are more, and one more because the range includes the record at `after`.
    call.arg("XREVRANGE").arg(Keys::of(resource).audit()).arg(newest).arg("-").arg("COUNT").arg(size + 2);
    call
}

fn read_records(resource: &Resource, reply: Value) -> Result<Vec<(AuditPosition, AuditRecord)>, StoreError> {
    let Value::Array(entries) = reply else { return Ok(Vec::new()) };
    entries.into_iter().map(|entry| read_record(resource, &mut Fields::of(entry)?)).collect()
}

fn read_record(resource: &Resource, entry: &mut Fields) -> Result<(AuditPosition, AuditRecord), StoreError> {
    let id = entry.text()?;
    let no_id = || StoreError::unexpected_reply(format!("{id:.40?} is not the id of a stream entry"));
    let id = parse_stream_id(&id).ok_or_else(no_id)?;
    let mut fields = entry.list()?;
    let mut record = AuditRecord::new(WallTime::from_micros(id.0), resource.clone(), "", false);
    while let Some(name) = fields.bytes()? {
        let value = fields.text()?;
        let number = || number(&Value::BulkString(value.clone().into_bytes())).unwrap_or(0);
        match name.as_slice() {
            b"at" => record.at = WallTime::from_micros(number().unsigned_abs()),
            b"token" => record.token = FencingToken::try_from(number()).ok(),
            b"by" => record.by = value,
            b"why" => record.why = value,
            b"command" => record.command = value,
            b"done" => record.done = value == "1",
            _ => {}
        }
    }
    Ok((AuditPosition { id, resource: resource.key().to_owned() }, record))
}

/// Whether a resource is listed: something holds it, waits for it, or pauses it.
fn is_in_use(snapshot: &Snapshot) -> bool {
    snapshot.holder_count > 0 || snapshot.queue_length > 0 || snapshot.paused_for.is_some()
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
    Ok(snapshot)
}

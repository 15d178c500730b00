//! The verb `inspect`: one resource, or a walk over the keys.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use leasehold_core::{
    AuditRecord, Error, ErrorKind, FencingToken, Leak, Listing, Page, Query, Resource, Snapshot, WallTime,
};
use redis::{Cmd, Value};

use crate::{
    backend::Redis,
    cluster::Node,
    error::Fault,
    keys::{BIRTH, Keys, pattern, resource_of},
    link::Wire,
    reply::{Fields, number},
    script::INSPECT,
};

/// How many keys the server looks at for one step of a walk.
const STEP: u32 = 1000;
/// How many steps of a walk for leaks are one page at the most.
const STEPS_MAX: u32 = 20;
/// How many resources are looked at in one go.
const TOGETHER: usize = 100;

impl Redis {
    pub(crate) async fn answer(&self, query: &Query) -> Result<Page, Fault> {
        match query {
            Query::One(resource) => {
                let snapshots = self.look(std::slice::from_ref(resource)).await?;
                Ok(Page::Resources { snapshots, next: None })
            }
            Query::Resources(listing) => self.list(listing).await,
            Query::Audit(listing) => self.audit(listing).await,
            Query::Leaks(listing) => self.leaks(&pattern(&listing.prefix, ""), listing, |_| true).await,
            Query::Foreign { pattern, listing } => {
                // A node of a quorum has a mark that is meant to stay.
                self.leaks(pattern, listing, |key| resource_of(key).is_none() && key != BIRTH).await
            }
            other => {
                let message = format!("redis does not answer {other:?}");
                Err(Fault::Refused(Error::new(ErrorKind::Unsupported, message)))
            }
        }
    }

    fn page_size(&self, listing: &Listing) -> usize {
        let most = self.info.limits.page;
        if listing.limit == 0 { most as usize } else { listing.limit.min(most) as usize }
    }

    async fn look(&self, resources: &[Resource]) -> Result<Vec<Snapshot>, Fault> {
        self.try_look(resources).await.into_iter().collect()
    }

    /// Leaves out what is on its way from one node of a cluster to another, and says so.
    async fn look_at_what_rests(&self, resources: &[Resource]) -> Result<Vec<Snapshot>, Fault> {
        let mut looks = self.try_look(resources).await;
        let all = looks.len();
        looks.retain(|look| !matches!(look, Err(fault) if fault.is_try_again()));
        if looks.len() < all {
            tracing::warn!(left_out = all - looks.len(), "resources are not listed while their slots move");
        }
        looks.into_iter().collect()
    }

    async fn try_look(&self, resources: &[Resource]) -> Vec<Result<Snapshot, Fault>> {
        let call = |resource| {
            let mut call = self.call(&INSPECT, resource, "none", 9);
            call.arg(resource.key()).arg("").arg(Snapshot::LISTED_MAX);
            (resource, call)
        };
        let answers = self.route.run_all(Some(&INSPECT), resources.iter().map(call).collect()).await;
        answers.into_iter().zip(resources).map(|(answer, resource)| snapshot(resource, answer?)).collect()
    }

    /// Every key that matches, on every node; the same one perhaps twice.
    async fn walk(&self, pattern: &str, mut visit: impl FnMut(&str)) -> Result<(), Fault> {
        for node in self.route.nodes() {
            let wire = node.link.wire().await?;
            let mut cursor = "0".to_owned();
            loop {
                let keys;
                (cursor, keys) = scan(&node, &wire, &cursor, pattern).await?;
                keys.iter().for_each(|key| visit(&String::from_utf8_lossy(key)));
                if cursor == "0" {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Keys without an end. A page is some steps of a walk, so that a large server is not walked through in one call.
    async fn leaks(
        &self,
        pattern: &str,
        listing: &Listing,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Page, Fault> {
        let (nodes, size) = (self.route.nodes(), self.page_size(listing));
        let (mut number, mut cursor) = Mark::parse(listing.after.as_deref()).find(&nodes);
        let mut found = Vec::new();
        for _ in 0..STEPS_MAX {
            let Some(node) = nodes.get(number).filter(|_| found.len() < size) else { break };
            let wire = node.link.wire().await?;
            let mut keys;
            (cursor, keys) = scan(node, &wire, &cursor, pattern).await?;
            keys.retain(|key| wanted(&String::from_utf8_lossy(key)));
            found.extend(endless(node, &wire, keys).await?);
            if cursor == "0" {
                number += 1;
            }
        }
        let next = nodes.get(number).map(|node| Mark { address: name(node), cursor }.to_text());
        Ok(Page::Leaks { found, next })
    }

    async fn list(&self, listing: &Listing) -> Result<Page, Fault> {
        let mut found = BTreeSet::new();
        let after = listing.after.as_deref().unwrap_or("");
        self.walk(&pattern(&listing.prefix, ""), |key| {
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
        for some in found.chunks(TOGETHER) {
            let is_live =
                |seen: &Snapshot| seen.holder_count > 0 || seen.queue_length > 0 || seen.paused_for.is_some();
            snapshots.extend(self.look_at_what_rests(some).await?.into_iter().filter(is_live));
            if snapshots.len() > size {
                snapshots.truncate(size);
                let next = snapshots.last().map(|last| last.resource.key().to_owned());
                return Ok(Page::Resources { snapshots, next });
            }
        }
        Ok(Page::Resources { snapshots, next: None })
    }

    /// The trails of all resources, put together by time.
    async fn audit(&self, listing: &Listing) -> Result<Page, Fault> {
        let mut trails = BTreeSet::new();
        self.walk(&pattern(&listing.prefix, ":audit"), |key| {
            trails.extend(resource_of(key).and_then(|key| Resource::from_key(key).ok()));
        })
        .await?;
        let (size, after) = (self.page_size(listing), listing.after.as_deref().and_then(Place::parse));
        let trails: Vec<Resource> = trails.into_iter().collect();
        let mut entries: Vec<(Place, AuditRecord)> = Vec::new();
        for some in trails.chunks(TOGETHER) {
            let call = |trail| (trail, trail_call(trail, after.as_ref(), size));
            let answers = self.route.run_all(None, some.iter().map(call).collect()).await;
            for (answer, trail) in answers.into_iter().zip(some) {
                let records = read_trail(trail, answer?)?.into_iter();
                entries.extend(records.filter(|(place, _)| after.as_ref().is_none_or(|after| place < after)));
            }
            entries.sort_by(|(a, _), (b, _)| b.cmp(a));
            entries.truncate(size + 1);
        }
        let more = entries.len() > size;
        entries.truncate(size);
        let next = entries.last().filter(|_| more).map(|(place, _)| place.to_text());
        Ok(Page::Audit { records: entries.into_iter().map(|(_, record)| record).collect(), next })
    }
}

/// One step of a walk: where it goes on, and the keys on the way.
async fn scan(
    node: &Node,
    wire: &Arc<Wire>,
    cursor: &str,
    pattern: &str,
) -> Result<(String, Vec<Vec<u8>>), Fault> {
    let mut command = Cmd::new();
    command.arg("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
    let mut fields = Fields::of(node.link.send(wire, &command).await?)?;
    let (next, mut list, mut keys) = (fields.text()?, fields.list()?, Vec::new());
    while let Some(key) = list.bytes()? {
        keys.push(key);
    }
    Ok((next, keys))
}

/// Those of the keys that have no end.
async fn endless(node: &Node, wire: &Arc<Wire>, keys: Vec<Vec<u8>>) -> Result<Vec<Leak>, Fault> {
    let ask = |words: &[&str], key: &[u8]| {
        let mut command = Cmd::new();
        command.arg(words).arg(key);
        command
    };
    let asks: Vec<Cmd> = keys.iter().map(|key| ask(&["PTTL"], key)).collect();
    let ends = node.link.pipe(wire, &asks).await;
    let mut found = Vec::new();
    for (key, end) in keys.into_iter().zip(ends) {
        // What has moved since is for its new node to list.
        let has_moved = matches!(&end, Err(fault) if fault.redirect().is_some());
        if has_moved || number(&end?) != Some(-1) {
            continue;
        }
        let asks = [ask(&["TYPE"], &key), ask(&["OBJECT", "IDLETIME"], &key)];
        let mut answers = node.link.pipe(wire, &asks).await.into_iter();
        let form = match answers.next() {
            Some(Ok(Value::SimpleString(form))) => form,
            _ => String::new(),
        };
        let mut leak = Leak::new(String::from_utf8_lossy(&key), form);
        let idle = answers.next().and_then(Result::ok).as_ref().and_then(number);
        leak.idle = idle.map(|seconds| Duration::from_secs(seconds.unsigned_abs()));
        found.push(leak);
    }
    Ok(found)
}

/// Where a walk for leaks goes on: at which node, and where there.
#[derive(Debug, PartialEq, Eq)]
struct Mark {
    address: String,
    cursor: String,
}

impl Mark {
    fn parse(text: Option<&str>) -> Mark {
        let (cursor, address) = text.unwrap_or("0").split_once('@').unwrap_or((text.unwrap_or("0"), ""));
        Mark { address: address.to_owned(), cursor: cursor.to_owned() }
    }

    fn to_text(&self) -> String {
        format!("{}@{}", self.cursor, self.address)
    }

    /// Which of the nodes it is, and the cursor there. If it has gone, the next one from its beginning.
    fn find(self, nodes: &[Arc<Node>]) -> (usize, String) {
        match nodes.iter().position(|node| name(node) == self.address) {
            Some(number) => (number, self.cursor),
            None if self.address.is_empty() => (0, self.cursor),
            None => {
                let later = nodes.iter().position(|node| name(node) > self.address);
                (later.unwrap_or(nodes.len()), "0".to_owned())
            }
        }
    }
}

fn name(node: &Node) -> String {
    format!("{}:{}", node.address.0, node.address.1)
}

/// Where a record stands among all: microseconds, a number within them, and the resource.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    id: (u64, u64),
    resource: String,
}

impl Place {
    fn parse(text: &str) -> Option<Place> {
        let (id, resource) = text.split_once('|')?;
        Some(Place { id: parse_id(id)?, resource: resource.to_owned() })
    }

    fn to_text(&self) -> String {
        format!("{}-{}|{}", self.id.0, self.id.1, self.resource)
    }
}

fn parse_id(text: &str) -> Option<(u64, u64)> {
    let (time, number) = text.split_once('-')?;
    Some((time.parse().ok()?, number.parse().ok()?))
}

fn trail_call(trail: &Resource, after: Option<&Place>, size: usize) -> Cmd {
    let mut call = Cmd::new();
    let newest = after.map_or_else(|| "+".to_owned(), |place| format!("{}-{}", place.id.0, place.id.1));
    // One more to see whether there are more, one more for the record at the edge itself.
    call.arg("XREVRANGE").arg(Keys::of(trail).audit()).arg(newest).arg("-").arg("COUNT").arg(size + 2);
    call
}

fn read_trail(trail: &Resource, answer: Value) -> Result<Vec<(Place, AuditRecord)>, Fault> {
    let Value::Array(entries) = answer else { return Ok(Vec::new()) };
    entries.into_iter().map(|entry| read_record(trail, &mut Fields::of(entry)?)).collect()
}

fn read_record(trail: &Resource, entry: &mut Fields) -> Result<(Place, AuditRecord), Fault> {
    let id = entry.text()?;
    let id = parse_id(&id).ok_or_else(|| Fault::Strange(format!("{id:.40?} is no id of a stream")))?;
    let mut fields = entry.list()?;
    let mut record = AuditRecord::new(WallTime::from_micros(id.0), trail.clone(), "", false);
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
    Ok((Place { id, resource: trail.key().to_owned() }, record))
}

fn snapshot(resource: &Resource, answer: Value) -> Result<Snapshot, Fault> {
    let mut fields = Fields::of(answer)?;
    let mut snapshot = Snapshot::empty(resource.clone());
    snapshot.capacity = fields.count()?;
    snapshot.holder_count = fields.count()?;
    snapshot.queue_length = fields.count()?;
    snapshot.last_token = fields.maybe_token()?;
    snapshot.paused_for = fields.millis()?;
    snapshot.cursor = fields.cursor()?;
    snapshot.holders = fields.each(Fields::holder)?;
    snapshot.queue = fields.each(Fields::place)?;
    Ok(snapshot)
}

//! The verb `inspect`: one resource, or a search over all keys with `SCAN`.
//!
//! `SCAN` returns keys in no order, and may return a key twice. So the list of resources (`list.rs`) and the audit
//! trail (`audit.rs`) scan all keys, sort what they find, and read the details of one page. The search for leaks
//! does not sort: a page is some steps of the scan, and says where the next page goes on ([`ScanPosition`]).

use std::{sync::Arc, time::Duration};

use leasehold_core::{Error, ErrorKind, Leak, Listing, Page, Query};
use redis::{Cmd, Value};

use crate::{
    backend::Redis,
    cluster::PrimaryNode,
    connection::Connection,
    error::StoreError,
    keys::{BIRTH, pattern, resource_of},
    reply::{Fields, number},
};

/// How many keys the server visits for one step of a scan of all keys: about a millisecond, in which it serves nobody else.
const KEYS_PER_STEP: u32 = 5000;
/// The same in the search for leaks, which asks for the expiry of each key.
const LEAK_KEYS_PER_STEP: u32 = 1000;
/// The most steps of a scan for one page of leaks.
const LEAK_STEPS_MAX: u32 = 20;
/// `PTTL` of a key that does not expire.
const NO_EXPIRY: i64 = -1;
/// The cursor of `SCAN` before the first and after the last step.
const SCAN_START: &str = "0";

impl Redis {
    pub(crate) async fn try_inspect(&self, query: &Query) -> Result<Page, StoreError> {
        match query {
            Query::One(resource) => {
                let mut snapshots = self.read_whole(std::slice::from_ref(resource)).await;
                let snapshot = snapshots.pop().unwrap_or_else(|| Err(StoreError::missing_reply()))?;
                Ok(Page::Resources { snapshots: vec![snapshot], next: None })
            }
            Query::Resources(listing) => self.list(listing).await,
            Query::Audit(listing) => self.audit(listing).await,
            Query::Leaks(listing) => self.leaks(&pattern(&listing.prefix, ""), listing, |_| true).await,
            Query::Foreign { pattern, listing } => {
                // The birth mark of a quorum node has no expiry by design. ADR 0016.
                self.leaks(pattern, listing, |key| resource_of(key).is_none() && key != BIRTH).await
            }
            Query::Nodes => Ok(self.nodes().await),
            other => {
                let message = format!("the redis backend does not support the query {other:?}");
                Err(StoreError::Translated(Error::new(ErrorKind::Unsupported, message)))
            }
        }
    }

    pub(crate) fn page_size(&self, listing: &Listing) -> usize {
        let max = self.info.limits.page;
        if listing.limit == 0 { max as usize } else { listing.limit.min(max) as usize }
    }

    /// Calls `visit` for every key that matches, on every node. A key may come twice.
    pub(crate) async fn scan_all(
        &self,
        pattern: &str,
        mut visit: impl FnMut(&str),
    ) -> Result<(), StoreError> {
        for node in self.router.nodes() {
            let connection = node.connections.get().await?;
            let mut cursor = SCAN_START.to_owned();
            loop {
                let keys;
                (cursor, keys) = scan(&node, &connection, (&cursor, KEYS_PER_STEP), pattern).await?;
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
            (cursor, keys) = scan(node, &connection, (&cursor, LEAK_KEYS_PER_STEP), pattern).await?;
            keys.retain(|key| wanted(&String::from_utf8_lossy(key)));
            found.extend(without_expiry(node, &connection, keys).await?);
            if cursor == SCAN_START {
                index += 1;
            }
        }
        let next = nodes.get(index).map(|node| ScanPosition { node: node.to_string(), cursor }.to_text());
        Ok(Page::Leaks { found, next })
    }
}

/// One step of a scan: the cursor of the next step, and the keys of this one.
async fn scan(
    node: &PrimaryNode,
    connection: &Arc<Connection>,
    (cursor, count): (&str, u32),
    pattern: &str,
) -> Result<(String, Vec<Vec<u8>>), StoreError> {
    let mut command = Cmd::new();
    command.arg("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(count);
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

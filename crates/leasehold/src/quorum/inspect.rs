//! Inspect over a quorum: what a majority of the nodes has.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use leasehold_core::{
    Error, ErrorKind, Limits, Page, Query, Resource, Result, Snapshot,
    quorum_node::{
        NodeEntry, NodePage, NodeView,
        tally::{self, majority},
    },
};
use leasehold_support::race::{Either, first};

use super::{
    NodeRequests, QuorumState,
    checks::{unavailable, unsupported},
};

/// How long nodes may take to answer.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(3);

impl QuorumState {
    pub(super) async fn inspect(self: &Arc<QuorumState>, query: &Query, limits: &Limits) -> Result<Page> {
        match query {
            Query::One(resource) => {
                Ok(Page::Resources { snapshots: vec![self.snapshot(resource).await?], next: None })
            }
            Query::Resources(listing) => {
                let page_size =
                    if listing.limit == 0 { limits.page } else { listing.limit.min(limits.page) } as usize;
                self.list(&listing.prefix, listing.after.as_deref(), page_size).await
            }
            // A quorum takes no operator commands, so there are no records of them.
            Query::Audit(_) => Ok(Page::Audit { records: Vec::new(), next: None }),
            Query::Leaks(_) | Query::Foreign { .. } => Err(unsupported(
                "a quorum cannot look for leaks: look on each node by itself, with redis://HOST",
            )),
            Query::Nodes => Ok(Page::Nodes(self.node_statuses().await)),
            other => Err(unsupported(&format!("a quorum does not answer the query {other:?}"))),
        }
    }

    async fn snapshot(&self, resource: &Resource) -> Result<Snapshot> {
        let mut requests = NodeRequests::new();
        for (number, handle) in self.nodes.iter().enumerate() {
            let (node, resource) = (Arc::clone(&handle.node), resource.clone());
            requests.send(number, async move { node.look(&resource).await });
        }
        let views = self.gather(&mut requests, |views: &[Option<NodeView>]| {
            // Certain as soon as a majority has the same holder, or a majority has none.
            let (holder, _) = tally::majority_view(views);
            let is_free = |view: &&NodeView| view.held.is_none() && view.foreign.is_none();
            let free = views.iter().flatten().filter(is_free).count();
            holder.is_some() || free >= majority(views.len())
        });
        let views = views.await?;
        let (holder, last) = tally::majority_view(&views);
        let mut snapshot = Snapshot::empty(resource.clone());
        snapshot.last_token = holder.as_ref().map(|by| by.token).or(last);
        if let Some(by) = holder {
            (snapshot.capacity, snapshot.holder_count) = (1, 1);
            snapshot.holders.push(by);
        }
        snapshot.foreign = tally::foreign_view(&views);
        Ok(snapshot)
    }

    /// Collects the replies of a majority at least, and of more nodes until `enough` is true.
    async fn gather<T>(
        &self,
        requests: &mut NodeRequests<Result<T>>,
        enough: impl Fn(&[Option<T>]) -> bool,
    ) -> Result<Vec<Option<T>>> {
        let mut replies: Vec<Option<T>> = (0..self.size()).map(|_| None).collect();
        // Why a node refused, if one did: that says more than a node that is silent.
        let mut refusal: Option<(usize, Error)> = None;
        let mut timer = self.environment.sleep(INSPECT_TIMEOUT);
        let count = |replies: &[Option<T>]| replies.iter().flatten().count();
        while !(count(&replies) >= majority(self.size()) && enough(&replies)) {
            match first(requests.next(), &mut timer).await {
                Either::Left(Some((node, reply))) => {
                    self.record_reply(node, &reply);
                    match reply {
                        Ok(reply) => replies[node] = Some(reply),
                        Err(error) if error.kind() != ErrorKind::Unavailable => refusal = Some((node, error)),
                        Err(_) => {}
                    }
                }
                Either::Left(None) | Either::Right(()) => break,
            }
        }
        if count(&replies) >= majority(self.size()) {
            return Ok(replies);
        }
        if let Some((node, why)) = refusal {
            let message = format!("node {}: {why}", self.nodes[node].node.name());
            return Err(Error::new(why.kind(), message).because(why));
        }
        let silent = self.names((0..self.size()).filter(|&node| replies[node].is_none()));
        Err(unavailable(format!(
            "no majority of the nodes answered, so it is unknown what is held: no answer from {silent}"
        )))
    }

    async fn list(
        self: &Arc<QuorumState>,
        prefix: &str,
        after: Option<&str>,
        page_size: usize,
    ) -> Result<Page> {
        let mut requests = NodeRequests::new();
        for (number, handle) in self.nodes.iter().enumerate() {
            let (node, prefix) = (Arc::clone(&handle.node), prefix.to_owned());
            requests.send(number, async move {
                let (mut all, mut next) = (Vec::new(), None::<String>);
                loop {
                    let NodePage { entries, next: more } = node.walk(&prefix, next.as_deref()).await?;
                    // A register that cannot be read has no number.
                    let is_listed = |entry: &NodeEntry| entry.held || entry.last.is_none();
                    all.extend(entries.into_iter().filter(is_listed).map(|entry| entry.resource));
                    next = more;
                    if next.is_none() {
                        return Ok(all);
                    }
                }
            });
        }
        // What a majority of the nodes has is in the lists of every majority.
        let lists = self.gather(&mut requests, |_| true).await?;
        let found: BTreeSet<Resource> = lists.into_iter().flatten().flatten().collect();
        let is_after = |resource: &&Resource| after.is_none_or(|after| resource.key() > after);
        let mut snapshots = Vec::new();
        for resource in found.iter().filter(is_after) {
            let snapshot = match self.snapshot(resource).await {
                // One bad value must not hide the other resources.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    Snapshot::unreadable(resource.clone(), error.to_string())
                }
                snapshot => snapshot?,
            };
            if !snapshot.is_in_use() {
                continue;
            }
            if snapshots.len() == page_size {
                let next = snapshots.last().map(|last: &Snapshot| last.resource.key().to_owned());
                return Ok(Page::Resources { snapshots, next });
            }
            snapshots.push(snapshot);
        }
        Ok(Page::Resources { snapshots, next: None })
    }
}

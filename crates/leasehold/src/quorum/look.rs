//! The verb `inspect`: what a majority sees.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use leasehold_core::{
    Limits, Page, Query, Resource, Result, Snapshot,
    quorum_node::{
        NodePage, NodeView,
        tally::{self, majority},
    },
};
use leasehold_support::race::{Either, first};

use super::{Fan, Shared, refuse::unavailable, unsupported};

/// How long nodes may take to answer whoever looks.
const LOOK_MAX: Duration = Duration::from_secs(3);

impl Shared {
    pub(super) async fn inspect(self: &Arc<Shared>, query: &Query, limits: &Limits) -> Result<Page> {
        match query {
            Query::One(resource) => {
                Ok(Page::Resources { snapshots: vec![self.look(resource).await?], next: None })
            }
            Query::Resources(listing) => {
                let most =
                    if listing.limit == 0 { limits.page } else { listing.limit.min(limits.page) } as usize;
                self.list(&listing.prefix, listing.after.as_deref(), most).await
            }
            // It takes no orders, so there are none to be told of.
            Query::Audit(_) => Ok(Page::Audit { records: Vec::new(), next: None }),
            Query::Leaks(_) | Query::Foreign { .. } => {
                Err(unsupported("look for keys without an end on each node by itself: redis://HOST"))
            }
            other => Err(unsupported(&format!("a quorum does not answer {other:?}"))),
        }
    }

    async fn look(&self, resource: &Resource) -> Result<Snapshot> {
        let mut fan = Fan::new();
        for (number, slot) in self.slots.iter().enumerate() {
            let (node, resource) = (Arc::clone(&slot.node), resource.clone());
            fan.ask(number, async move { node.look(&resource).await });
        }
        let views = self.gather(&mut fan, |views: &[Option<NodeView>]| {
            // Certain as soon as a majority says the same, or nothing can be a majority any more.
            let (holder, _) = tally::majority_view(views);
            let free = views.iter().flatten().filter(|view| view.held.is_none()).count();
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
        Ok(snapshot)
    }

    /// Answers of a majority at least, and of as many more as `enough` wants.
    async fn gather<T>(
        &self,
        fan: &mut Fan<Result<T>>,
        enough: impl Fn(&[Option<T>]) -> bool,
    ) -> Result<Vec<Option<T>>> {
        let mut answers: Vec<Option<T>> = (0..self.size()).map(|_| None).collect();
        let mut timer = self.environment.sleep(LOOK_MAX);
        let count = |answers: &[Option<T>]| answers.iter().flatten().count();
        while !(count(&answers) >= majority(self.size()) && enough(&answers)) {
            match first(fan.next(), &mut timer).await {
                Either::Left(Some((node, answer))) => {
                    self.heard(node, &answer);
                    answers[node] = answer.ok();
                }
                Either::Left(None) | Either::Right(()) => break,
            }
        }
        if count(&answers) >= majority(self.size()) {
            return Ok(answers);
        }
        let silent = self.names((0..self.size()).filter(|&node| answers[node].is_none()));
        Err(unavailable(format!("too few nodes answered to see what a majority has: nothing from {silent}")))
    }

    async fn list(self: &Arc<Shared>, prefix: &str, after: Option<&str>, most: usize) -> Result<Page> {
        let mut fan = Fan::new();
        for (number, slot) in self.slots.iter().enumerate() {
            let (node, prefix) = (Arc::clone(&slot.node), prefix.to_owned());
            fan.ask(number, async move {
                let (mut all, mut next) = (Vec::new(), None::<String>);
                loop {
                    let NodePage { entries, next: more } = node.walk(&prefix, next.as_deref()).await?;
                    all.extend(entries.into_iter().filter(|entry| entry.held).map(|entry| entry.resource));
                    next = more;
                    if next.is_none() {
                        return Ok(all);
                    }
                }
            });
        }
        // A majority's lists have everything that a majority holds.
        let lists = self.gather(&mut fan, |_| true).await?;
        let found: BTreeSet<Resource> = lists.into_iter().flatten().flatten().collect();
        let behind = |resource: &&Resource| after.is_none_or(|after| resource.key() > after);
        let mut snapshots = Vec::new();
        for resource in found.iter().filter(behind) {
            let snapshot = self.look(resource).await?;
            if snapshot.holder_count == 0 {
                continue;
            }
            if snapshots.len() == most {
                let next = snapshots.last().map(|last: &Snapshot| last.resource.key().to_owned());
                return Ok(Page::Resources { snapshots, next });
            }
            snapshots.push(snapshot);
        }
        Ok(Page::Resources { snapshots, next: None })
    }
}

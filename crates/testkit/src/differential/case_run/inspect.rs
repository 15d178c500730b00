//! Snapshots, listings and the audit trail, of the backend and of the model.

use leasehold_core::{AuditRecord, Error, Listing, Page, Query, Snapshot};

use super::{CaseRun, StepOutcome};
use crate::differential::compare;

impl CaseRun<'_> {
    pub(super) async fn inspect(&mut self, resource: u8) -> StepOutcome {
        let at = usize::from(resource);
        let (backend, query) = (self.backend(true), Query::One(self.state.resources[at].clone()));
        let (reply, times) = self.call(backend.inspect(&query)).await;
        self.trace.push(format!("inspect resource {resource}\n      -> {reply:?}"));
        let Some(times) = times else { return Ok(None) };
        let snapshots = reply.map_err(|error| format!("inspect failed: {error:?}"))?.into_snapshots();
        let [backend] = snapshots.as_slice() else { return Err("the query is for one resource".to_owned()) };
        let model = self.state.models[at].snapshot(times.ended, &self.state.resources[at]);
        self.comparison().snapshot(&self.state.tokens[at], &model, backend)?;
        Ok(Some(()))
    }

    pub(super) async fn list(&mut self, limit: u8) -> StepOutcome {
        let (prefix, mut after, mut all): (_, _, Vec<Snapshot>) = (self.state.prefix(), None, Vec::new());
        let backend = self.backend(false);
        let pages = async {
            loop {
                let mut listing = Listing::of(&prefix).limit(u32::from(limit));
                listing.after = after;
                let Page::Resources { snapshots, next } = backend.inspect(&Query::Resources(listing)).await?
                else {
                    return Ok::<_, Error>(None);
                };
                all.extend(snapshots);
                after = next;
                // A case has two resources, so more than two snapshots are an error that need not be read to
                // its end.
                if after.is_none() || all.len() > 2 {
                    return Ok(Some(all));
                }
            }
        };
        let (reply, times) = self.call(pages).await;
        self.trace.push(format!("list in pages of {limit}\n      -> {reply:?}"));
        let Some(times) = times else { return Ok(None) };
        let backend = reply.map_err(|error| format!("inspect failed: {error:?}"))?;
        let backend = backend.ok_or("the query is for resources, and the page has something else")?;
        let is_live = |snapshot: &Snapshot| {
            snapshot.holder_count + snapshot.queue_length > 0 || snapshot.paused_for.is_some()
        };
        let model =
            (0..2).map(|at| (at, self.state.models[at].snapshot(times.ended, &self.state.resources[at])));
        let model: Vec<_> = model.filter(|(_, snapshot)| is_live(snapshot)).collect();
        if model.len() != backend.len() {
            return Err(format!("the model lists {} resources, the backend {}", model.len(), backend.len()));
        }
        for ((at, model), backend) in model.iter().zip(&backend) {
            self.comparison().snapshot(&self.state.tokens[*at], model, backend)?;
        }
        Ok(Some(()))
    }

    pub(super) async fn audit(&mut self, limit: u8) -> StepOutcome {
        let (prefix, mut after, mut all): (_, _, Vec<AuditRecord>) = (self.state.prefix(), None, Vec::new());
        let (backend, expected) = (self.backend(false), self.state.audit.len());
        let pages = async {
            loop {
                let mut listing = Listing::of(&prefix).limit(u32::from(limit));
                listing.after = after;
                let Page::Audit { records, next } = backend.inspect(&Query::Audit(listing)).await? else {
                    return Ok::<_, Error>(None);
                };
                all.extend(records);
                after = next;
                if after.is_none() || all.len() > expected {
                    return Ok(Some(all));
                }
            }
        };
        let (reply, times) = self.call(pages).await;
        self.trace.push(format!("read the audit trail in pages of {limit}\n      -> {reply:?}"));
        if times.is_none() {
            return Ok(None);
        }
        let backend = reply.map_err(|error| format!("inspect failed: {error:?}"))?;
        let backend = backend.ok_or("the query is for the audit trail, and the page has something else")?;
        if backend.len() != expected {
            return Err(format!("{expected} orders were given, the audit trail has {}", backend.len()));
        }
        for (model, backend) in self.state.audit.iter().rev().zip(&backend) {
            compare::record(model, backend)?;
        }
        Ok(Some(()))
    }
}

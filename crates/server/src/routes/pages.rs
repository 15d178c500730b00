//! Pages of the store, without what the caller may not see.
//!
//! A cursor is often the last key of its page. One that the caller may not see is not given away: the last key that it may see
//! serves as well, and without one the next page is read at once.

use leasehold_api::{Problem, ProblemKind};
use leasehold_core::{AuditRecord, Listing, Page, Query, Resource, Snapshot};

use crate::router::Call;

/// How many pages are read for one. A caller with few resources in a large store must not cost a scan of all of it.
const PAGES_MAX: usize = 100;
/// The largest page of the audit trail that is read while there is nothing to see in smaller ones.
const AUDIT_PAGE_MAX: u32 = 1000;

/// Resources in key order.
pub(crate) async fn resources(
    call: &Call<'_>,
    mut listing: Listing,
) -> Result<(Vec<Snapshot>, Option<String>), Problem> {
    let scope = call.caller.scope();
    let wanted = if listing.limit == 0 { usize::MAX } else { listing.limit as usize };
    if !scope.is_everything() {
        listing.limit = 0; // as many as the store gives: most of them may be of others
    }
    for _ in 0..PAGES_MAX {
        let (mut snapshots, next) = match read(call, Query::Resources(listing.clone())).await? {
            Page::Resources { snapshots, next } => (snapshots, next),
            _ => (Vec::new(), None),
        };
        snapshots.retain(|snapshot| scope.has(&snapshot.resource));
        let is_cut = snapshots.len() > wanted;
        snapshots.truncate(wanted);
        if !is_cut && next.as_deref().is_none_or(|next| scope.may_see_cursor(next)) {
            return Ok((snapshots, next));
        }
        if let Some(last) = snapshots.last() {
            let next = last.resource.key().to_owned();
            return Ok((snapshots, Some(next)));
        }
        let Some(next) = next else { return Ok((snapshots, None)) };
        listing = listing.after(next);
    }
    Err(too_many())
}

/// What operators did, newest first; `only` about this resource, whose key is then the prefix of the listing. Such a page is filled as far
/// as there are records: a reader that gets no `next` has all of them.
pub(crate) async fn audit(
    call: &Call<'_>,
    mut listing: Listing,
    only: Option<&Resource>,
) -> Result<(Vec<AuditRecord>, Option<String>), Problem> {
    let scope = call.caller.scope();
    let asked_limit = listing.limit;
    let wanted = asked_limit as usize;
    let mut seen: Vec<AuditRecord> = Vec::new();
    let mut next_page = None;
    for _ in 0..PAGES_MAX {
        let (mut records, next) = match read(call, Query::Audit(listing.clone())).await? {
            Page::Audit { records, next } => (records, next),
            _ => (Vec::new(), None),
        };
        let is_asked_for = |record: &AuditRecord| only.is_none_or(|only| record.resource == *only);
        records.retain(|record| scope.has(&record.resource) && is_asked_for(record));
        // Larger pages while there is nothing to see in them. One with too much is read again as a smaller one: a cursor stands for the
        // end of a page alone.
        let room = match only {
            None => wanted,
            Some(_) => wanted.saturating_sub(seen.len()).max(1),
        };
        if wanted > 0 && records.len() > room {
            listing.limit = (listing.limit / 2).max(u32::try_from(room).unwrap_or(u32::MAX));
            continue;
        }
        seen.append(&mut records);
        let is_full = !seen.is_empty() && (only.is_none() || seen.len() >= wanted);
        match next {
            Some(next) if !is_full || !scope.may_see_cursor(&next) => {
                let larger = listing.limit.saturating_mul(2).min(AUDIT_PAGE_MAX);
                listing.limit = if only.is_none() { larger.max(asked_limit) } else { larger };
                next_page = Some(next.clone());
                listing = listing.after(next);
            }
            next => return Ok((seen, next)),
        }
    }
    // The caller can go on from here.
    match next_page.filter(|next| only.is_some() && scope.may_see_cursor(next)) {
        Some(next) => Ok((seen, Some(next))),
        None => Err(too_many()),
    }
}

async fn read(call: &Call<'_>, query: Query) -> Result<Page, Problem> {
    call.shared.store.inspect(&query).await.map_err(|error| Problem::from(&error))
}

fn too_many() -> Problem {
    Problem::new(ProblemKind::Limit, "the store has too many resources that the caller may not see")
        .with_hint("narrow the list with prefix=, such as your namespace and a colon")
}

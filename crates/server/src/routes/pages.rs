//! Pages of the store, without what the caller may not see.
//!
//! A cursor is often the last key of its page. One that the caller may not see is not given away: the last key that it may see
//! serves as well, and without one the next page is read at once.

use leasehold_api::{Problem, ProblemKind};
use leasehold_core::{AuditRecord, Listing, Page, Query, Snapshot};

use crate::router::Call;

/// How many pages are read for one. A caller with few resources in a large store must not cost a scan of all of it.
const PAGES_MAX: usize = 100;

/// Resources in key order.
pub(crate) async fn resources(
    call: &Call<'_>,
    mut listing: Listing,
) -> Result<(Vec<Snapshot>, Option<String>), Problem> {
    let scope = call.caller.scope();
    for _ in 0..PAGES_MAX {
        let (mut snapshots, next) = match read(call, Query::Resources(listing.clone())).await? {
            Page::Resources { snapshots, next } => (snapshots, next),
            _ => (Vec::new(), None),
        };
        snapshots.retain(|snapshot| scope.has(&snapshot.resource));
        match next {
            Some(next) if !scope.may_see_cursor(&next) => match snapshots.last() {
                Some(last) => {
                    let next = last.resource.key().to_owned();
                    return Ok((snapshots, Some(next)));
                }
                None => listing = listing.after(next),
            },
            next => return Ok((snapshots, next)),
        }
    }
    Err(too_many())
}

/// What operators did, newest first.
pub(crate) async fn audit(
    call: &Call<'_>,
    mut listing: Listing,
) -> Result<(Vec<AuditRecord>, Option<String>), Problem> {
    let scope = call.caller.scope();
    let mut seen = Vec::new();
    for _ in 0..PAGES_MAX {
        let (mut records, next) = match read(call, Query::Audit(listing.clone())).await? {
            Page::Audit { records, next } => (records, next),
            _ => (Vec::new(), None),
        };
        records.retain(|record| scope.has(&record.resource));
        seen.append(&mut records);
        match next {
            Some(next) if seen.is_empty() || !scope.may_see_cursor(&next) => listing = listing.after(next),
            next => return Ok((seen, next)),
        }
    }
    Err(too_many())
}

async fn read(call: &Call<'_>, query: Query) -> Result<Page, Problem> {
    call.shared.store.inspect(&query).await.map_err(|error| Problem::from(&error))
}

fn too_many() -> Problem {
    Problem::new(ProblemKind::Limit, "the store has too many resources that the caller may not see")
        .with_hint("narrow the list with prefix=, such as your namespace and a colon")
}

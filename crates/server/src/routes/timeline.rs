//! `GET /v1/timeline`: what happened to one resource.

use leasehold_api::{
    Problem,
    timeline::{ENTRIES_MAX, TimelineQuery},
};
use leasehold_core::{AuditRecord, Listing, Page, Query, Resource};

use crate::{answer::Answer, bounds, router::Call, sampler::timeline};

/// How many pages of the audit trail are read. Other resources whose keys begin with that of this one are in them, too.
const PAGES_MAX: usize = 20;

pub(crate) async fn answer(call: &Call<'_>, query: TimelineQuery) -> Result<Answer, Problem> {
    let resource = query.resource().map_err(|error| bounds::refused(&error))?;
    call.caller.check_resource(&resource)?;
    // It looks from now on, so that the page that asks next has something to show.
    call.shared.sampler.latest().await?;
    let (audit, is_whole) = audit(call, &resource).await?;
    let seen = call.shared.sampler.seen(&resource);
    Ok(Answer::json(200, &timeline::timeline(&resource, seen, &audit, is_whole)))
}

/// The newest commands about this resource, and whether these are all.
async fn audit(call: &Call<'_>, resource: &Resource) -> Result<(Vec<AuditRecord>, bool), Problem> {
    let mut found: Vec<AuditRecord> = Vec::new();
    let mut listing = Listing::of(resource.key());
    for _ in 0..PAGES_MAX {
        let page = call.shared.store.inspect(&Query::Audit(listing.clone())).await;
        let Page::Audit { records, next } = page.map_err(|error| Problem::from(&error))? else { break };
        found.extend(records.into_iter().filter(|record| record.resource == *resource));
        let Some(next) = next else { return Ok((found, true)) };
        if found.len() >= ENTRIES_MAX {
            break;
        }
        listing = listing.after(next);
    }
    Ok((found, false))
}

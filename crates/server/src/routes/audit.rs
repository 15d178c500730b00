//! `GET /v1/audit`: what operators did, newest first.

use super::pages;
use crate::{answer::Answer, bounds, router::Call};
use leasehold_api::{
    Problem,
    inspect::{AuditPage, AuditQuery},
};

pub(crate) async fn answer(call: &Call<'_>, query: AuditQuery) -> Result<Answer, Problem> {
    let resource = query.resource().map_err(|error| bounds::refused(&error))?;
    if let Some(resource) = &resource {
        call.caller.check_resource(resource)?;
    }
    let (records, next) = pages::audit(call, query.listing(), resource.as_ref()).await?;
    Ok(Answer::json(200, &AuditPage::of(&records, next)))
}

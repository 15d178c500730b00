//! `GET /v1/audit`: what operators did, newest first.

use super::pages;
use crate::{answer::Answer, router::Call};
use leasehold_api::{
    Problem,
    inspect::{AuditPage, AuditQuery},
};

pub(crate) async fn answer(call: &Call<'_>, query: AuditQuery) -> Result<Answer, Problem> {
    let (records, next) = pages::audit(call, query.listing()).await?;
    Ok(Answer::json(200, &AuditPage::of(&records, next)))
}

//! `GET /v1/resources`: straight from the store, in key order.

use super::pages;
use crate::{answer::Answer, router::Call};
use leasehold_api::{
    Problem,
    inspect::{ResourcesPage, ResourcesQuery},
};

pub(crate) async fn answer(call: &Call<'_>, query: ResourcesQuery) -> Result<Answer, Problem> {
    let (snapshots, next) = pages::resources(call, query.listing()).await?;
    Ok(Answer::json(200, &ResourcesPage::of(&snapshots, next, &call.shared.config.store)))
}

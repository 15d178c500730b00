//! `GET /v1/leaks`: keys without an expiry, of leasehold, or with `pattern` of other programs.

use leasehold_api::{
    Problem, ProblemKind,
    inspect::{LeaksPage, LeaksQuery},
};
use leasehold_core::Page;

use crate::{answer::Answer, bounds, router::Call};

pub(crate) async fn answer(call: &Call<'_>, query: LeaksQuery) -> Result<Answer, Problem> {
    // Keys without an expiry may belong to anything in the store, and tell the names of others.
    if !call.caller.scope().is_everything() {
        let detail = "only a token for all namespaces and kinds may list leaks";
        return Err(Problem::new(ProblemKind::Denied, detail));
    }
    let query = query.query().map_err(|error| bounds::refused(&error))?;
    let page = call.shared.store.inspect(&query).await.map_err(|error| Problem::from(&error))?;
    let (found, next) = match page {
        Page::Leaks { found, next } => (found, next),
        _ => (Vec::new(), None),
    };
    Ok(Answer::json(200, &LeaksPage::of(&found, next)))
}

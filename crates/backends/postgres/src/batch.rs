//! What a batch of claims and a batch of releases have in common (ADR 0040).
//!
//! 1. All requests are sent in one statement. It is one transaction, so one commit for all of them.
//! 2. Every row of the reply begins with the number, the resource and the owner of its request. If one of them is wrong, or a
//!    request has no row, nothing of the reply is believed: see [`check_names`].
//! 3. A request that is answered `alone` was not carried out, because another transaction has locked a row that it needs, or
//!    because it fails with an error. It is sent by itself. Requests for the same resource follow each other, in their order;
//!    requests for different resources do not wait for each other.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use leasehold_core::{Error, OwnerToken, Result};
use tokio_postgres::Row;

use crate::{error, reply::Columns as _};

/// The most claims, or releases, in one statement.
pub(crate) const BATCH_MAX: usize = 32;
/// How long a request that is sent alone waits for locked rows. The other requests of its batch are answered with it, so this
/// is what a row that is locked for long costs them. Other clients lock a row for one commit.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

/// The columns with which every row of a batch begins.
mod column {
    pub(super) const NUMBER: usize = 0;
    pub(super) const KEY: usize = 1;
    pub(super) const OWNER: usize = 2;
    pub(super) const SAID: usize = 3;
}
/// Where the columns begin that the single verb returns, too.
pub(crate) const ANSWER: usize = column::SAID;

/// The reasons for `alone` that are expected. Any other one is an error in the database.
const EXPECTED_REASONS: [&str; 5] = ["locked", "full", "missing", "LH001", "LH003"];

/// The resource and the owner of a request in a batch.
pub(crate) type RequestName<'a> = (&'a str, OwnerToken);

/// Checks that every row names its request, and that every request has a row.
///
/// # Errors
/// `Unavailable` with an unknown effect. The connection must not be used again.
pub(crate) fn check_names(rows: &[Row], names: &[RequestName<'_>]) -> Result<()> {
    let mut is_answered = vec![false; names.len()];
    for row in rows {
        let index = index_of(row).filter(|&index| names.get(index).is_some_and(|name| is_named(row, name)));
        let index = index.ok_or_else(|| Error::misdelivered(&"PostgreSQL"))?;
        is_answered[index] = true;
    }
    if is_answered.contains(&false) { Err(Error::misdelivered(&"PostgreSQL")) } else { Ok(()) }
}

fn is_named(row: &Row, (key, owner): &RequestName<'_>) -> bool {
    row.try_get::<_, &str>(column::KEY).is_ok_and(|named| named == *key)
        && row.try_get::<_, &[u8]>(column::OWNER).is_ok_and(|named| named == owner.to_bytes())
}

/// The index of the request that a row belongs to. The rows count from 1.
fn index_of(row: &Row) -> Option<usize> {
    let number: i64 = row.try_get(column::NUMBER).ok()?;
    usize::try_from(number).ok()?.checked_sub(1)
}

/// The rows of each request, in the order of the requests. [`check_names`] has checked the rows.
pub(crate) fn rows_by_request(rows: &[Row], requests: usize) -> Vec<Vec<&Row>> {
    let mut sorted: Vec<Vec<&Row>> = vec![Vec::new(); requests];
    for row in rows {
        if let Some(rows) = index_of(row).and_then(|index| sorted.get_mut(index)) {
            rows.push(row);
        }
    }
    sorted
}

/// Whether the rows of a request say that it was not carried out. `why` is the column with the reason.
pub(crate) fn is_alone(rows: &[&Row], why: usize) -> Result<bool> {
    let Some(row) = rows.first() else { return Ok(false) };
    if row.read::<&str>(column::SAID)? != "alone" {
        return Ok(false);
    }
    let why = row.read::<Option<&str>>(why)?.unwrap_or_default();
    if !EXPECTED_REASONS.contains(&why) {
        tracing::warn!(error = why, "PostgreSQL refused a batch: its requests are sent one by one");
    }
    Ok(true)
}

/// What a request of which `said` is the only answer was answered.
pub(crate) fn said<'a>(rows: &[&'a Row]) -> Result<&'a str> {
    rows.first().ok_or_else(|| error::unexpected_reply("it has no rows"))?.read(column::SAID)
}

/// Groups indexes of requests by their resource, in the order of the requests.
pub(crate) fn by_resource<'a>(
    indexes: impl Iterator<Item = usize>,
    key_of: impl Fn(usize) -> &'a str,
) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for index in indexes {
        match groups.iter_mut().find(|group| key_of(group[0]) == key_of(index)) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

/// Polls all futures until each is ready. The order of polling is fixed.
pub(crate) async fn join_all<'a, T>(futures: Vec<Pin<Box<dyn Future<Output = T> + Send + 'a>>>) -> Vec<T> {
    let mut running: Vec<_> = futures.into_iter().map(Some).collect();
    let mut outputs: Vec<Option<T>> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, output) in running.iter_mut().zip(&mut outputs) {
            if let Some(Poll::Ready(ready)) = future.as_mut().map(|future| future.as_mut().poll(cx)) {
                (*future, *output) = (None, Some(ready));
            }
        }
        if running.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_one_resource_stay_in_their_order() {
        let keys = ["a", "b", "a", "c", "b", "a"];
        let groups = by_resource([0, 1, 2, 4, 5].into_iter(), |index| keys[index]);
        assert_eq!(groups, [vec![0, 2, 5], vec![1, 4]]);
    }
}

//! The verb `renew`: a batch of leases in one statement.
//!
//! 1. Refuse requests that are not allowed, such as one with a note that is too long, without sending them.
//! 2. Send the others in batches of `limits.batch`.
//! 3. Send those that were found nowhere once more. The SQL function `renew` looks at the holders first and at the queue
//!    second, and locks no resource. A claim that is granted between the two looks is found in neither.

use leasehold_core::{Error, GoneReason, RenewRequest, Renewal, Renewed, Result, Verb};
use tokio_postgres::{Row, types::Type};

use crate::{
    NAME,
    backend::Postgres,
    connection::Parameter,
    error,
    reply::{Columns as _, micros},
};

/// The columns of the type `renewal`, in the order of `renew.sql`.
mod column {
    pub(super) const SAID: usize = 1;
    pub(super) const TOKEN: usize = 2;
    pub(super) const REMAINING: usize = 3;
    pub(super) const EVICTING: usize = 4;
    pub(super) const ASKED_FOR: usize = 5;
}

const NOT_THERE: Renewal = Renewal::Gone { why: GoneReason::NotThere };

impl Postgres {
    pub(crate) async fn renew_all(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let in_context =
            |error: Error, request: &RenewRequest| error.at(Verb::Renew, NAME).on(&request.resource);
        let allowed = |request: &RenewRequest| self.check_note(request.note.as_deref()).map(|()| NOT_THERE);
        let mut results: Vec<Result<Renewal>> = requests.iter().map(allowed).collect();
        let sent: Vec<usize> = (0..requests.len()).filter(|&index| results[index].is_ok()).collect();
        self.renew_some(requests, &sent, &mut results).await;
        let is_missing =
            |index: &usize| matches!(results[*index], Ok(Renewal::Gone { why: GoneReason::NotThere }));
        let missing: Vec<usize> = sent.into_iter().filter(is_missing).collect();
        self.renew_some(requests, &missing, &mut results).await;
        let results = results.into_iter().zip(requests);
        results.map(|(result, request)| result.map_err(|error| in_context(error, request))).collect()
    }

    /// Renews the requests at these indexes, and stores their results at the same indexes.
    async fn renew_some(
        &self,
        requests: &[RenewRequest],
        indexes: &[usize],
        results: &mut [Result<Renewal>],
    ) {
        // One batch after the other: a failure of one, such as a timeout, does not touch the results of the others.
        for batch in indexes.chunks(self.connections.info().limits.batch) {
            match self.renew_batch(requests, batch).await {
                Ok(renewals) => {
                    batch.iter().zip(renewals).for_each(|(&index, renewal)| results[index] = renewal);
                }
                Err(error) => batch.iter().for_each(|&index| results[index] = Err(error.clone())),
            }
        }
    }

    async fn renew_batch(&self, requests: &[RenewRequest], batch: &[usize]) -> Result<Vec<Result<Renewal>>> {
        let selected = || batch.iter().map(|&index| &requests[index]);
        let keys: Vec<&str> = selected().map(|request| request.resource.key()).collect();
        let owners: Vec<Vec<u8>> = selected().map(|request| request.owner.to_bytes().to_vec()).collect();
        let ttls: Vec<i64> = selected().map(|request| micros(request.ttl)).collect();
        let notes: Vec<Option<&[u8]>> = selected().map(|request| request.note.as_deref()).collect();
        let parameters: [Parameter<'_>; 4] = [
            (&keys, Type::TEXT_ARRAY),
            (&owners, Type::BYTEA_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&notes, Type::BYTEA_ARRAY),
        ];
        let rows = self.connections.query(&self.statements.renew, &parameters).await?;
        // Rows are matched to requests by their order, so a missing row would shift all results after it.
        if rows.len() != batch.len() {
            let (sent, returned) = (batch.len(), rows.len());
            return Err(error::unexpected_reply(format_args!(
                "renew returned {returned} rows for {sent} requests"
            )));
        }
        Ok(rows.iter().map(renewal).collect())
    }
}

/// Reads a row that `renew` returns.
fn renewal(row: &Row) -> Result<Renewal> {
    Ok(match row.read::<&str>(column::SAID)? {
        "kept" => {
            let mut renewed =
                Renewed::new(row.token(column::TOKEN, "seat.token")?, row.span(column::REMAINING)?);
            renewed.evicting = row.read(column::EVICTING)?;
            renewed.asked = row.finish_request(column::ASKED_FOR)?;
            Renewal::Renewed(renewed)
        }
        "queued" => Renewal::Queued { remaining: row.span(column::REMAINING)? },
        "gone" => NOT_THERE,
        "buried" => Renewal::Gone { why: GoneReason::Cancelled },
        "evicted" => Renewal::Gone { why: GoneReason::Evicted },
        other => {
            let expected = "kept, queued, gone, buried or evicted";
            let what = format_args!("renew returned {other:.20?}, expected {expected}");
            return Err(error::unexpected_reply(what));
        }
    })
}

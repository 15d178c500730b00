//! The verb `renew`: a whole batch in one statement.

use leasehold_core::{Error, ErrorKind, GoneReason, RenewRequest, Renewal, Renewed, Result, Verb};
use tokio_postgres::{Row, types::Type};

use crate::{
    NAME,
    backend::Postgres,
    error,
    reply::{Columns as _, micros},
};

impl Postgres {
    pub(crate) async fn renew_batch(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let at = |error: Error, held: &RenewRequest| error.at(Verb::Renew, NAME).on(&held.resource);
        let mut answers: Vec<Result<Renewal>> = held.iter().map(|held| self.refused(held)).collect();
        let sent: Vec<usize> = (0..held.len()).filter(|&index| answers[index].is_ok()).collect();
        self.renew_some(held, &sent, &mut answers).await;
        // A claim may have moved from the line to a seat between the look at the seats and the look at the line: what
        // was found in neither is looked for once more.
        let missed =
            |index: &usize| matches!(answers[*index], Ok(Renewal::Gone { why: GoneReason::NotThere }));
        let again: Vec<usize> = sent.into_iter().filter(missed).collect();
        self.renew_some(held, &again, &mut answers).await;
        let answers = answers.into_iter().zip(held);
        answers.map(|(answer, held)| answer.map_err(|error| at(error, held))).collect()
    }

    /// Nothing is known of it yet, but that it may be asked.
    fn refused(&self, held: &RenewRequest) -> Result<Renewal> {
        let most = self.link.info().limits.note;
        if held.note.as_ref().is_some_and(|note| note.len() > most) {
            return Err(Error::new(ErrorKind::Limit, format!("a note has at most {most} bytes")));
        }
        Ok(Renewal::Gone { why: GoneReason::NotThere })
    }

    async fn renew_some(&self, held: &[RenewRequest], which: &[usize], answers: &mut [Result<Renewal>]) {
        for chunk in which.chunks(self.link.info().limits.batch) {
            match self.renew_chunk(held, chunk).await {
                Ok(renewals) => {
                    chunk.iter().zip(renewals).for_each(|(&index, answer)| answers[index] = answer);
                }
                Err(error) => chunk.iter().for_each(|&index| answers[index] = Err(error.clone())),
            }
        }
    }

    async fn renew_chunk(&self, held: &[RenewRequest], chunk: &[usize]) -> Result<Vec<Result<Renewal>>> {
        let wanted = || chunk.iter().map(|&index| &held[index]);
        let keys: Vec<&str> = wanted().map(|held| held.resource.key()).collect();
        let owners: Vec<Vec<u8>> = wanted().map(|held| held.owner.to_bytes().to_vec()).collect();
        let ttls: Vec<i64> = wanted().map(|held| micros(held.ttl)).collect();
        let notes: Vec<Option<&[u8]>> = wanted().map(|held| held.note.as_deref()).collect();
        let parameters: [crate::wire::Parameter<'_>; 4] = [
            (&keys, Type::TEXT_ARRAY),
            (&owners, Type::BYTEA_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&notes, Type::BYTEA_ARRAY),
        ];
        let rows = self.link.run(&self.sql.renew, &parameters).await?;
        if rows.len() != chunk.len() {
            return Err(error::strange(format_args!("{} renewals have {} answers", chunk.len(), rows.len())));
        }
        Ok(rows.iter().map(renewal).collect())
    }
}

/// From the columns of `renew`.
fn renewal(row: &Row) -> Result<Renewal> {
    Ok(match row.read::<&str>(1)? {
        "kept" => {
            let mut kept = Renewed::new(row.token(2)?, row.span(3)?);
            kept.evicting = row.read(4)?;
            kept.asked = row.asked(5)?;
            Renewal::Renewed(kept)
        }
        "queued" => Renewal::Queued { remaining: row.span(3)? },
        "gone" => Renewal::Gone { why: GoneReason::NotThere },
        "buried" => Renewal::Gone { why: GoneReason::Cancelled },
        "evicted" => Renewal::Gone { why: GoneReason::Evicted },
        other => return Err(error::strange(format_args!("a renewal is {other:.20?}"))),
    })
}

//! The verb `acquire` for several claims: one call of the SQL function `acquire_many`, so one transaction, one commit and one
//! round trip for all of them. The algorithm is in `sql/acquire_many.sql`, the rules in `batch.rs` and ADR 0040.

use std::pin::Pin;

use leasehold_core::{Claim, Error, FencingToken, Result, Verb, Verdict, WhenBlocked, one_by_one};
use tokio_postgres::types::Type;

use crate::{
    NAME,
    acquire::{NO_TOKEN, client_id, verdict},
    backend::Postgres,
    batch::{ANSWER, BATCH_MAX, RequestName, by_resource, is_alone, join_all, rows_by_request},
    connection::{Parameter, Statement},
    reply::micros,
    schema::Functions,
};

/// The column with the reason why a claim was not carried out, in the order of `acquire_many.sql`.
const WHY: usize = 21;

impl Postgres {
    /// One result for each claim, in their order.
    pub(crate) async fn acquire_all(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        let in_context = |(result, claim): (Result<Verdict>, &Claim)| {
            result.map_err(|error: Error| error.at(Verb::Acquire, NAME).on(&claim.resource))
        };
        // Functions of the previous release have no batches.
        let results = if claims.len() == 1 || self.statements.functions == Functions::Previous {
            one_by_one(claims, |claim| self.try_acquire(claim)).await
        } else {
            let mut results = Vec::with_capacity(claims.len());
            for batch in claims.chunks(BATCH_MAX) {
                results.extend(self.acquire_many(batch).await);
            }
            results
        };
        results.into_iter().zip(claims).map(in_context).collect()
    }

    async fn acquire_many(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        // A claim that takes over from another one never comes with others; if it does, it is sent alone.
        let goes_along =
            |claim: &Claim| self.check_note(claim.note.as_deref()).is_ok() && claim.takes_over_from.is_none();
        let sent: Vec<usize> = (0..claims.len()).filter(|&index| goes_along(&claims[index])).collect();
        let batch: Vec<&Claim> = sent.iter().map(|&index| &claims[index]).collect();
        let mut results: Vec<Option<Result<Verdict>>> = claims.iter().map(|_| None).collect();
        if !batch.is_empty() {
            match self.call_acquire_many(&batch).await {
                Ok(verdicts) => {
                    sent.iter().zip(verdicts).for_each(|(&index, verdict)| results[index] = verdict);
                }
                Err(error) => sent.iter().for_each(|&index| results[index] = Some(Err(error.clone()))),
            }
        }
        let alone = (0..claims.len()).filter(|&index| results[index].is_none());
        let groups = by_resource(alone, |index| claims[index].resource.key());
        let groups = groups.into_iter().map(|group| -> Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(async move {
                let mut verdicts = Vec::new();
                for index in group {
                    verdicts.push((index, self.try_acquire_soon(&claims[index]).await));
                }
                verdicts
            })
        });
        for (index, verdict) in join_all(groups.collect()).await.into_iter().flatten() {
            results[index] = Some(verdict);
        }
        // None is left: the groups had all of them.
        results.into_iter().flatten().collect()
    }

    /// Calls `acquire_many`. `None` for each claim that was not carried out and must be sent alone.
    async fn call_acquire_many(&self, claims: &[&Claim]) -> Result<Vec<Option<Result<Verdict>>>> {
        let numbers =
            |number: fn(&Claim) -> i64| claims.iter().map(|claim| number(claim)).collect::<Vec<i64>>();
        let keys: Vec<&str> = claims.iter().map(|claim| claim.resource.key()).collect();
        let owners: Vec<Vec<u8>> = claims.iter().map(|claim| claim.owner.to_bytes().to_vec()).collect();
        let weights = numbers(|claim| i64::from(claim.share.weight()));
        let capacities = numbers(|claim| i64::from(claim.share.capacity()));
        let (ttls, place_ttls) =
            (numbers(|claim| micros(claim.ttl)), numbers(|claim| micros(claim.place_ttl)));
        let queues: Vec<bool> = claims.iter().map(|claim| claim.when_blocked == WhenBlocked::Queue).collect();
        let floors = numbers(|claim| claim.floor.map_or(NO_TOKEN, FencingToken::as_i64));
        let notes: Vec<Option<&[u8]>> = claims.iter().map(|claim| claim.note.as_deref()).collect();
        let holders: Vec<String> = claims.iter().map(|claim| claim.stored_holder().to_string()).collect();
        let (channel, queue_max) = (self.listener.channel(), i64::from(self.connections.info().limits.queue));
        let client_ids: Vec<Option<i64>> = claims.iter().map(|claim| client_id(claim)).collect();
        let listener = self.listener.lock();
        let parameters: [Parameter<'_>; 14] = [
            (&keys, Type::TEXT_ARRAY),
            (&owners, Type::BYTEA_ARRAY),
            (&weights, Type::INT8_ARRAY),
            (&capacities, Type::INT8_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&place_ttls, Type::INT8_ARRAY),
            (&queues, Type::BOOL_ARRAY),
            (&floors, Type::INT8_ARRAY),
            (&notes, Type::BYTEA_ARRAY),
            (&holders, Type::TEXT_ARRAY),
            (&channel, Type::TEXT),
            (&queue_max, Type::INT8),
            (&client_ids, Type::INT8_ARRAY),
            (&listener, Type::INT4),
        ];
        let names: Vec<RequestName<'_>> =
            claims.iter().map(|claim| (claim.resource.key(), claim.owner)).collect();
        let statement =
            Statement { names: &names, ..Statement::new(&self.statements.acquire_many, &parameters) };
        let rows = self.connections.execute(&statement).await?;
        let read = |rows: Vec<&_>| match is_alone(&rows, WHY) {
            Ok(true) => None,
            Ok(false) => Some(verdict(&rows, ANSWER)),
            Err(error) => Some(Err(error)),
        };
        Ok(rows_by_request(&rows, claims.len()).into_iter().map(read).collect())
    }
}

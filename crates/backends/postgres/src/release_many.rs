//! The verb `release` for several requests: one call of the SQL function `release_many`, so one transaction, one commit and
//! one round trip for all of them. The algorithm is in `sql/release_many.sql`, the rules in `batch.rs` and ADR 0040.

use std::pin::Pin;

use leasehold_core::{Error, ReleaseRequest, Released, Result, Verb, one_by_one};
use tokio_postgres::{Row, types::Type};

use crate::{
    NAME,
    backend::Postgres,
    batch::{BATCH_MAX, RequestName, by_resource, is_alone, join_all, rows_by_request, said},
    connection::{Parameter, Statement},
    release::{keep_micros, released, tombstone_micros},
    schema::Functions,
};

/// The column with the reason why a request was not carried out, in the order of `release_many.sql`.
const WHY: usize = 4;

impl Postgres {
    /// One result for each request, in their order.
    pub(crate) async fn release_all(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        let in_context = |(result, request): (Result<Released>, &ReleaseRequest)| {
            result.map_err(|error: Error| error.at(Verb::Release, NAME).on(&request.resource))
        };
        // Functions of the previous release have no batches.
        let results = if requests.len() == 1 || self.statements.functions == Functions::Previous {
            one_by_one(requests, |request| self.try_release(request)).await
        } else {
            let mut results = Vec::with_capacity(requests.len());
            for batch in requests.chunks(BATCH_MAX) {
                results.extend(self.release_many(batch).await);
            }
            results
        };
        results.into_iter().zip(requests).map(in_context).collect()
    }

    async fn release_many(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        let mut results = match self.call_release_many(requests).await {
            Ok(results) => results,
            Err(error) => requests.iter().map(|_| Some(Err(error.clone()))).collect(),
        };
        let alone = (0..requests.len()).filter(|&index| results[index].is_none());
        let groups = by_resource(alone, |index| requests[index].resource.key());
        let groups = groups.into_iter().map(|group| -> Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(async move {
                let mut released = Vec::new();
                for index in group {
                    released.push((index, self.try_release_soon(&requests[index]).await));
                }
                released
            })
        });
        for (index, released) in join_all(groups.collect()).await.into_iter().flatten() {
            results[index] = Some(released);
        }
        // None is left: the groups had all of them.
        results.into_iter().flatten().collect()
    }

    /// Calls `release_many`. `None` for each request that was not carried out and must be sent alone.
    async fn call_release_many(&self, requests: &[ReleaseRequest]) -> Result<Vec<Option<Result<Released>>>> {
        let keys: Vec<&str> = requests.iter().map(|request| request.resource.key()).collect();
        let owners: Vec<Vec<u8>> = requests.iter().map(|request| request.owner.to_bytes().to_vec()).collect();
        let tombstones: Vec<i64> = requests.iter().map(tombstone_micros).collect();
        let keeps: Vec<i64> = requests.iter().map(keep_micros).collect();
        let parameters: [Parameter<'_>; 4] = [
            (&keys, Type::TEXT_ARRAY),
            (&owners, Type::BYTEA_ARRAY),
            (&tombstones, Type::INT8_ARRAY),
            (&keeps, Type::INT8_ARRAY),
        ];
        let names: Vec<RequestName<'_>> =
            requests.iter().map(|request| (request.resource.key(), request.owner)).collect();
        let statement =
            Statement { names: &names, ..Statement::new(&self.statements.release_many, &parameters) };
        let rows = self.connections.execute(&statement).await?;
        let read = |rows: Vec<&Row>| match is_alone(&rows, WHY) {
            Ok(true) => None,
            Ok(false) => Some(said(&rows).and_then(released)),
            Err(error) => Some(Err(error)),
        };
        Ok(rows_by_request(&rows, requests.len()).into_iter().map(read).collect())
    }
}

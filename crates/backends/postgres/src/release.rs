//! The verb `release` for one request: one call of the SQL function `release`. Several requests: see `release_many.rs`.

use leasehold_core::{ReleaseRequest, Released, Result};
use tokio_postgres::types::Type;

use crate::{
    acquire::NO_TOMBSTONE,
    backend::Postgres,
    batch::PATIENCE,
    connection::Parameter,
    error,
    reply::{Columns as _, first_row, micros},
};

impl Postgres {
    pub(crate) async fn try_release(&self, request: &ReleaseRequest) -> Result<Released> {
        let (key, owner) = (request.resource.key(), request.owner.to_bytes());
        let (tombstone, keep) = (tombstone_micros(request), keep_micros(request));
        let parameters: [Parameter<'_>; 4] = [
            (&key, Type::TEXT),
            (&owner.as_slice(), Type::BYTEA),
            (&tombstone, Type::INT8),
            (&keep, Type::INT8),
        ];
        let rows = self.connections.query(&self.statements.release, &parameters).await?;
        let was_there: bool = first_row(&rows)?.read(0)?;
        Ok(if was_there { Released::Now } else { Released::AlreadyGone })
    }

    /// As [`try_release`](Postgres::try_release), but does not wait for locked rows for longer than [`PATIENCE`]: other
    /// requests of the same batch were carried out, and their callers wait for this one.
    pub(crate) async fn try_release_soon(&self, request: &ReleaseRequest) -> Result<Released> {
        let (key, owner) = (request.resource.key(), request.owner.to_bytes());
        let (tombstone, keep) = (tombstone_micros(request), keep_micros(request));
        let patience_ms = i64::try_from(PATIENCE.as_millis()).unwrap_or(i64::MAX);
        let parameters: [Parameter<'_>; 5] = [
            (&key, Type::TEXT),
            (&owner.as_slice(), Type::BYTEA),
            (&tombstone, Type::INT8),
            (&keep, Type::INT8),
            (&patience_ms, Type::INT8),
        ];
        let rows = self.connections.query(&self.statements.release_soon, &parameters).await?;
        released(first_row(&rows)?.read(0)?)
    }
}

pub(crate) fn tombstone_micros(request: &ReleaseRequest) -> i64 {
    request.tombstone.map_or(NO_TOMBSTONE, micros)
}

pub(crate) fn keep_micros(request: &ReleaseRequest) -> i64 {
    // 0 means "do not keep", so a time below a microsecond is rounded up.
    request.keep_for.filter(|keep| !keep.is_zero()).map_or(0, |keep| micros(keep).max(1))
}

/// Reads what `release_many` and `release_soon` return.
pub(crate) fn released(said: &str) -> Result<Released> {
    match said {
        "released" => Ok(Released::Now),
        "gone" => Ok(Released::AlreadyGone),
        "locked" => Err(error::row_locked(PATIENCE)),
        other => Err(error::unexpected_reply(format_args!(
            "release returned {other:.20?}, expected released or gone"
        ))),
    }
}

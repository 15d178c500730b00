//! The verb `release`: one call of the SQL function `release`.

use leasehold_core::{ReleaseRequest, Released, Result};
use tokio_postgres::types::Type;

use crate::{
    acquire::NO_TOMBSTONE,
    backend::Postgres,
    connection::Parameter,
    reply::{Columns as _, first_row, micros},
};

impl Postgres {
    pub(crate) async fn try_release(&self, request: &ReleaseRequest) -> Result<Released> {
        let (key, owner) = (request.resource.key(), request.owner.to_bytes());
        let tombstone = request.tombstone.map_or(NO_TOMBSTONE, micros);
        // 0 means "do not keep", so a time below a microsecond is rounded up.
        let keep = request.keep_for.filter(|keep| !keep.is_zero()).map_or(0, |keep| micros(keep).max(1));
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
}

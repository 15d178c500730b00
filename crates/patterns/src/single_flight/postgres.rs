//! Values in PostgreSQL.

use std::time::Duration;

use leasehold::{Pass, Resource, Result, async_trait};
use leasehold_fence::postgres::{self as fence, ConnectionManager};
use tokio_postgres::types::Type;

use super::cache::{Cache, CacheEntry};
use crate::postgres::{Parameters, create, execute, rows, with_row_count};

/// Values in PostgreSQL, through a [`ConnectionManager`]: one connection, which is opened again when it is lost (ADR
/// 0030). Each call is one or two statements, so it works behind a pool in transaction mode.
#[derive(Clone, Debug)]
pub struct PostgresCache {
    connections: ConnectionManager,
}

/// How many expired values are removed with each new one.
const REMOVED_PER_PUT: i64 = 16;

impl PostgresCache {
    /// The SQL that creates the table, if you do not want to call [`PostgresCache::create`].
    pub const SCHEMA: &'static str = include_str!("../../sql/postgres/cache.sql");

    /// The values in this database. The tables must exist: see [`PostgresCache::create`], or
    /// [`SCHEMA`](Self::SCHEMA) and the schema of the fence.
    pub fn new(connections: ConnectionManager) -> PostgresCache {
        PostgresCache { connections }
    }

    /// Creates the tables if they do not exist.
    ///
    /// # Errors
    /// `Denied` if the role has no permission to create them.
    pub async fn create(&self) -> Result<()> {
        create(&self.connections, Self::SCHEMA).await?;
        fence::setup(&**self.connections.connection().await?).await
    }
}

const GET: &str = "SELECT entry FROM leasehold_cache WHERE key = $1 AND ends > clock_timestamp()";

/// The fence admits the pass in the statement that stores the value. If it refuses, the whole statement
/// fails.
const PUT: &str = "
    INSERT INTO leasehold_cache (key, entry, ends)
    SELECT $1::text, $2::bytea, clock_timestamp() + $3::float8 * interval '1 millisecond' FROM leasehold_fence.admit($4)
    ON CONFLICT (key) DO UPDATE SET entry = excluded.entry, ends = excluded.ends";

const SWEEP: &str = "
    DELETE FROM leasehold_cache WHERE key IN (SELECT key FROM leasehold_cache
    WHERE ends <= clock_timestamp() ORDER BY ends LIMIT $1 FOR UPDATE SKIP LOCKED)";

#[async_trait]
impl Cache for PostgresCache {
    async fn get(&self, resource: &Resource) -> Result<Option<CacheEntry>> {
        let found = rows(&self.connections, GET, &[(&resource.key(), Type::TEXT)]).await?;
        found.first().map(|row| CacheEntry::read(row.get(0))).transpose()
    }

    async fn put(&self, entry: &CacheEntry, keep: Duration, pass: &Pass) -> Result<()> {
        let (entry, keep) = (entry.write(), keep.as_secs_f64() * 1000.0);
        let shown = pass.to_string();
        let connection = self.connections.connection().await?;
        let key = pass.resource.key();
        let parameters: Parameters<'_> =
            &[(&key, Type::TEXT), (&entry, Type::BYTEA), (&keep, Type::FLOAT8), (&shown, Type::TEXT)];
        let put = connection.query_checked(&with_row_count(PUT, parameters.len() + 1), parameters).await?;
        put.map_err(|error| fence::explain(error, pass))?;
        if let Err(error) = execute(&self.connections, SWEEP, &[(&REMOVED_PER_PUT, Type::INT8)]).await {
            tracing::warn!(target: "leasehold", %error, "cannot remove expired values from the cache");
        }
        Ok(())
    }
}

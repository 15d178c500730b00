//! Values in PostgreSQL.

use std::time::Duration;

use leasehold::{Pass, Resource, Result, async_trait};
use leasehold_fence::postgres::{self as fence, ConnectionManager};
use tokio_postgres::types::Type;

use super::cache::{Cache, Entry};
use crate::postgres::{Values, counting, create, execute, rows};

/// Values in PostgreSQL, by a [`ConnectionManager`]: one connection, made anew when it is lost. Each call is one statement or two, so a
/// pool in transaction mode is fine.
#[derive(Clone, Debug)]
pub struct PostgresCache {
    link: ConnectionManager,
}

/// How many values that are over are removed with each new one.
const SWEPT: i64 = 16;

impl PostgresCache {
    /// The SQL that makes the table, for those who make their tables themselves.
    pub const SCHEMA: &'static str = include_str!("../../sql/postgres/cache.sql");

    /// In this database. The tables have to be there: [`PostgresCache::create`], or [`SCHEMA`](Self::SCHEMA) and that of the
    /// fence.
    pub fn new(link: ConnectionManager) -> PostgresCache {
        PostgresCache { link }
    }

    /// Makes the tables if they are not there.
    ///
    /// # Errors
    /// `Denied` if the role may not.
    pub async fn create(&self) -> Result<()> {
        create(&self.link, Self::SCHEMA).await?;
        fence::setup(&**self.link.connection().await?).await
    }
}

const GET: &str = "SELECT entry FROM leasehold_cache WHERE key = $1 AND ends > clock_timestamp()";

/// The pass is admitted in the statement that stores the value: before it, or the statement comes to nothing.
const PUT: &str = "
    INSERT INTO leasehold_cache (key, entry, ends)
    SELECT $1::text, $2::bytea, clock_timestamp() + $3::float8 * interval '1 millisecond' FROM leasehold_fence.admit($4, $5, $6)
    ON CONFLICT (key) DO UPDATE SET entry = excluded.entry, ends = excluded.ends";

const SWEEP: &str = "
    DELETE FROM leasehold_cache WHERE key IN (SELECT key FROM leasehold_cache
    WHERE ends <= clock_timestamp() ORDER BY ends LIMIT $1 FOR UPDATE SKIP LOCKED)";

#[async_trait]
impl Cache for PostgresCache {
    async fn get(&self, resource: &Resource) -> Result<Option<Entry>> {
        let found = rows(&self.link, GET, &[(&resource.key(), Type::TEXT)]).await?;
        found.first().map(|row| Entry::read(row.get(0))).transpose()
    }

    async fn put(&self, entry: &Entry, keep: Duration, pass: &Pass) -> Result<()> {
        let (entry, keep) = (entry.write(), keep.as_secs_f64() * 1000.0);
        let (resource, token) = (pass.resource.to_string(), pass.token.as_i64());
        let owner = pass.owner.map(|owner| owner.to_string());
        let wire = self.link.connection().await?;
        let key = pass.resource.key();
        let values: Values<'_> = &[
            (&key, Type::TEXT),
            (&entry, Type::BYTEA),
            (&keep, Type::FLOAT8),
            (&resource, Type::TEXT),
            (&token, Type::INT8),
            (&owner, Type::TEXT),
        ];
        let put = wire.query_checked(&counting(PUT, values.len() + 1), values).await?;
        put.map_err(|error| fence::explain(error, pass))?;
        if let Err(error) = execute(&self.link, SWEEP, &[(&SWEPT, Type::INT8)]).await {
            tracing::warn!(target: "leasehold", %error, "old values cannot be removed");
        }
        Ok(())
    }
}

//! Values in PostgreSQL.

use std::{fmt, time::Duration};

use leasehold::{Pass, Resource, Result, async_trait};
use leasehold_fence::postgres as fence;
use tokio::sync::Mutex;
use tokio_postgres::Client;

use super::cache::{Cache, Entry};
use crate::postgres::{create, interpret};

/// Values in PostgreSQL, through a connection of yours.
pub struct PostgresCache {
    client: Mutex<Client>,
}

/// How many values that are over are removed with each new one.
const SWEPT: i64 = 16;

impl PostgresCache {
    /// The SQL that makes the table, for those who make their tables themselves.
    pub const SCHEMA: &'static str = include_str!("../../sql/postgres/cache.sql");

    /// Uses a connection, whose task you drive. The tables have to be there: [`PostgresCache::create`], or
    /// [`SCHEMA`](Self::SCHEMA) and that of the fence.
    pub fn new(client: Client) -> PostgresCache {
        PostgresCache { client: Mutex::new(client) }
    }

    /// Makes the tables if they are not there.
    ///
    /// # Errors
    /// `Denied` if the role may not.
    pub async fn create(&self) -> Result<()> {
        let client = self.client.lock().await;
        create(&client, Self::SCHEMA).await?;
        fence::setup(&*client).await
    }
}

impl fmt::Debug for PostgresCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresCache").finish_non_exhaustive()
    }
}

#[async_trait]
impl Cache for PostgresCache {
    async fn get(&self, resource: &Resource) -> Result<Option<Entry>> {
        let sql = "SELECT entry FROM leasehold_cache WHERE key = $1 AND ends > clock_timestamp()";
        let row = self.client.lock().await.query_opt(sql, &[&resource.key()]).await;
        let row = row.map_err(|error| interpret(&error))?;
        row.map(|row| Entry::read(row.get(0))).transpose()
    }

    async fn put(&self, entry: &Entry, keep: Duration, pass: &Pass) -> Result<()> {
        let (entry, keep) = (entry.write(), keep.as_secs_f64() * 1000.0);
        let mut client = self.client.lock().await;
        let transaction = client.transaction().await.map_err(|error| interpret(&error))?;
        fence::admit(&transaction, pass).await?;
        let write = async {
            let sweep = "DELETE FROM leasehold_cache WHERE key IN (SELECT key FROM leasehold_cache
                         WHERE ends <= clock_timestamp() ORDER BY ends LIMIT $1 FOR UPDATE SKIP LOCKED)";
            transaction.execute(sweep, &[&SWEPT]).await?;
            let sql = "INSERT INTO leasehold_cache (key, entry, ends)
                       VALUES ($1, $2, clock_timestamp() + $3 * interval '1 millisecond')
                       ON CONFLICT (key) DO UPDATE SET entry = excluded.entry, ends = excluded.ends";
            transaction.execute(sql, &[&pass.resource.key(), &entry, &keep]).await?;
            transaction.commit().await
        };
        write.await.map_err(|error| interpret(&error))
    }
}

//! Values in a SQLite file.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold::{Pass, Resource, Result, async_trait};
use leasehold_fence::sqlite as fence;
use rusqlite::{OptionalExtension as _, params};

use super::cache::{Cache, CacheEntry};
use crate::numbers::millis;
use crate::sqlite::{NOW, SqliteFile, interpret};

/// Values in a SQLite file, for the processes of one host.
#[derive(Clone)]
pub struct SqliteCache {
    file: SqliteFile,
    path: PathBuf,
}

/// How many expired values are removed with each new one.
const REMOVED_PER_PUT: u32 = 16;

impl SqliteCache {
    /// Opens the file, and creates the tables if they do not exist.
    ///
    /// # Errors
    /// `Unavailable` if the file cannot be opened; `Corrupt` if it is not a database.
    pub async fn open(path: impl AsRef<Path>) -> Result<SqliteCache> {
        let path = path.as_ref().to_owned();
        let prepare = |connection: &rusqlite::Connection| {
            let created = connection.execute_batch(include_str!("../../sql/sqlite/cache.sql"));
            created.map_err(|error| interpret(&error))?;
            fence::setup(connection)
        };
        Ok(SqliteCache { file: SqliteFile::open(&path, prepare).await?, path })
    }
}

impl fmt::Debug for SqliteCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteCache").field("path", &self.path).finish_non_exhaustive()
    }
}

#[async_trait]
impl Cache for SqliteCache {
    async fn get(&self, resource: &Resource) -> Result<Option<CacheEntry>> {
        let key = resource.key().to_owned();
        let found = self.file.transact(move |transaction| {
            let sql = format!("SELECT entry FROM leasehold_cache WHERE key = ?1 AND ends > {NOW}");
            let mut statement = transaction.prepare_cached(&sql).map_err(|error| interpret(&error))?;
            let found = statement.query_row([key], |row| row.get::<_, Vec<u8>>(0)).optional();
            found.map_err(|error| interpret(&error))
        });
        found.await?.as_deref().map(CacheEntry::read).transpose()
    }

    async fn put(&self, entry: &CacheEntry, keep: Duration, pass: &Pass) -> Result<()> {
        let (entry, pass) = (entry.write(), pass.clone());
        let keep = millis(keep);
        let put = self.file.transact(move |transaction| {
            fence::admit(transaction, &pass)?;
            let write = || {
                let sweep = format!(
                    "DELETE FROM leasehold_cache WHERE key IN
                     (SELECT key FROM leasehold_cache WHERE ends <= {NOW} ORDER BY ends LIMIT ?1)"
                );
                transaction.prepare_cached(&sweep)?.execute([REMOVED_PER_PUT])?;
                let sql = format!(
                    "INSERT INTO leasehold_cache (key, entry, ends) VALUES (?1, ?2, {NOW} + ?3)
                     ON CONFLICT (key) DO UPDATE SET entry = excluded.entry, ends = excluded.ends"
                );
                transaction.prepare_cached(&sql)?.execute(params![pass.resource.key(), entry, keep])
            };
            write().map(drop).map_err(|error| interpret(&error))
        });
        put.await
    }
}

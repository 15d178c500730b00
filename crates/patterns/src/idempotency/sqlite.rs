//! Keys in a SQLite file.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold::{Result, async_trait};
use rusqlite::{OptionalExtension as _, Row, Transaction, params};

use super::{BeginOutcome, Fingerprint, KeyClaim, KeyLifetimes, KeyRow, Keys, check_key, check_response};
use crate::numbers::{millis, read_token};
use crate::sqlite::{NOW, SqliteFile, interpret};

/// Keys in a SQLite file, for the processes of one host.
#[derive(Clone)]
pub struct SqliteKeys {
    file: SqliteFile,
    path: PathBuf,
}

/// A day, in milliseconds.
const DAY_MILLIS: u32 = 86_400_000;
/// How many expired keys are removed with each new one.
const REMOVED_PER_BEGIN: u32 = 16;

impl SqliteKeys {
    /// Opens the file, and creates the table if it does not exist.
    ///
    /// # Errors
    /// `Unavailable` if the file cannot be opened; `Corrupt` if it is not a database.
    pub async fn open(path: impl AsRef<Path>) -> Result<SqliteKeys> {
        let path = path.as_ref().to_owned();
        let prepare = |connection: &rusqlite::Connection| {
            let created = connection.execute_batch(include_str!("../../sql/sqlite/keys.sql"));
            created.map_err(|error| interpret(&error))
        };
        Ok(SqliteKeys { file: SqliteFile::open(&path, prepare).await?, path })
    }

    async fn transact<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.file.transact(move |transaction| work(transaction).map_err(|error| interpret(&error))).await
    }
}

impl fmt::Debug for SqliteKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteKeys").field("path", &self.path).finish_non_exhaustive()
    }
}

#[async_trait]
impl Keys for SqliteKeys {
    async fn begin(
        &self,
        key: &str,
        payload: &Fingerprint,
        lifetimes: &KeyLifetimes,
    ) -> Result<BeginOutcome> {
        check_key(key)?;
        let (name, payload, hold) = (key.to_owned(), *payload, millis(lifetimes.hold));
        let begun = self.transact(move |transaction| {
            sweep(transaction, &name)?;
            let claimed: Option<i64> = claim_key(transaction, &name, &payload, hold)?;
            Ok(match claimed {
                Some(token) => Ok(token),
                None => Err(find_row(transaction, &name)?),
            })
        });
        match begun.await? {
            Ok(number) => {
                Ok(BeginOutcome::Claimed(KeyClaim { key: key.to_owned(), token: read_token(number)? }))
            }
            Err(row) => Ok(row.outcome_for(&payload)),
        }
    }

    async fn renew(&self, claim: &KeyClaim, lifetimes: &KeyLifetimes) -> Result<bool> {
        let (claim, hold) = (claim.clone(), millis(lifetimes.hold));
        self.transact(move |transaction| {
            let sql = format!(
                "UPDATE leasehold_keys SET until = max(until, {NOW} + ?3)
                 WHERE key = ?1 AND token = ?2 AND answer IS NULL"
            );
            let parameters = params![claim.key, claim.token.get().cast_signed(), hold];
            Ok(transaction.prepare_cached(&sql)?.execute(parameters)? == 1)
        })
        .await
    }

    async fn finish(&self, claim: &KeyClaim, response: &[u8], lifetimes: &KeyLifetimes) -> Result<bool> {
        check_response(response)?;
        let (claim, response, keep) = (claim.clone(), response.to_owned(), millis(lifetimes.keep));
        self.transact(move |transaction| {
            let sql = format!(
                "UPDATE leasehold_keys SET answer = ?3, until = {NOW} + ?4
                 WHERE key = ?1 AND token = ?2 AND answer IS NULL"
            );
            let parameters = params![claim.key, claim.token.get().cast_signed(), response, keep];
            Ok(transaction.prepare_cached(&sql)?.execute(parameters)? == 1)
        })
        .await
    }

    async fn abandon(&self, claim: &KeyClaim) -> Result<bool> {
        let claim = claim.clone();
        self.transact(move |transaction| {
            // The row stays, so that the next token is greater.
            let sql = "UPDATE leasehold_keys SET until = 0 WHERE key = ?1 AND token = ?2 AND answer IS NULL";
            let parameters = params![claim.key, claim.token.get().cast_signed()];
            Ok(transaction.prepare_cached(sql)?.execute(parameters)? == 1)
        })
        .await
    }
}

/// Claims a key: inserts a row, or takes one over whose time is up. A row without a response, whose request
/// may have had an effect, needs the same payload; `until = 0` marks one that was given up.
fn claim_key(
    transaction: &Transaction<'_>,
    key: &str,
    payload: &Fingerprint,
    hold: i64,
) -> rusqlite::Result<Option<i64>> {
    let micros = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
    let sql = format!(
        "INSERT INTO leasehold_keys (key, payload, token, answer, until) VALUES (?1, ?2, {micros}, NULL, {NOW} + ?3)
         ON CONFLICT (key) DO UPDATE SET payload = excluded.payload, answer = NULL, until = excluded.until,
             token = max(token + 1, excluded.token)
         WHERE until <= {NOW} AND (answer IS NOT NULL OR payload = excluded.payload OR until = 0)
         RETURNING token"
    );
    let parameters = params![key, payload.as_bytes(), hold];
    transaction.prepare_cached(&sql)?.query_row(parameters, |row| row.get(0)).optional()
}

/// The row of a key that could not be claimed.
fn find_row(transaction: &Transaction<'_>, key: &str) -> rusqlite::Result<KeyRow> {
    let sql = format!("SELECT payload, answer, until - {NOW} FROM leasehold_keys WHERE key = ?1");
    transaction.prepare_cached(&sql)?.query_row([key], |row: &Row<'_>| {
        let left: i64 = row.get(2)?;
        let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
        Ok(KeyRow { payload: row.get(0)?, response: row.get(1)?, left })
    })
}

/// Removes other keys whose response has expired, and claims that ran out more than a day ago.
fn sweep(transaction: &Transaction<'_>, but: &str) -> rusqlite::Result<()> {
    let sql = format!(
        "DELETE FROM leasehold_keys WHERE key <> ?1 AND key IN
         (SELECT key FROM leasehold_keys WHERE until <= {NOW} - {DAY_MILLIS} OR (answer IS NOT NULL AND until <= {NOW})
          ORDER BY until LIMIT ?2)"
    );
    transaction.prepare_cached(&sql)?.execute(params![but, REMOVED_PER_BEGIN]).map(drop)
}

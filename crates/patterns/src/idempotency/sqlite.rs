//! Keys in a SQLite file.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold::{Result, async_trait};
use rusqlite::{OptionalExtension as _, Row, Transaction, params};

use super::{Begun, Fingerprint, Keys, Run, Seen, Terms, check_answer, check_key};
use crate::numbers::{millis, token};
use crate::sqlite::{File, NOW, interpret};

/// Keys in a SQLite file, for the processes of one host.
#[derive(Clone)]
pub struct SqliteKeys {
    file: File,
    path: PathBuf,
}

/// How many keys that are over are removed with each new one.
const SWEPT: u32 = 16;

impl SqliteKeys {
    /// Opens the file, and makes the table if it is not there.
    ///
    /// # Errors
    /// `Unavailable` if the file cannot be opened; `Corrupt` if it is no database.
    pub async fn open(path: impl AsRef<Path>) -> Result<SqliteKeys> {
        let path = path.as_ref().to_owned();
        let prepare = |connection: &rusqlite::Connection| {
            let made = connection.execute_batch(include_str!("../../sql/sqlite/keys.sql"));
            made.map_err(|error| interpret(&error))
        };
        Ok(SqliteKeys { file: File::open(&path, prepare).await?, path })
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.file.with(move |transaction| work(transaction).map_err(|error| interpret(&error))).await
    }
}

impl fmt::Debug for SqliteKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteKeys").field("path", &self.path).finish_non_exhaustive()
    }
}

#[async_trait]
impl Keys for SqliteKeys {
    async fn begin(&self, key: &str, payload: &Fingerprint, terms: &Terms) -> Result<Begun> {
        check_key(key)?;
        let (name, payload, hold) = (key.to_owned(), *payload, millis(terms.hold));
        let begun = self.with(move |transaction| {
            sweep(transaction, &name)?;
            let minted: Option<i64> = claim(transaction, &name, &payload, hold)?;
            Ok(match minted {
                Some(token) => Ok(token),
                None => Err(look(transaction, &name)?),
            })
        });
        match begun.await? {
            Ok(number) => Ok(Begun::Run(Run { key: key.to_owned(), token: token(number)? })),
            Err(seen) => Ok(seen.judge(&payload)),
        }
    }

    async fn renew(&self, run: &Run, terms: &Terms) -> Result<bool> {
        let (run, hold) = (run.clone(), millis(terms.hold));
        self.with(move |transaction| {
            let sql = format!(
                "UPDATE leasehold_keys SET until = max(until, {NOW} + ?3)
                 WHERE key = ?1 AND token = ?2 AND answer IS NULL"
            );
            let values = params![run.key, run.token.get().cast_signed(), hold];
            Ok(transaction.prepare_cached(&sql)?.execute(values)? == 1)
        })
        .await
    }

    async fn finish(&self, run: &Run, answer: &[u8], terms: &Terms) -> Result<bool> {
        check_answer(answer)?;
        let (run, answer, keep) = (run.clone(), answer.to_owned(), millis(terms.keep));
        self.with(move |transaction| {
            let sql = format!(
                "UPDATE leasehold_keys SET answer = ?3, until = {NOW} + ?4
                 WHERE key = ?1 AND token = ?2 AND answer IS NULL"
            );
            let values = params![run.key, run.token.get().cast_signed(), answer, keep];
            Ok(transaction.prepare_cached(&sql)?.execute(values)? == 1)
        })
        .await
    }

    async fn abandon(&self, run: &Run) -> Result<bool> {
        let run = run.clone();
        self.with(move |transaction| {
            // The row stays, so that the token goes on.
            let sql = "UPDATE leasehold_keys SET until = 0 WHERE key = ?1 AND token = ?2 AND answer IS NULL";
            let values = params![run.key, run.token.get().cast_signed()];
            Ok(transaction.prepare_cached(sql)?.execute(values)? == 1)
        })
        .await
    }
}

/// A new row, one whose request may be taken over with the same payload, or one that is forgotten.
fn claim(
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
    let values = params![key, payload.as_bytes(), hold];
    transaction.prepare_cached(&sql)?.query_row(values, |row| row.get(0)).optional()
}

fn look(transaction: &Transaction<'_>, key: &str) -> rusqlite::Result<Seen> {
    let sql = format!("SELECT payload, answer, until - {NOW} FROM leasehold_keys WHERE key = ?1");
    transaction.prepare_cached(&sql)?.query_row([key], |row: &Row<'_>| {
        let left: i64 = row.get(2)?;
        let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
        Ok(Seen { payload: row.get(0)?, answer: row.get(1)?, left })
    })
}

/// Others whose time is over. One that ran and was never ended stays a day longer, for whoever repeats it.
fn sweep(transaction: &Transaction<'_>, but: &str) -> rusqlite::Result<()> {
    let sql = format!(
        "DELETE FROM leasehold_keys WHERE key <> ?1 AND key IN
         (SELECT key FROM leasehold_keys WHERE until <= {NOW} - 86400000 OR (answer IS NOT NULL AND until <= {NOW})
          ORDER BY until LIMIT ?2)"
    );
    transaction.prepare_cached(&sql)?.execute(params![but, SWEPT]).map(drop)
}

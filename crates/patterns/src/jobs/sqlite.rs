//! Jobs in a SQLite file.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold::{Result, async_trait};
use rusqlite::{OptionalExtension as _, Row, Transaction, params};

use super::{JobClaim, JobRecord, JobState, Jobs, NewJob, WORKER_VANISHED};
use crate::numbers::{millis, read_token};
use crate::sqlite::{NOW, SqliteFile, interpret};

/// Jobs in a SQLite file, for the processes of one host.
#[derive(Clone)]
pub struct SqliteJobs {
    file: SqliteFile,
    path: PathBuf,
}

/// SQL: microseconds since 1970, by the clock of the host.
const NOW_MICROS: &str = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";

impl SqliteJobs {
    /// Opens the file, and creates the table if it does not exist.
    ///
    /// # Errors
    /// `Unavailable` if the file cannot be opened; `Corrupt` if it is not a database.
    pub async fn open(path: impl AsRef<Path>) -> Result<SqliteJobs> {
        let path = path.as_ref().to_owned();
        let prepare = |connection: &rusqlite::Connection| {
            let created = connection.execute_batch(include_str!("../../sql/sqlite/jobs.sql"));
            created.map_err(|error| interpret(&error))
        };
        Ok(SqliteJobs { file: SqliteFile::open(&path, prepare).await?, path })
    }

    /// Adds a job in a transaction of your own. The job exists if, and only if, the transaction is committed.
    ///
    /// # Errors
    /// As [`Jobs::add`].
    pub fn add_in(transaction: &Transaction<'_>, job: &NewJob) -> Result<Option<i64>> {
        job.check()?;
        add(transaction, job).map_err(|error| interpret(&error))
    }

    async fn transact<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        self.file.transact(move |transaction| work(transaction).map_err(|error| interpret(&error))).await
    }
}

impl fmt::Debug for SqliteJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteJobs").field("path", &self.path).finish_non_exhaustive()
    }
}

#[async_trait]
impl Jobs for SqliteJobs {
    async fn add(&self, job: &NewJob) -> Result<Option<i64>> {
        job.check()?;
        let job = job.clone();
        self.transact(move |transaction| add(transaction, &job)).await
    }

    async fn claim(&self, queue: &str, worker: &str, hold: Duration) -> Result<Option<JobClaim>> {
        let (queue, worker) = (queue.to_owned(), worker.to_owned());
        self.transact(move |transaction| {
            mark_vanished_dead(transaction, &queue)?;
            let sql = format!("queue = ?3 AND due <= {NOW} ORDER BY due, id LIMIT 1");
            take(transaction, &sql, &worker, hold, &queue)
        })
        .await?
        .transpose()
    }

    async fn claim_one(&self, id: i64, worker: &str, hold: Duration) -> Result<Option<JobClaim>> {
        let worker = worker.to_owned();
        self.transact(move |transaction| {
            let sql = format!("id = ?3 AND due <= {NOW} AND attempts < attempts_max");
            take(transaction, &sql, &worker, hold, &id)
        })
        .await?
        .transpose()
    }

    async fn due(&self, queue: &str, limit: u32) -> Result<Vec<i64>> {
        let queue = queue.to_owned();
        self.transact(move |transaction| {
            let sql = format!(
                "SELECT id FROM leasehold_jobs WHERE queue = ?1 AND due <= {NOW} ORDER BY due, id LIMIT ?2"
            );
            transaction.prepare_cached(&sql)?.query_map(params![queue, limit], |row| row.get(0))?.collect()
        })
        .await
    }

    async fn heartbeat(&self, claim: &JobClaim, hold: Duration) -> Result<bool> {
        let change = ClaimedChange { set: format!("due = {NOW} + ?4"), condition: format!("due > {NOW}") };
        self.change_claimed(claim, change, millis(hold)).await
    }

    async fn complete(&self, claim: &JobClaim, result: &[u8]) -> Result<bool> {
        let set = "state = 'done', due = NULL, version = version + 1, result = ?4, error = NULL".to_owned();
        self.change_claimed(claim, ClaimedChange::always(set), result.to_owned()).await
    }

    async fn fail(&self, claim: &JobClaim, error: &str, retry_in: Duration) -> Result<bool> {
        let retry_in = millis(retry_in);
        let set = format!(
            "state = CASE WHEN attempts < attempts_max THEN 'ready' ELSE 'dead' END,
             due = CASE WHEN attempts < attempts_max THEN {NOW} + {retry_in} END,
             version = version + 1, error = ?4"
        );
        self.change_claimed(claim, ClaimedChange::always(set), error.to_owned()).await
    }

    async fn get(&self, id: i64) -> Result<Option<JobRecord>> {
        let read = self.transact(move |transaction| {
            let sql = format!("SELECT {COLUMNS} FROM leasehold_jobs WHERE id = ?1");
            transaction.prepare_cached(&sql)?.query_row([id], read_record).optional()
        });
        read.await?.transpose()
    }

    async fn dead(&self, queue: &str, limit: u32) -> Result<Vec<JobRecord>> {
        let queue = queue.to_owned();
        let read = self.transact(move |transaction| {
            mark_vanished_dead(transaction, &queue)?;
            let sql = format!(
                "SELECT {COLUMNS} FROM leasehold_jobs WHERE queue = ?1 AND state = 'dead'
                 ORDER BY changed_at DESC, id DESC LIMIT ?2"
            );
            let mut statement = transaction.prepare_cached(&sql)?;
            statement.query_map(params![queue, limit], read_record)?.collect::<rusqlite::Result<Vec<_>>>()
        });
        read.await?.into_iter().collect()
    }

    async fn revive(&self, id: i64) -> Result<bool> {
        self.transact(move |transaction| {
            let sql = format!(
                "UPDATE leasehold_jobs SET state = 'ready', due = {NOW}, attempts = 0, version = version + 1,
                 changed_at = {NOW} WHERE id = ?1 AND state = 'dead'"
            );
            Ok(transaction.execute(&sql, [id])? == 1)
        })
        .await
    }
}

/// A change of a row that a worker has claimed. `?4` is its value.
struct ClaimedChange {
    set: String,
    condition: String,
}

impl ClaimedChange {
    fn always(set: String) -> ClaimedChange {
        ClaimedChange { set, condition: "true".to_owned() }
    }
}

impl SqliteJobs {
    /// Changes the row if the claim is still valid: no other worker has claimed the job since.
    async fn change_claimed(
        &self,
        claim: &JobClaim,
        change: ClaimedChange,
        value: impl rusqlite::ToSql + Send + 'static,
    ) -> Result<bool> {
        let (id, version, token) = (claim.id, claim.version, claim.token.get().cast_signed());
        self.transact(move |transaction| {
            let ClaimedChange { set, condition } = change;
            let sql = format!(
                "UPDATE leasehold_jobs SET {set}, changed_at = {NOW} WHERE {condition} AND
                 id = ?1 AND version = ?2 AND last_fencing_token = ?3 AND state = 'running'"
            );
            Ok(transaction.prepare_cached(&sql)?.execute(params![id, version, token, value])? == 1)
        })
        .await
    }
}

fn add(transaction: &Transaction<'_>, job: &NewJob) -> rusqlite::Result<Option<i64>> {
    let sql = format!(
        "INSERT INTO leasehold_jobs (queue, key, payload, state, due, attempts_max, added_at, changed_at)
         VALUES (?1, ?2, ?3, 'ready', {NOW} + ?4, ?5, {NOW}, {NOW})
         ON CONFLICT (queue, key) DO NOTHING RETURNING id"
    );
    let parameters = params![job.queue, job.key, job.payload, millis(job.delay), job.attempts_max];
    transaction.prepare_cached(&sql)?.query_row(parameters, |row| row.get(0)).optional()
}

/// Marks jobs as dead whose worker vanished in the last attempt.
fn mark_vanished_dead(transaction: &Transaction<'_>, queue: &str) -> rusqlite::Result<()> {
    let sql = format!(
        "UPDATE leasehold_jobs SET state = 'dead', due = NULL, version = version + 1, error = ?2, changed_at = {NOW}
         WHERE queue = ?1 AND due <= {NOW} AND attempts >= attempts_max"
    );
    transaction.prepare_cached(&sql)?.execute(params![queue, WORKER_VANISHED]).map(drop)
}

/// Claims the job that a condition finds. The inner error is about the stored token.
fn take(
    transaction: &Transaction<'_>,
    condition: &str,
    worker: &str,
    hold: Duration,
    parameter: &dyn rusqlite::ToSql,
) -> rusqlite::Result<Option<Result<JobClaim>>> {
    let sql = format!(
        "UPDATE leasehold_jobs SET state = 'running', worker = ?1, due = {NOW} + ?2, attempts = attempts + 1,
         version = version + 1, last_fencing_token = max(last_fencing_token + 1, {NOW_MICROS}), changed_at = {NOW}
         WHERE id = (SELECT id FROM leasehold_jobs WHERE {condition})
         RETURNING id, payload, attempts, version, last_fencing_token"
    );
    let read_claim = |row: &Row<'_>| {
        let (id, payload, attempt, version) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        Ok(read_token(row.get(4)?).map(|token| JobClaim { id, payload, attempt, version, token }))
    };
    transaction
        .prepare_cached(&sql)?
        .query_row(params![worker, millis(hold), parameter], read_claim)
        .optional()
}

const COLUMNS: &str = "id, key, state, attempts, worker, result, error";

fn read_record(row: &Row<'_>) -> rusqlite::Result<Result<JobRecord>> {
    let state = JobState::read(&row.get::<_, String>(2)?);
    let (id, key, attempts, worker) = (row.get(0)?, row.get(1)?, row.get(3)?, row.get(4)?);
    let (result, error) = (row.get(5)?, row.get(6)?);
    Ok(state.map(|state| JobRecord { id, key, state, attempts, worker, result, error }))
}

//! Jobs in PostgreSQL.

use std::time::Duration;

use leasehold::{Result, async_trait};
use leasehold_fence::postgres::ConnectionManager;
use tokio_postgres::{
    Row, Transaction,
    types::{ToSql, Type},
};

use super::{JobClaim, JobRecord, JobState, Jobs, NewJob, WORKER_VANISHED};
use crate::numbers::{millis, read_token};
use crate::postgres::{Parameters, create, execute, interpret, rows};

/// Jobs in PostgreSQL, through a [`ConnectionManager`]: one connection, which is opened again when it is lost (ADR 0030).
/// Workers skip rows that another worker is about to claim (`SKIP LOCKED`). Each call is one statement, so it
/// works behind a pool in transaction mode.
#[derive(Clone, Debug)]
pub struct PostgresJobs {
    connections: ConnectionManager,
}

impl PostgresJobs {
    /// The SQL that creates the table, if you do not want to call [`PostgresJobs::create`].
    pub const SCHEMA: &'static str = include_str!("../../sql/postgres/jobs.sql");

    /// The jobs in this database. The table must exist: see [`PostgresJobs::create`] and
    /// [`SCHEMA`](Self::SCHEMA).
    pub fn new(connections: ConnectionManager) -> PostgresJobs {
        PostgresJobs { connections }
    }

    /// Creates the table if it does not exist.
    ///
    /// # Errors
    /// `Denied` if the role has no permission to create it.
    pub async fn create(&self) -> Result<()> {
        create(&self.connections, Self::SCHEMA).await
    }

    /// Adds a job in a transaction of your own. The job exists if, and only if, the transaction is committed.
    ///
    /// # Errors
    /// As [`Jobs::add`].
    pub async fn add_in(transaction: &Transaction<'_>, job: &NewJob) -> Result<Option<i64>> {
        let parameters = AddParameters::new(job)?;
        let added =
            transaction.query_typed(ADD, &parameters.of(job)).await.map_err(|error| interpret(&error))?;
        Ok(added.first().map(|row| row.get(0)))
    }

    async fn rows(&self, sql: &str, parameters: Parameters<'_>) -> Result<Vec<Row>> {
        rows(&self.connections, sql, parameters).await
    }

    async fn changes_one(&self, sql: &str, parameters: Parameters<'_>) -> Result<bool> {
        execute(&self.connections, sql, parameters).await.map(|changed| changed == 1)
    }

    /// Changes the row if the claim is still valid. The first three parameters are those of
    /// [`CLAIM_IS_VALID`].
    async fn change_claimed(&self, sql: &str, claim: &JobClaim, rest: Parameters<'_>) -> Result<bool> {
        let token = claim.token.get().cast_signed();
        let claimed: Parameters<'_> =
            &[(&claim.id, Type::INT8), (&claim.version, Type::INT8), (&token, Type::INT8)];
        self.changes_one(sql, &[claimed, rest].concat()).await
    }

    /// Claims the first due job that matches a condition.
    async fn take(&self, condition: &str, parameters: Parameters<'_>) -> Result<Option<JobClaim>> {
        let sql = format!(
            "UPDATE leasehold_jobs SET state = 'running', worker = $1, attempts = attempts + 1, version = version + 1,
             due = clock_timestamp() + $2 * interval '1 millisecond', changed_at = clock_timestamp(),
             last_fencing_token = greatest(last_fencing_token + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
             WHERE id = (SELECT id FROM leasehold_jobs WHERE {condition} AND due <= statement_timestamp()
                         AND attempts < attempts_max ORDER BY due, id LIMIT 1 FOR UPDATE SKIP LOCKED)
             RETURNING id, payload, attempts, version, last_fencing_token"
        );
        let read_claim = |row: &Row| {
            let attempt = u32::try_from(row.get::<_, i32>(2)).unwrap_or(u32::MAX);
            let token = read_token(row.get(4))?;
            Ok(JobClaim { id: row.get(0), payload: row.get(1), attempt, version: row.get(3), token })
        };
        self.rows(&sql, parameters).await?.first().map(read_claim).transpose()
    }

    /// Marks jobs as dead whose worker vanished in the last attempt.
    async fn mark_vanished_dead(&self, queue: &str) -> Result<()> {
        let sql = "UPDATE leasehold_jobs SET state = 'dead', due = NULL, version = version + 1, error = $2,
                   changed_at = clock_timestamp()
                   WHERE queue = $1 AND due <= statement_timestamp() AND attempts >= attempts_max";
        execute(&self.connections, sql, &[(&queue, Type::TEXT), (&WORKER_VANISHED, Type::TEXT)])
            .await
            .map(drop)
    }
}

/// The claim is still valid: no other worker has claimed the job since.
const CLAIM_IS_VALID: &str = "id = $1 AND version = $2 AND last_fencing_token = $3 AND state = 'running'";

#[async_trait]
impl Jobs for PostgresJobs {
    async fn add(&self, job: &NewJob) -> Result<Option<i64>> {
        let parameters = AddParameters::new(job)?;
        Ok(self.rows(ADD, &parameters.of(job)).await?.first().map(|row| row.get(0)))
    }

    async fn claim(&self, queue: &str, worker: &str, hold: Duration) -> Result<Option<JobClaim>> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "milliseconds are small enough, and PostgreSQL multiplies intervals by floats"
        )]
        let hold = millis(hold) as f64;
        match self
            .take("queue = $3", &[(&worker, Type::TEXT), (&hold, Type::FLOAT8), (&queue, Type::TEXT)])
            .await?
        {
            Some(claim) => Ok(Some(claim)),
            None => self.mark_vanished_dead(queue).await.map(|()| None),
        }
    }

    async fn claim_one(&self, id: i64, worker: &str, hold: Duration) -> Result<Option<JobClaim>> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "milliseconds are small enough, and PostgreSQL multiplies intervals by floats"
        )]
        let hold = millis(hold) as f64;
        self.take("id = $3", &[(&worker, Type::TEXT), (&hold, Type::FLOAT8), (&id, Type::INT8)]).await
    }

    async fn due(&self, queue: &str, limit: u32) -> Result<Vec<i64>> {
        let sql = "SELECT id FROM leasehold_jobs WHERE queue = $1 AND due <= statement_timestamp()
                   AND attempts < attempts_max ORDER BY due, id LIMIT $2";
        let parameters: Parameters<'_> = &[(&queue, Type::TEXT), (&i64::from(limit), Type::INT8)];
        Ok(self.rows(sql, parameters).await?.iter().map(|row| row.get(0)).collect())
    }

    async fn heartbeat(&self, claim: &JobClaim, hold: Duration) -> Result<bool> {
        let sql = format!(
            "UPDATE leasehold_jobs SET due = clock_timestamp() + $4 * interval '1 millisecond',
             changed_at = clock_timestamp() WHERE due > clock_timestamp() AND {CLAIM_IS_VALID}"
        );
        #[expect(
            clippy::cast_precision_loss,
            reason = "milliseconds are small enough, and PostgreSQL multiplies intervals by floats"
        )]
        let hold = millis(hold) as f64;
        self.change_claimed(&sql, claim, &[(&hold, Type::FLOAT8)]).await
    }

    async fn complete(&self, claim: &JobClaim, result: &[u8]) -> Result<bool> {
        let sql = format!(
            "UPDATE leasehold_jobs SET state = 'done', due = NULL, version = version + 1, result = $4, error = NULL,
             changed_at = clock_timestamp() WHERE {CLAIM_IS_VALID}"
        );
        self.change_claimed(&sql, claim, &[(&result, Type::BYTEA)]).await
    }

    async fn fail(&self, claim: &JobClaim, error: &str, retry_in: Duration) -> Result<bool> {
        let sql = format!(
            "UPDATE leasehold_jobs SET version = version + 1, error = $4, changed_at = clock_timestamp(),
             state = CASE WHEN attempts < attempts_max THEN 'ready' ELSE 'dead' END,
             due = CASE WHEN attempts < attempts_max THEN clock_timestamp() + $5 * interval '1 millisecond' END
             WHERE {CLAIM_IS_VALID}"
        );
        #[expect(
            clippy::cast_precision_loss,
            reason = "milliseconds are small enough, and PostgreSQL multiplies intervals by floats"
        )]
        let retry_in = millis(retry_in) as f64;
        // PostgreSQL cannot store NUL in a text.
        let error = error.replace('\0', " ");
        self.change_claimed(&sql, claim, &[(&error, Type::TEXT), (&retry_in, Type::FLOAT8)]).await
    }

    async fn get(&self, id: i64) -> Result<Option<JobRecord>> {
        let sql = format!("SELECT {COLUMNS} FROM leasehold_jobs WHERE id = $1");
        self.rows(&sql, &[(&id, Type::INT8)]).await?.first().map(read_record).transpose()
    }

    async fn dead(&self, queue: &str, limit: u32) -> Result<Vec<JobRecord>> {
        self.mark_vanished_dead(queue).await?;
        let sql = format!(
            "SELECT {COLUMNS} FROM leasehold_jobs WHERE queue = $1 AND state = 'dead'
             ORDER BY changed_at DESC, id DESC LIMIT $2"
        );
        let parameters: Parameters<'_> = &[(&queue, Type::TEXT), (&i64::from(limit), Type::INT8)];
        self.rows(&sql, parameters).await?.iter().map(read_record).collect()
    }

    async fn revive(&self, id: i64) -> Result<bool> {
        let sql = "UPDATE leasehold_jobs SET state = 'ready', due = clock_timestamp(), attempts = 0,
                   version = version + 1, changed_at = clock_timestamp() WHERE id = $1 AND state = 'dead'";
        self.changes_one(sql, &[(&id, Type::INT8)]).await
    }
}

const ADD: &str = "
    INSERT INTO leasehold_jobs (queue, key, payload, state, due, attempts_max)
    VALUES ($1, $2, $3, 'ready', clock_timestamp() + $4 * interval '1 millisecond', $5)
    ON CONFLICT (queue, key) DO NOTHING RETURNING id";

/// Values of a new job, converted to the types of the database.
struct AddParameters {
    delay: f64,
    attempts_max: i32,
}

impl AddParameters {
    fn new(job: &NewJob) -> Result<AddParameters> {
        job.check()?;
        #[expect(
            clippy::cast_precision_loss,
            reason = "milliseconds are small enough, and PostgreSQL multiplies intervals by floats"
        )]
        let delay = millis(job.delay) as f64;
        Ok(AddParameters { delay, attempts_max: i32::try_from(job.attempts_max).unwrap_or(i32::MAX) })
    }

    fn of<'a>(&'a self, job: &'a NewJob) -> [(&'a (dyn ToSql + Sync), Type); 5] {
        [
            (&job.queue, Type::TEXT),
            (&job.key, Type::TEXT),
            (&job.payload, Type::BYTEA),
            (&self.delay, Type::FLOAT8),
            (&self.attempts_max, Type::INT4),
        ]
    }
}

const COLUMNS: &str = "id, key, state, attempts, worker, result, error";

fn read_record(row: &Row) -> Result<JobRecord> {
    Ok(JobRecord {
        id: row.get(0),
        key: row.get(1),
        state: JobState::read(row.get(2))?,
        attempts: u32::try_from(row.get::<_, i32>(3)).unwrap_or(u32::MAX),
        worker: row.get(4),
        result: row.get(5),
        error: row.get(6),
    })
}

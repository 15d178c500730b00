//! Jobs in PostgreSQL.

use std::time::Duration;

use leasehold::{Result, async_trait};
use leasehold_fence::postgres::ConnectionManager;
use tokio_postgres::{
    Row, Transaction,
    types::{ToSql, Type},
};

use super::{Claim, JobRecord, JobState, Jobs, NewJob, VANISHED};
use crate::numbers::{millis, token};
use crate::postgres::{Values, create, execute, interpret, rows};

/// Jobs in PostgreSQL, by a [`ConnectionManager`]: one connection, made anew when it is lost. Workers pass over rows that another one
/// is just taking (`SKIP LOCKED`). Each call is one statement, so a pool in transaction mode is fine.
#[derive(Clone, Debug)]
pub struct PostgresJobs {
    link: ConnectionManager,
}

impl PostgresJobs {
    /// The SQL that makes the table, for those who make their tables themselves.
    pub const SCHEMA: &'static str = include_str!("../../sql/postgres/jobs.sql");

    /// In this database. The table has to be there: [`PostgresJobs::create`], or [`SCHEMA`](Self::SCHEMA).
    pub fn new(link: ConnectionManager) -> PostgresJobs {
        PostgresJobs { link }
    }

    /// Makes the table if it is not there.
    ///
    /// # Errors
    /// `Denied` if the role may not.
    pub async fn create(&self) -> Result<()> {
        create(&self.link, Self::SCHEMA).await
    }

    /// Adds a job in a transaction of your own: it is there if, and only if, the rest of the transaction is.
    ///
    /// # Errors
    /// As [`Jobs::add`].
    pub async fn add_in(transaction: &Transaction<'_>, job: &NewJob) -> Result<Option<i64>> {
        let add = Add::of(job)?;
        let added =
            transaction.query_typed(ADD, &add.values(job)).await.map_err(|error| interpret(&error))?;
        Ok(added.first().map(|row| row.get(0)))
    }

    async fn rows(&self, sql: &str, values: Values<'_>) -> Result<Vec<Row>> {
        rows(&self.link, sql, values).await
    }

    async fn changes_one(&self, sql: &str, values: Values<'_>) -> Result<bool> {
        execute(&self.link, sql, values).await.map(|changed| changed == 1)
    }

    /// Changes the row if it is still what was claimed: the first three values are those that [`OURS`] names.
    async fn change_ours(&self, sql: &str, claim: &Claim, rest: Values<'_>) -> Result<bool> {
        let token = claim.token.get().cast_signed();
        let ours: Values<'_> = &[(&claim.id, Type::INT8), (&claim.version, Type::INT8), (&token, Type::INT8)];
        self.changes_one(sql, &[ours, rest].concat()).await
    }

    async fn take(&self, which: &str, values: Values<'_>) -> Result<Option<Claim>> {
        let sql = format!(
            "UPDATE leasehold_jobs SET state = 'running', worker = $1, attempts = attempts + 1, version = version + 1,
             due = clock_timestamp() + $2 * interval '1 millisecond', changed_at = clock_timestamp(),
             last_fencing_token = greatest(last_fencing_token + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
             WHERE id = (SELECT id FROM leasehold_jobs WHERE {which} AND due <= statement_timestamp()
                         AND attempts < attempts_max ORDER BY due, id LIMIT 1 FOR UPDATE SKIP LOCKED)
             RETURNING id, payload, attempts, version, last_fencing_token"
        );
        let claimed = |row: &Row| {
            let attempt = u32::try_from(row.get::<_, i32>(2)).unwrap_or(u32::MAX);
            let token = token(row.get(4))?;
            Ok(Claim { id: row.get(0), payload: row.get(1), attempt, version: row.get(3), token })
        };
        self.rows(&sql, values).await?.first().map(claimed).transpose()
    }

    /// Those whose last worker did not come back are dead.
    async fn bury_vanished(&self, queue: &str) -> Result<()> {
        let sql = "UPDATE leasehold_jobs SET state = 'dead', due = NULL, version = version + 1, error = $2,
                   changed_at = clock_timestamp()
                   WHERE queue = $1 AND due <= statement_timestamp() AND attempts >= attempts_max";
        execute(&self.link, sql, &[(&queue, Type::TEXT), (&VANISHED, Type::TEXT)]).await.map(drop)
    }
}

/// The row is still what was claimed.
const OURS: &str = "id = $1 AND version = $2 AND last_fencing_token = $3 AND state = 'running'";

#[async_trait]
impl Jobs for PostgresJobs {
    async fn add(&self, job: &NewJob) -> Result<Option<i64>> {
        let add = Add::of(job)?;
        Ok(self.rows(ADD, &add.values(job)).await?.first().map(|row| row.get(0)))
    }

    async fn claim(&self, queue: &str, worker: &str, hold: Duration) -> Result<Option<Claim>> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "milliseconds; PostgreSQL multiplies intervals by floats"
        )]
        let hold = millis(hold) as f64;
        match self
            .take("queue = $3", &[(&worker, Type::TEXT), (&hold, Type::FLOAT8), (&queue, Type::TEXT)])
            .await?
        {
            Some(claim) => Ok(Some(claim)),
            None => self.bury_vanished(queue).await.map(|()| None),
        }
    }

    async fn claim_one(&self, id: i64, worker: &str, hold: Duration) -> Result<Option<Claim>> {
        #[expect(clippy::cast_precision_loss, reason = "as above")]
        let hold = millis(hold) as f64;
        self.take("id = $3", &[(&worker, Type::TEXT), (&hold, Type::FLOAT8), (&id, Type::INT8)]).await
    }

    async fn due(&self, queue: &str, most: u32) -> Result<Vec<i64>> {
        let sql = "SELECT id FROM leasehold_jobs WHERE queue = $1 AND due <= statement_timestamp()
                   AND attempts < attempts_max ORDER BY due, id LIMIT $2";
        let values: Values<'_> = &[(&queue, Type::TEXT), (&i64::from(most), Type::INT8)];
        Ok(self.rows(sql, values).await?.iter().map(|row| row.get(0)).collect())
    }

    async fn heartbeat(&self, claim: &Claim, hold: Duration) -> Result<bool> {
        let sql = format!(
            "UPDATE leasehold_jobs SET due = clock_timestamp() + $4 * interval '1 millisecond',
             changed_at = clock_timestamp() WHERE due > clock_timestamp() AND {OURS}"
        );
        #[expect(clippy::cast_precision_loss, reason = "as above")]
        let hold = millis(hold) as f64;
        self.change_ours(&sql, claim, &[(&hold, Type::FLOAT8)]).await
    }

    async fn complete(&self, claim: &Claim, result: &[u8]) -> Result<bool> {
        let sql = format!(
            "UPDATE leasehold_jobs SET state = 'done', due = NULL, version = version + 1, result = $4, error = NULL,
             changed_at = clock_timestamp() WHERE {OURS}"
        );
        self.change_ours(&sql, claim, &[(&result, Type::BYTEA)]).await
    }

    async fn fail(&self, claim: &Claim, error: &str, again_in: Duration) -> Result<bool> {
        let sql = format!(
            "UPDATE leasehold_jobs SET version = version + 1, error = $4, changed_at = clock_timestamp(),
             state = CASE WHEN attempts < attempts_max THEN 'ready' ELSE 'dead' END,
             due = CASE WHEN attempts < attempts_max THEN clock_timestamp() + $5 * interval '1 millisecond' END
             WHERE {OURS}"
        );
        #[expect(clippy::cast_precision_loss, reason = "as above")]
        let again_in = millis(again_in) as f64;
        // NUL is the one character that a text of PostgreSQL cannot hold.
        let error = error.replace('\0', " ");
        self.change_ours(&sql, claim, &[(&error, Type::TEXT), (&again_in, Type::FLOAT8)]).await
    }

    async fn look(&self, id: i64) -> Result<Option<JobRecord>> {
        let sql = format!("SELECT {COLUMNS} FROM leasehold_jobs WHERE id = $1");
        self.rows(&sql, &[(&id, Type::INT8)]).await?.first().map(record).transpose()
    }

    async fn dead(&self, queue: &str, most: u32) -> Result<Vec<JobRecord>> {
        self.bury_vanished(queue).await?;
        let sql = format!(
            "SELECT {COLUMNS} FROM leasehold_jobs WHERE queue = $1 AND state = 'dead'
             ORDER BY changed_at DESC, id DESC LIMIT $2"
        );
        let values: Values<'_> = &[(&queue, Type::TEXT), (&i64::from(most), Type::INT8)];
        self.rows(&sql, values).await?.iter().map(record).collect()
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

/// What a new job has to be turned into for the database.
struct Add {
    delay: f64,
    most: i32,
}

impl Add {
    fn of(job: &NewJob) -> Result<Add> {
        job.check()?;
        #[expect(clippy::cast_precision_loss, reason = "as above")]
        let delay = millis(job.delay) as f64;
        Ok(Add { delay, most: i32::try_from(job.attempts_max).unwrap_or(i32::MAX) })
    }

    fn values<'a>(&'a self, job: &'a NewJob) -> [(&'a (dyn ToSql + Sync), Type); 5] {
        [
            (&job.queue, Type::TEXT),
            (&job.key, Type::TEXT),
            (&job.payload, Type::BYTEA),
            (&self.delay, Type::FLOAT8),
            (&self.most, Type::INT4),
        ]
    }
}

const COLUMNS: &str = "id, key, state, attempts, worker, result, error";

fn record(row: &Row) -> Result<JobRecord> {
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

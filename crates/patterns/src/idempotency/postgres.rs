//! Keys in PostgreSQL.

use std::time::Duration;

use leasehold::{Result, async_trait};
use leasehold_fence::postgres::ConnectionManager;
use tokio_postgres::types::Type;

use super::{Begun, Fingerprint, Keys, Run, Seen, Terms, check_answer, check_key};
use crate::numbers::token;
use crate::postgres::{Values, create, execute, rows};

/// Keys in PostgreSQL, by a [`ConnectionManager`]: one connection, made anew when it is lost. Each call is one statement or two, so a
/// pool in transaction mode is fine.
#[derive(Clone, Debug)]
pub struct PostgresKeys {
    link: ConnectionManager,
}

/// How many keys that are over are removed with each new one.
const SWEPT: i64 = 16;

impl PostgresKeys {
    /// The SQL that makes the table, for those who make their tables themselves.
    pub const SCHEMA: &'static str = include_str!("../../sql/postgres/keys.sql");

    /// In this database. The table has to be there: [`PostgresKeys::create`], or [`SCHEMA`](Self::SCHEMA).
    pub fn new(link: ConnectionManager) -> PostgresKeys {
        PostgresKeys { link }
    }

    /// Makes the table if it is not there.
    ///
    /// # Errors
    /// `Denied` if the role may not.
    pub async fn create(&self) -> Result<()> {
        create(&self.link, Self::SCHEMA).await
    }
}

/// A new row, one whose request may be taken over with the same payload, or one that is forgotten.
const CLAIM: &str = "
    INSERT INTO leasehold_keys AS kept (key, payload, token, answer, until)
    VALUES ($1, $2, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, NULL,
            clock_timestamp() + $3 * interval '1 millisecond')
    ON CONFLICT (key) DO UPDATE SET payload = excluded.payload, answer = NULL, until = excluded.until,
        token = greatest(kept.token + 1, excluded.token)
    WHERE kept.until <= clock_timestamp()
      AND (kept.answer IS NOT NULL OR kept.payload = excluded.payload OR kept.until = '-infinity')
    RETURNING token";

const LOOK: &str = "
    SELECT payload, answer,
           (extract(epoch FROM least(greatest(until - clock_timestamp(), interval '0'), interval '1 year')) * 1000)::float8
    FROM leasehold_keys WHERE key = $1 AND until <> '-infinity'";

const SWEEP: &str = "
    DELETE FROM leasehold_keys WHERE key IN (SELECT key FROM leasehold_keys
    WHERE until <= clock_timestamp() - interval '1 day' OR (answer IS NOT NULL AND until <= clock_timestamp())
    ORDER BY until LIMIT $1 FOR UPDATE SKIP LOCKED)";

#[async_trait]
impl Keys for PostgresKeys {
    async fn begin(&self, key: &str, payload: &Fingerprint, terms: &Terms) -> Result<Begun> {
        check_key(key)?;
        let (payload_bytes, hold) = (payload.as_bytes(), terms.hold.as_secs_f64() * 1000.0);
        // A row that is removed between the two statements was over: then it is ours to begin.
        for _ in 0..2 {
            let values: Values<'_> =
                &[(&key, Type::TEXT), (&payload_bytes, Type::BYTEA), (&hold, Type::FLOAT8)];
            let minted = rows(&self.link, CLAIM, values).await?;
            if let Some(row) = minted.first() {
                return Ok(Begun::Run(Run { key: key.to_owned(), token: token(row.get(0))? }));
            }
            if let Some(row) = rows(&self.link, LOOK, &[(&key, Type::TEXT)]).await?.first() {
                let left = Duration::try_from_secs_f64(row.get::<_, f64>(2) / 1000.0).unwrap_or_default();
                return Ok(Seen { payload: row.get(0), answer: row.get(1), left }.judge(payload));
            }
        }
        Ok(Begun::Running { again_in: Duration::from_secs(1) })
    }

    async fn renew(&self, run: &Run, terms: &Terms) -> Result<bool> {
        let sql = "UPDATE leasehold_keys
                   SET until = greatest(until, clock_timestamp() + $3 * interval '1 millisecond')
                   WHERE key = $1 AND token = $2 AND answer IS NULL";
        let hold = terms.hold.as_secs_f64() * 1000.0;
        let token = run.token.get().cast_signed();
        let values: Values<'_> = &[(&run.key, Type::TEXT), (&token, Type::INT8), (&hold, Type::FLOAT8)];
        Ok(execute(&self.link, sql, values).await? == 1)
    }

    async fn finish(&self, run: &Run, answer: &[u8], terms: &Terms) -> Result<bool> {
        check_answer(answer)?;
        let sql =
            "UPDATE leasehold_keys SET answer = $3, until = clock_timestamp() + $4 * interval '1 millisecond'
                   WHERE key = $1 AND token = $2 AND answer IS NULL";
        let keep = terms.keep.as_secs_f64() * 1000.0;
        let token = run.token.get().cast_signed();
        let values: Values<'_> =
            &[(&run.key, Type::TEXT), (&token, Type::INT8), (&answer, Type::BYTEA), (&keep, Type::FLOAT8)];
        let stored = execute(&self.link, sql, values).await? == 1;
        if let Err(error) = execute(&self.link, SWEEP, &[(&SWEPT, Type::INT8)]).await {
            tracing::warn!(target: "leasehold", %error, "old idempotency keys cannot be removed");
        }
        Ok(stored)
    }

    async fn abandon(&self, run: &Run) -> Result<bool> {
        // The row stays, so that the token goes on.
        let sql =
            "UPDATE leasehold_keys SET until = '-infinity' WHERE key = $1 AND token = $2 AND answer IS NULL";
        let token = run.token.get().cast_signed();
        Ok(execute(&self.link, sql, &[(&run.key, Type::TEXT), (&token, Type::INT8)]).await? == 1)
    }
}

//! Keys in PostgreSQL.

use std::time::Duration;

use leasehold::{Result, async_trait};
use leasehold_fence::postgres::ConnectionManager;
use tokio_postgres::types::Type;

use super::{BeginOutcome, Fingerprint, KeyClaim, KeyLifetimes, KeyRow, Keys, check_key, check_response};
use crate::numbers::read_token;
use crate::postgres::{Parameters, create, execute, rows};

/// Keys in PostgreSQL, through a [`ConnectionManager`]: one connection, which is opened again when it is lost (ADR 0030).
/// Each call is one or two statements, so it works behind a pool in transaction mode.
#[derive(Clone, Debug)]
pub struct PostgresKeys {
    connections: ConnectionManager,
}

/// How many expired keys are removed with each response.
const REMOVED_PER_FINISH: i64 = 16;

impl PostgresKeys {
    /// The SQL that creates the table, if you do not want to call [`PostgresKeys::create`].
    pub const SCHEMA: &'static str = include_str!("../../sql/postgres/keys.sql");

    /// The keys in this database. The table must exist: see [`PostgresKeys::create`] and
    /// [`SCHEMA`](Self::SCHEMA).
    pub fn new(connections: ConnectionManager) -> PostgresKeys {
        PostgresKeys { connections }
    }

    /// Creates the table if it does not exist.
    ///
    /// # Errors
    /// `Denied` if the role has no permission to create it.
    pub async fn create(&self) -> Result<()> {
        create(&self.connections, Self::SCHEMA).await
    }
}

/// How often to try to claim a key whose row is removed meanwhile.
const CLAIM_TRIES: usize = 2;
/// When the client should ask again if the row was removed each time.
const RETRY_AFTER_REMOVAL: Duration = Duration::from_secs(1);

/// Claims a key: inserts a row, or takes one over whose time is up. A row without a response, whose request
/// may have had an effect, needs the same payload; `-infinity` marks one that was given up.
const CLAIM: &str = "
    INSERT INTO leasehold_keys AS kept (key, payload, token, answer, until)
    VALUES ($1, $2, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, NULL,
            clock_timestamp() + $3 * interval '1 millisecond')
    ON CONFLICT (key) DO UPDATE SET payload = excluded.payload, answer = NULL, until = excluded.until,
        token = greatest(kept.token + 1, excluded.token)
    WHERE kept.until <= clock_timestamp()
      AND (kept.answer IS NOT NULL OR kept.payload = excluded.payload OR kept.until = '-infinity')
    RETURNING token";

/// The row of a key that could not be claimed.
const FIND: &str = "
    SELECT payload, answer,
           (extract(epoch FROM least(greatest(until - clock_timestamp(), interval '0'), interval '1 year')) * 1000)::float8
    FROM leasehold_keys WHERE key = $1 AND until <> '-infinity'";

/// Removes rows whose response has expired, and claims that ran out more than a day ago.
const SWEEP: &str = "
    DELETE FROM leasehold_keys WHERE key IN (SELECT key FROM leasehold_keys
    WHERE until <= clock_timestamp() - interval '1 day' OR (answer IS NOT NULL AND until <= clock_timestamp())
    ORDER BY until LIMIT $1 FOR UPDATE SKIP LOCKED)";

#[async_trait]
impl Keys for PostgresKeys {
    async fn begin(
        &self,
        key: &str,
        payload: &Fingerprint,
        lifetimes: &KeyLifetimes,
    ) -> Result<BeginOutcome> {
        check_key(key)?;
        let (payload_bytes, hold) = (payload.as_bytes(), lifetimes.hold.as_secs_f64() * 1000.0);
        // If the row is removed between the two statements, it had expired: try to claim the key once more.
        for _ in 0..CLAIM_TRIES {
            let parameters: Parameters<'_> =
                &[(&key, Type::TEXT), (&payload_bytes, Type::BYTEA), (&hold, Type::FLOAT8)];
            let claimed = rows(&self.connections, CLAIM, parameters).await?;
            if let Some(row) = claimed.first() {
                return Ok(BeginOutcome::Claimed(KeyClaim {
                    key: key.to_owned(),
                    token: read_token(row.get(0))?,
                }));
            }
            if let Some(row) = rows(&self.connections, FIND, &[(&key, Type::TEXT)]).await?.first() {
                let left = Duration::try_from_secs_f64(row.get::<_, f64>(2) / 1000.0).unwrap_or_default();
                return Ok(KeyRow { payload: row.get(0), response: row.get(1), left }.outcome_for(payload));
            }
        }
        Ok(BeginOutcome::Running { retry_in: RETRY_AFTER_REMOVAL })
    }

    async fn renew(&self, claim: &KeyClaim, lifetimes: &KeyLifetimes) -> Result<bool> {
        let sql = "UPDATE leasehold_keys
                   SET until = greatest(until, clock_timestamp() + $3 * interval '1 millisecond')
                   WHERE key = $1 AND token = $2 AND answer IS NULL";
        let hold = lifetimes.hold.as_secs_f64() * 1000.0;
        let token = claim.token.get().cast_signed();
        let parameters: Parameters<'_> =
            &[(&claim.key, Type::TEXT), (&token, Type::INT8), (&hold, Type::FLOAT8)];
        Ok(execute(&self.connections, sql, parameters).await? == 1)
    }

    async fn finish(&self, claim: &KeyClaim, response: &[u8], lifetimes: &KeyLifetimes) -> Result<bool> {
        check_response(response)?;
        let sql =
            "UPDATE leasehold_keys SET answer = $3, until = clock_timestamp() + $4 * interval '1 millisecond'
                   WHERE key = $1 AND token = $2 AND answer IS NULL";
        let keep = lifetimes.keep.as_secs_f64() * 1000.0;
        let token = claim.token.get().cast_signed();
        let parameters: Parameters<'_> = &[
            (&claim.key, Type::TEXT),
            (&token, Type::INT8),
            (&response, Type::BYTEA),
            (&keep, Type::FLOAT8),
        ];
        let stored = execute(&self.connections, sql, parameters).await? == 1;
        if let Err(error) = execute(&self.connections, SWEEP, &[(&REMOVED_PER_FINISH, Type::INT8)]).await {
            tracing::warn!(target: "leasehold", %error, "cannot remove expired idempotency keys");
        }
        Ok(stored)
    }

    async fn abandon(&self, claim: &KeyClaim) -> Result<bool> {
        // The row stays, so that the next token is greater.
        let sql =
            "UPDATE leasehold_keys SET until = '-infinity' WHERE key = $1 AND token = $2 AND answer IS NULL";
        let token = claim.token.get().cast_signed();
        Ok(execute(&self.connections, sql, &[(&claim.key, Type::TEXT), (&token, Type::INT8)]).await? == 1)
    }
}

//! PostgreSQL's advisory locks. They lack four things that a lease has:
//!
//! - **No ttl.** A session that hangs keeps its lock until the session ends. If the host vanished, the server
//!   may notice that hours later (`tcp_keepalives_idle`).
//! - **No fencing token.** A program that was paused and goes on cannot be told from the new holder, so no
//!   store can refuse its writes.
//! - **No pool.** Behind PgBouncer in transaction mode, the session of a session lock serves another client a
//!   moment later, so the lock cannot be released. A transaction lock is safe there.
//! - **One database.** Every database of a server has its own locks.
//!
//! Use them where they are at their best: they are cheap, and end with the transaction that they protect.

use leasehold::{Resource, Result};
use tokio_postgres::{Client, GenericClient, Transaction};

use super::interpret;

/// The number of the advisory lock for a resource: 48 bits of the SHA-256 of its key.
///
/// Other programs that use
/// advisory locks in the same database may use the same number for something else. Among a million resources,
/// the chance that two share a number is about 1 in 560.
pub fn key(resource: &Resource) -> i64 {
    // The hash is twelve hex digits, so this cannot fail.
    i64::from_str_radix(&resource.id_hash(), 16).unwrap_or_default()
}

/// The statement, with the resource key as a comment, so that `pg_stat_activity` shows which resource a
/// session waits for. A key contains no `*`, so it cannot end the comment.
fn statement(function: &str, resource: &Resource) -> String {
    format!("SELECT {function}($1) /* {} */", resource.key())
}

async fn query_bool<C: GenericClient + Sync>(
    client: &C,
    function: &str,
    resource: &Resource,
) -> Result<bool> {
    let row = client.query_one(&statement(function, resource), &[&key(resource)]).await;
    row.and_then(|row| row.try_get(0)).map_err(interpret)
}

/// Takes the lock for the rest of the transaction, if it is free. Safe behind a pool.
///
/// # Cancel safety
/// If it is dropped, the lock may be held until the transaction ends.
///
/// # Errors
/// The errors of the database.
pub async fn try_transaction(transaction: &Transaction<'_>, resource: &Resource) -> Result<bool> {
    query_bool(transaction, "pg_try_advisory_xact_lock", resource).await
}

/// Takes the lock for the rest of the session, if it is free. Use a connection of your own, never one of a
/// pool.
///
/// # Cancel safety
/// If it is dropped, the lock may be held until the session ends.
///
/// # Errors
/// The errors of the database.
pub async fn try_session<'c>(client: &'c Client, resource: &Resource) -> Result<Option<SessionLock<'c>>> {
    let taken = query_bool(client, "pg_try_advisory_lock", resource).await?;
    Ok(taken.then(|| SessionLock { client, resource: resource.clone() }))
}

/// An advisory lock of this session. Dropping it does not release the lock: it is then held until the session
/// ends.
#[derive(Debug)]
#[must_use = "the lock is held until it is released, or the session ends"]
pub struct SessionLock<'c> {
    client: &'c Client,
    resource: Resource,
}

impl SessionLock<'_> {
    /// Releases the lock. False if this session did not have it: then the session is not the one that took
    /// it.
    ///
    /// # Cancel safety
    /// If it is dropped, the lock may still be held.
    ///
    /// # Errors
    /// The errors of the database.
    pub async fn release(self) -> Result<bool> {
        query_bool(self.client, "pg_advisory_unlock", &self.resource).await
    }
}

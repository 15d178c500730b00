//! PostgreSQL's advisory locks, for those who know what they lack.
//!
//! - **No ttl.** A session that hangs holds. What ends it is the end of the session, which the server may notice hours
//!   later if the host just vanished (`tcp_keepalives_idle`).
//! - **No token.** Whoever was stopped and goes on cannot be told from the holder: nothing downstream can refuse it.
//! - **No pool.** Behind PgBouncer in transaction mode, a session lock is taken in a session that is somebody else's a
//!   moment later: it is held by nobody in particular, and cannot be given back. A lock of a transaction is safe there.
//! - **One database.** Another database of the same server has locks of its own.
//!
//! A lease has all four. These are cheap, and go with the transaction that they protect: that is their use.

use leasehold::{Resource, Result};
use tokio_postgres::{Client, GenericClient, Transaction};

use super::interpret;

/// The number that a resource has among advisory locks: 48 bits of SHA-256 over its key.
///
/// Other programs that use advisory locks of the same database have numbers of their own, and may mean something else by
/// the same one. Among a million resources, the chance that two share a number is about 1 in 560.
pub fn key(resource: &Resource) -> i64 {
    // Twelve hex digits: always a number.
    i64::from_str_radix(&resource.id_hash(), 16).unwrap_or_default()
}

/// The name stands in the statement as a comment, so that `pg_stat_activity` shows who waits for what. Keys have no `*`.
fn statement(function: &str, resource: &Resource) -> String {
    format!("SELECT {function}($1) /* {} */", resource.key())
}

async fn ask<C: GenericClient + Sync>(client: &C, function: &str, resource: &Resource) -> Result<bool> {
    let row = client.query_one(&statement(function, resource), &[&key(resource)]).await;
    row.and_then(|row| row.try_get(0)).map_err(interpret)
}

/// Takes the lock for the rest of the transaction, if nobody has it. Safe behind a pool.
///
/// # Cancel safety
/// Dropped part-way, it may be held until the transaction ends.
///
/// # Errors
/// What the database says.
pub async fn try_transaction(transaction: &Transaction<'_>, resource: &Resource) -> Result<bool> {
    ask(transaction, "pg_try_advisory_xact_lock", resource).await
}

/// Takes the lock for the rest of the session, if nobody has it: on a connection of your own, never one of a pool.
///
/// # Cancel safety
/// Dropped part-way, it may be held until the session ends.
///
/// # Errors
/// What the database says.
pub async fn try_session<'c>(client: &'c Client, resource: &Resource) -> Result<Option<SessionLock<'c>>> {
    let taken = ask(client, "pg_try_advisory_lock", resource).await?;
    Ok(taken.then(|| SessionLock { client, resource: resource.clone() }))
}

/// A lock of this session. Dropped without a word, it is held until the session ends: there is no ttl.
#[derive(Debug)]
#[must_use = "it is held until it is released, or the session ends"]
pub struct SessionLock<'c> {
    client: &'c Client,
    resource: Resource,
}

impl SessionLock<'_> {
    /// Gives it back. False if this session did not have it: then the connection was not always the same one.
    ///
    /// # Cancel safety
    /// Dropped part-way, it may still be held.
    ///
    /// # Errors
    /// What the database says.
    pub async fn release(self) -> Result<bool> {
        ask(self.client, "pg_advisory_unlock", &self.resource).await
    }
}

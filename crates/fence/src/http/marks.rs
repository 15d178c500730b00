//! Where the marks are stored. They must outlive the process: after a restart, stale tokens must still be refused.

use leasehold_core::{Pass, Result, async_trait};

use crate::rule::{Admission, Refusal};

/// The result of the rule for a pass.
pub type Verdict = Result<Admission, Refusal>;

/// Stores the mark of each resource, the highest admitted token, durably.
///
/// Implement it yourself for a pool of connections or for another database: with PostgreSQL, call `leasehold_fence.admit`;
/// otherwise, use [`rule::judge`](crate::rule::judge) and store the mark in one atomic step.
#[async_trait]
pub trait Marks: Send + Sync + 'static {
    /// Applies the rule to the pass and stores its token if it is the highest, in one atomic step. The mark must be durable
    /// when this returns.
    ///
    /// # Errors
    /// If the mark cannot be read or stored. Then the request is refused.
    async fn judge(&self, pass: &Pass) -> Result<Verdict>;
}

/// Marks in a SQLite database, for processes on one host.
#[cfg(feature = "sqlite")]
#[derive(Clone, Debug)]
pub struct SqliteMarks(std::sync::Arc<std::sync::Mutex<rusqlite::Connection>>);

#[cfg(feature = "sqlite")]
impl SqliteMarks {
    /// Stores marks over this connection. Creates the tables if they do not exist.
    ///
    /// # Errors
    /// As [`setup`](crate::sqlite::setup).
    pub fn new(connection: rusqlite::Connection) -> Result<SqliteMarks> {
        crate::sqlite::setup(&connection)?;
        Ok(SqliteMarks(std::sync::Arc::new(std::sync::Mutex::new(connection))))
    }
}

#[cfg(feature = "sqlite")]
#[async_trait]
impl Marks for SqliteMarks {
    async fn judge(&self, pass: &Pass) -> Result<Verdict> {
        let (connection, pass) = (std::sync::Arc::clone(&self.0), pass.clone());
        let judged = tokio::task::spawn_blocking(move || {
            let mut connection = connection.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            crate::sqlite::judge(&mut connection, &pass)
        });
        judged.await.unwrap_or_else(|error| {
            let message = "the thread that reads the marks from SQLite has stopped";
            let unknown = leasehold_core::Effect::Unknown;
            Err(leasehold_core::Error::new(leasehold_core::ErrorKind::Unavailable, message)
                .with_effect(unknown)
                .because(error))
        })
    }
}

/// Marks in a PostgreSQL database, for any number of hosts.
///
/// It uses one connection, which is replaced when it breaks: see [`ConnectionManager`](crate::postgres::ConnectionManager).
/// Until then requests with a token are refused. If one connection is not enough, implement [`Marks`] for a pool of yours.
#[cfg(feature = "postgres")]
#[derive(Clone, Debug)]
pub struct PostgresMarks(crate::postgres::ConnectionManager);

#[cfg(feature = "postgres")]
impl PostgresMarks {
    /// Stores marks over these connections, in the schema that [`setup`](crate::postgres::setup) created.
    pub fn new(connections: crate::postgres::ConnectionManager) -> PostgresMarks {
        PostgresMarks(connections)
    }
}

#[cfg(feature = "postgres")]
#[async_trait]
impl Marks for PostgresMarks {
    async fn judge(&self, pass: &Pass) -> Result<Verdict> {
        crate::postgres::judge(&self.0, pass).await
    }
}

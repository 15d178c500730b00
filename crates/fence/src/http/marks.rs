//! Where the highest token seen is remembered. It has to outlive the process: a restart must not let the late ones in.

use leasehold_core::{Pass, Result, async_trait};

use crate::rule::{Admission, Refusal};

/// What the rule says of a pass.
pub type Verdict = Result<Admission, Refusal>;

/// Remembers the highest token seen for each resource, durably.
///
/// For a pool of connections, or a database of another kind, write your own: with PostgreSQL, one call of
/// `leasehold_fence.admit`; else, [`rule::judge`](crate::rule::judge) and a write, in one atomic step.
#[async_trait]
pub trait Marks: Send + Sync + 'static {
    /// Applies the rule to the pass, and remembers it if it is the highest: in one atomic step, durable when it returns.
    ///
    /// # Errors
    /// If that cannot be done. Then nothing passes.
    async fn judge(&self, pass: &Pass) -> Result<Verdict>;
}

/// Marks in a SQLite database, for the processes of one host.
#[cfg(feature = "sqlite")]
#[derive(Clone, Debug)]
pub struct SqliteMarks(std::sync::Arc<std::sync::Mutex<rusqlite::Connection>>);

#[cfg(feature = "sqlite")]
impl SqliteMarks {
    /// Keeps them by this connection, in tables that are made if they are not there.
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
            crate::sqlite::weigh(&mut connection, &pass)
        });
        judged.await.unwrap_or_else(|error| {
            let message = "the thread that reads the marks is gone";
            let unknown = leasehold_core::Effect::Unknown;
            Err(leasehold_core::Error::new(leasehold_core::ErrorKind::Unavailable, message)
                .with_effect(unknown)
                .because(error))
        })
    }
}

/// Marks in a PostgreSQL database, for any number of hosts.
///
/// It has one connection, which is made anew when it is lost: see [`Link`](crate::postgres::Link). Until then nothing
/// passes. Where one connection is not enough, a pool of yours that implements [`Marks`] is better.
#[cfg(feature = "postgres")]
#[derive(Clone, Debug)]
pub struct PostgresMarks(crate::postgres::Link);

#[cfg(feature = "postgres")]
impl PostgresMarks {
    /// Keeps them there, in the schema that [`setup`](crate::postgres::setup) made.
    pub fn new(link: crate::postgres::Link) -> PostgresMarks {
        PostgresMarks(link)
    }
}

#[cfg(feature = "postgres")]
#[async_trait]
impl Marks for PostgresMarks {
    async fn judge(&self, pass: &Pass) -> Result<Verdict> {
        crate::postgres::weigh(&self.0, pass).await
    }
}

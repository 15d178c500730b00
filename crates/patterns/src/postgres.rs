//! What the patterns share on PostgreSQL: what its errors mean.

use leasehold::{Effect, Error, ErrorKind};
use tokio_postgres::error::SqlState;

pub(crate) fn interpret(error: &tokio_postgres::Error) -> Error {
    let Some(refusal) = error.as_db_error() else {
        // The connection ended before the answer came.
        let message = format!("the database does not answer: {error}");
        return Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown);
    };
    let message = format!("the database refused: {}", refusal.message());
    let code = refusal.code();
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        Error::new(ErrorKind::Denied, message)
    } else if *code == SqlState::UNDEFINED_TABLE {
        Error::new(ErrorKind::Invalid, format!("{message}: make the table with `create`"))
    } else {
        Error::new(ErrorKind::Unavailable, message)
    }
}

/// Makes a table. Two that make it at once would trip over each other, in spite of IF NOT EXISTS.
pub(crate) async fn create(client: &tokio_postgres::Client, schema: &str) -> Result<(), Error> {
    let sql = format!("BEGIN; SELECT pg_advisory_xact_lock(5498217431208); {schema}; COMMIT");
    let made = client.batch_execute(&sql).await;
    if made.is_err() {
        drop(client.batch_execute("ROLLBACK").await);
    }
    made.map_err(|error| interpret(&error))
}

//! What the patterns share on PostgreSQL: how it is asked, and what its errors mean.

use leasehold::{Effect, Error, ErrorKind, Result};
use leasehold_fence::postgres::{Link, Wire};
use tokio_postgres::{
    Row,
    error::{Severity, SqlState},
    types::ToSql,
};

pub(crate) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The rows of a statement.
pub(crate) async fn rows(link: &Link, sql: &str, values: Values<'_>) -> Result<Vec<Row>> {
    let wire = link.wire().await?;
    answer(&wire, wire.query(sql, values)).await
}

/// How many rows a statement changed.
pub(crate) async fn execute(link: &Link, sql: &str, values: Values<'_>) -> Result<u64> {
    let wire = link.wire().await?;
    answer(&wire, wire.execute(sql, values)).await
}

async fn answer<T>(
    wire: &Wire,
    statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T> {
    wire.answer(statement).await?.map_err(|error| interpret(&error))
}

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
    } else if matches!(refusal.parsed_severity(), Some(Severity::Error)) {
        Error::new(ErrorKind::Unavailable, message)
    } else {
        // With its last words, it may have been committed.
        Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)
    }
}

/// Makes a table. Two that make it at once would trip over each other, in spite of IF NOT EXISTS. Statements that are sent
/// as one text are one transaction.
pub(crate) async fn create(link: &Link, schema: &str) -> Result<()> {
    let wire = link.wire().await?;
    let sql = format!("SELECT pg_advisory_xact_lock(5498217431208); {schema}");
    answer(&wire, wire.batch_execute(&sql)).await
}

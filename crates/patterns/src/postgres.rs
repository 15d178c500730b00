//! What the patterns share on PostgreSQL: how it is asked, and what its errors mean.

use leasehold::{Effect, Error, ErrorKind, Result};
use leasehold_fence::postgres::{Connection, ConnectionManager};
use tokio_postgres::{
    Row,
    error::{Severity, SqlState},
    types::{ToSql, Type},
};

pub(crate) type Values<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// The rows of a statement that gives rows.
pub(crate) async fn rows(link: &ConnectionManager, sql: &str, values: Values<'_>) -> Result<Vec<Row>> {
    // One row at the least, so that there is one for the request id, in the order in which the statement gives them.
    let request = values.len() + 1;
    let sql = format!(
        "WITH answer AS ({sql}), numbered AS (SELECT answer.*, row_number() OVER () AS number FROM answer)
         SELECT numbered.*, ${request}::bigint FROM (VALUES (1)) AS always (row) LEFT JOIN numbered ON true
         ORDER BY numbered.number"
    );
    let wire = link.connection().await?;
    let mut rows = ask(&wire, &sql, values).await?;
    let is_there = |row: &Row| matches!(row.try_get::<_, Option<i64>>(row.len() - 2), Ok(Some(_)));
    rows.retain(is_there);
    Ok(rows)
}

/// How many rows a statement changed. It must be one to which `RETURNING` can be added.
pub(crate) async fn execute(link: &ConnectionManager, sql: &str, values: Values<'_>) -> Result<u64> {
    let wire = link.connection().await?;
    let rows = ask(&wire, &counting(sql, values.len() + 1), values).await?;
    Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
}

/// The statement, answered with the number of rows that it changed, and its request id.
pub(crate) fn counting(sql: &str, request: usize) -> String {
    format!("WITH changed AS ({sql} RETURNING 1) SELECT count(*), ${request}::bigint FROM changed")
}

async fn ask(wire: &Connection, sql: &str, values: Values<'_>) -> Result<Vec<Row>> {
    wire.query_checked(sql, values).await?.map_err(|error| {
        let error = interpret(&error);
        // Behind a pool an error may be the answer to another client.
        if wire.is_direct() { error } else { error.with_effect(Effect::Unknown) }
    })
}

async fn answer<T>(
    wire: &Connection,
    statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T> {
    wire.await_reply(statement).await?.map_err(|error| interpret(&error))
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
pub(crate) async fn create(link: &ConnectionManager, schema: &str) -> Result<()> {
    let wire = link.connection().await?;
    let sql = format!("SELECT pg_advisory_xact_lock(5498217431208); {schema}");
    answer(&wire, wire.batch_execute(&sql)).await
}

//! What the patterns share on PostgreSQL: how statements are sent, and what errors mean.
//!
//! Every statement returns the id of its request, because behind a pool a reply may belong to another client
//! (ADR 0033).

use leasehold::{Effect, Error, ErrorKind, Result};
use leasehold_fence::postgres::{Connection, ConnectionManager};
use tokio_postgres::{
    Row,
    error::{Severity, SqlState},
    types::{ToSql, Type},
};

/// The parameters of a statement, with their types.
pub(crate) type Parameters<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// Runs a statement that returns rows.
pub(crate) async fn rows(
    connections: &ConnectionManager,
    sql: &str,
    parameters: Parameters<'_>,
) -> Result<Vec<Row>> {
    // The outer statement returns at least one row, so that there is one for the request id. The rows keep
    // their order.
    let request = parameters.len() + 1;
    let sql = format!(
        "WITH reply AS ({sql}), numbered AS (SELECT reply.*, row_number() OVER () AS number FROM reply)
         SELECT numbered.*, ${request}::bigint FROM (VALUES (1)) AS always (row) LEFT JOIN numbered ON true
         ORDER BY numbered.number"
    );
    let connection = connections.connection().await?;
    let mut rows = query(&connection, &sql, parameters).await?;
    let has_number = |row: &Row| matches!(row.try_get::<_, Option<i64>>(row.len() - 2), Ok(Some(_)));
    rows.retain(has_number);
    Ok(rows)
}

/// Runs a statement and returns how many rows it changed. It must be one to which `RETURNING` can be added.
pub(crate) async fn execute(
    connections: &ConnectionManager,
    sql: &str,
    parameters: Parameters<'_>,
) -> Result<u64> {
    let connection = connections.connection().await?;
    let rows = query(&connection, &with_row_count(sql, parameters.len() + 1), parameters).await?;
    Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
}

/// Wraps a statement so that it returns the number of rows that it changed, and its request id.
pub(crate) fn with_row_count(sql: &str, request: usize) -> String {
    format!("WITH changed AS ({sql} RETURNING 1) SELECT count(*), ${request}::bigint FROM changed")
}

async fn query(connection: &Connection, sql: &str, parameters: Parameters<'_>) -> Result<Vec<Row>> {
    connection.query_checked(sql, parameters).await?.map_err(|error| {
        let error = interpret(&error);
        // Behind a pool, the error may belong to the request of another client.
        if connection.is_direct() { error } else { error.with_effect(Effect::Unknown) }
    })
}

async fn reply<T>(
    connection: &Connection,
    statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T> {
    connection.await_reply(statement).await?.map_err(|error| interpret(&error))
}

pub(crate) fn interpret(error: &tokio_postgres::Error) -> Error {
    let Some(refusal) = error.as_db_error() else {
        // The connection ended before the reply.
        let message = format!("no reply from PostgreSQL: {error}");
        return Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown);
    };
    let message = format!("PostgreSQL refused the statement: {}", refusal.message());
    let code = refusal.code();
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        Error::new(ErrorKind::Denied, message)
    } else if *code == SqlState::UNDEFINED_TABLE {
        Error::new(ErrorKind::Invalid, format!("{message}: create the table with `create`"))
    } else if matches!(refusal.parsed_severity(), Some(Severity::Error)) {
        Error::new(ErrorKind::Unavailable, message)
    } else {
        // A fatal error ends the connection, and the statement may have been committed.
        Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)
    }
}

/// The number of the advisory lock that is held while tables are created. Any number will do, if it is always
/// the same.
const CREATE_LOCK: i64 = 5_498_217_431_208;

/// Creates tables. The advisory lock is needed because two processes that create a table at once get an error
/// in spite of IF NOT EXISTS. Statements that are sent as one text are one transaction, so the lock ends with
/// it.
pub(crate) async fn create(connections: &ConnectionManager, schema: &str) -> Result<()> {
    let connection = connections.connection().await?;
    let sql = format!("SELECT pg_advisory_xact_lock({CREATE_LOCK}); {schema}");
    reply(&connection, connection.batch_execute(&sql)).await
}

//! Turns errors of PostgreSQL and of the driver into errors of leasehold.

use leasehold_core::{Effect, Error, ErrorKind, Pass};
use tokio_postgres::{
    error::{DbError, Severity},
    types::WrongType,
};

use super::DOWNSTREAM;
use crate::{observe, rule::Refusal, sqlstate};

/// SQLSTATE "read only transaction": the server is a standby, or is set to read only.
const READ_ONLY: &str = "25006";

/// Turns the error of your own statement on a fenced table into an error of leasehold. A refusal is counted, logged and
/// becomes `StaleToken`. `pass` is the pass that you showed.
///
/// ```no_run
/// # use leasehold_fence::{Pass, postgres};
/// # async fn example(transaction: &tokio_postgres::Transaction<'_>, pass: &Pass) -> Result<(), leasehold_core::Error> {
/// let update = transaction.execute("UPDATE orders SET state = 'paid' WHERE id = 42", &[]).await;
/// update.map_err(|error| postgres::explain(error, pass))?;
/// # Ok(()) }
/// ```
pub fn explain(error: tokio_postgres::Error, pass: &Pass) -> Error {
    refused(error, pass, Effect::Unknown)
}

/// As [`explain`]. `without_reply` is the effect to report if the statement got no reply.
pub(super) fn refused(error: tokio_postgres::Error, pass: &Pass, without_reply: Effect) -> Error {
    match refusal_in(&error) {
        Some(refusal) => observe::refused(pass, refusal, DOWNSTREAM).because(error),
        None => interpret(error, without_reply).on(&pass.resource),
    }
}

/// The refusal in an error, if it is one.
pub(super) fn refusal_in(error: &tokio_postgres::Error) -> Option<Refusal> {
    let error = error.as_db_error()?;
    sqlstate::refusal(Some(error.code().code()), error.detail()?)
}

pub(super) fn interpret(error: tokio_postgres::Error, without_reply: Effect) -> Error {
    let (kind, text, effect) = match (error.as_db_error(), wrong_type(&error)) {
        (Some(server_error), _) => {
            let (kind, text) = kind_and_text(server_error.code().code(), server_error.message());
            // A statement that fails was rolled back. If the session ends, it may have been committed before.
            (kind, text, if ends_session(server_error) { without_reply } else { Effect::None })
        }
        (None, Some(wrong)) => {
            let text = format!("a parameter has another type than its column: {wrong}");
            (ErrorKind::Invalid, text, Effect::None)
        }
        (None, None) if error.is_closed() => {
            (ErrorKind::Unavailable, "the connection to the database is closed".to_owned(), without_reply)
        }
        (None, None) => {
            (ErrorKind::Unavailable, format!("the database did not answer: {error}"), without_reply)
        }
    };
    Error::new(kind, text).with_effect(effect).because(error)
}

/// The driver found a parameter of the wrong type, before it sent anything.
fn wrong_type(error: &tokio_postgres::Error) -> Option<&WrongType> {
    std::error::Error::source(error).and_then(|cause| cause.downcast_ref())
}

/// Whether the server ends the session with this error, or a pool has lost its own connection to the server (class 08).
fn ends_session(error: &DbError) -> bool {
    // A severity that cannot be read counts as fatal: that is the safe side.
    !matches!(error.parsed_severity(), Some(Severity::Error)) || error.code().code().starts_with("08")
}

/// Whether the connection cannot be used any more: it is broken, the session ends, or the server takes no writes.
pub(super) fn ends_connection(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        None => wrong_type(error).is_none(),
        Some(server_error) => server_error.code().code() == READ_ONLY || ends_session(server_error),
    }
}

/// The connection could not be made. Nothing was sent. `database` is how the text names the database.
pub(super) fn no_connection(error: tokio_postgres::Error, database: &str) -> Error {
    let (kind, why) = match (error.as_db_error(), std::error::Error::source(&error)) {
        (Some(server_error), _) => kind_and_text(server_error.code().code(), server_error.message()),
        (None, Some(cause)) => (ErrorKind::Unavailable, format!("{error}: {cause}")),
        (None, None) => (ErrorKind::Unavailable, error.to_string()),
    };
    Error::new(kind, format!("cannot connect to {database}: {why}")).because(error)
}

fn kind_and_text(code: &str, message: &str) -> (ErrorKind, String) {
    let same = || message.to_owned();
    match code {
        "LH003" | "LH004" | "LH005" => (ErrorKind::Invalid, same()),
        // The schema, a function or a table does not exist.
        "3F000" | "42883" | "42P01" if message.contains("leasehold_fence") => (
            ErrorKind::Unsupported,
            "the database has no fence yet, or one of an older leasehold: call setup, or execute the output of \
             `leasehold fence schema`"
                .to_owned(),
        ),
        "42501" | "28000" | "28P01" => (ErrorKind::Denied, same()),
        "40001" | "40P01" | "55P03" | "57014" => {
            (ErrorKind::Unavailable, format!("another transaction prevented this one: {message}"))
        }
        READ_ONLY => (
            ErrorKind::Unavailable,
            "the server takes no writes: it is a standby, or set to read only".to_owned(),
        ),
        // XX is an internal error of the server, which a later attempt may not meet.
        _ => match code.get(..2) {
            Some("08" | "53" | "57" | "58" | "XX") => (ErrorKind::Unavailable, same()),
            _ => (ErrorKind::Invalid, same()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sqlstate_has_a_kind() {
        use ErrorKind::*;
        let table = [
            ("LH003", "orders: a write to order/1 needs its pass", Invalid),
            ("42883", "function leasehold_fence.admit(text) does not exist", Unsupported),
            ("42883", "function mine() does not exist", Invalid),
            ("3F000", "schema \"leasehold_fence\" does not exist", Unsupported),
            ("42501", "permission denied for function admit", Denied),
            ("40001", "could not serialize access", Unavailable),
            ("40P01", "deadlock detected", Unavailable),
            ("25006", "cannot execute UPDATE in a read-only transaction", Unavailable),
            ("57P01", "terminating connection", Unavailable),
            ("53300", "too many connections", Unavailable),
            ("23505", "duplicate key", Invalid),
        ];
        for (code, message, kind) in table {
            assert_eq!(kind_and_text(code, message).0, kind, "{code} {message}");
        }
    }
}

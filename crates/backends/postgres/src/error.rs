//! What PostgreSQL and the network say, in the words of the contract.
//!
//! The rule for effects: every verb is a transaction of its own, and one that is answered with an `ERROR` was rolled
//! back. A `FATAL` ends the session, perhaps after the commit; a lost connection says nothing at all. Which errors are
//! believed to be the answer to our own request is decided in `Wire::refused`.

use std::io;

use leasehold_core::{Effect, Error, ErrorKind};
use tokio_postgres::error::{DbError, Severity};

/// A connection could not be made: nothing was asked.
pub(crate) fn of_connect(error: &tokio_postgres::Error) -> Error {
    if let Some(said) = error.as_db_error() {
        return said_by_server(said).with_effect(Effect::None);
    }
    match cause(error) {
        Some(cause) if cause.kind() == io::ErrorKind::PermissionDenied => Error::new(
            ErrorKind::Unavailable,
            "no server of these takes writes: it is a standby, or set to read only",
        ),
        _ => {
            let (kind, why) = (kind_of_connect(error), why(error));
            Error::new(kind, format!("cannot connect: {why}"))
        }
    }
}

/// The driver has no kinds to ask for: its words are all there is.
fn kind_of_connect(error: &tokio_postgres::Error) -> ErrorKind {
    let text = error.to_string();
    if text.contains("authentication") || text.contains("invalid configuration") {
        // "password missing": the server wants one, and none was given.
        ErrorKind::Denied
    } else if why(error).contains("does not support TLS") {
        ErrorKind::Unsupported
    } else {
        ErrorKind::Unavailable
    }
}

/// A statement was sent, and this came back, or nothing.
pub(crate) fn of_statement(error: &tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(said) => said_by_server(said).with_effect(effect(said)),
        None => {
            let message = format!("the connection was lost: {}", why(error));
            Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)
        }
    }
}

/// No answer came in time.
pub(crate) fn silence(within: std::time::Duration) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the server did not answer within {within:?}"))
        .with_effect(Effect::Unknown)
}

/// Behind a pool each connection has one request at a time, and all were busy. Nothing was sent.
pub(crate) fn no_turn(connections: usize, within: std::time::Duration) -> Error {
    let message = format!(
        "none of {connections} connections to the pool was free within {within:?}: raise connections= in the URL, or see \
         what keeps the database busy"
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// The wait for a synchronous standby was cancelled: it is committed here, and nobody knows whether there.
pub(crate) fn unconfirmed() -> Error {
    let message = "committed here, but the synchronous standby has not confirmed it";
    Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)
}

/// An answer makes no sense.
pub(crate) fn strange(what: impl std::fmt::Display) -> Error {
    let message = format!("an answer makes no sense: {what}: were the tables or functions changed by hand?");
    Error::new(ErrorKind::Corrupt, message).with_effect(Effect::Unknown)
}

/// Whether the connection is of no more use: the server is about to end, or is not the primary any more.
pub(crate) fn ends_connection(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        None => true,
        Some(said) => {
            let code = said.code().code();
            code == "25006" || code.starts_with("57P") || code.starts_with("08") || is_fatal(said)
        }
    }
}

fn is_fatal(said: &DbError) -> bool {
    // Without a severity that can be read (it is translated before 9.6): the worse.
    !matches!(said.parsed_severity(), Some(Severity::Error))
}

fn effect(said: &DbError) -> Effect {
    // Class 08 is what a pool says when it lost its own connection to the server.
    let unknown = is_fatal(said) || said.code().code().starts_with("08");
    if unknown { Effect::Unknown } else { Effect::None }
}

/// What the server's message says, by its code. Its detail is left out: it may show a row, with a whole owner token.
fn said_by_server(said: &DbError) -> Error {
    let (kind, hint) = meaning(said.code().code(), said.message());
    let (message, code) = (said.message(), said.code().code());
    let message =
        if code.starts_with("LH") { message.to_owned() } else { format!("{message} ({code}){hint}") };
    Error::new(kind, message)
}

fn meaning(code: &str, message: &str) -> (ErrorKind, &'static str) {
    use ErrorKind::{Corrupt, Denied, Invalid, Limit, Unavailable};
    match code {
        "LH001" | "LH002" => (Limit, ""),
        "LH003" => (Invalid, ""),
        "28000" if message.contains("no encryption") || message.contains("SSL off") => {
            (Denied, ": if the server wants TLS, add sslmode=require")
        }
        "3D000" => (Invalid, ": create it, or name another after the host"),
        "42501" => (Denied, ": see what `leasehold schema postgres` says to grant"),
        "25006" => (Unavailable, ": it is a standby, or set to read only"),
        "53300" => {
            (Unavailable, ": raise max_connections, lower connections= in the URL, or put PgBouncer in front")
        }
        "3F000" | "42P01" | "42883" | "42704" => (
            Corrupt,
            ": the schema was dropped or changed while it was in use; connecting again makes it anew",
        ),
        _ => match &code[..2.min(code.len())] {
            "28" => (Denied, ""),
            "08" | "40" | "53" | "55" | "57" | "58" => (Unavailable, ""),
            _ => (Corrupt, ""),
        },
    }
}

fn cause(error: &tokio_postgres::Error) -> Option<&io::Error> {
    std::error::Error::source(error).and_then(|cause| cause.downcast_ref())
}

fn why(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code, kind.
    #[test]
    fn every_answer_of_the_server_has_a_kind() {
        use ErrorKind::*;
        let table = [
            ("40001", Unavailable),
            ("40P01", Unavailable),
            ("25006", Unavailable),
            ("53100", Unavailable),
            ("53200", Unavailable),
            ("53300", Unavailable),
            ("55P03", Unavailable),
            ("57014", Unavailable),
            ("57P01", Unavailable),
            ("57P03", Unavailable),
            ("58030", Unavailable),
            ("08P01", Unavailable),
            ("28P01", Denied),
            ("28000", Denied),
            ("42501", Denied),
            ("3D000", Invalid),
            ("3F000", Corrupt),
            ("42P01", Corrupt),
            ("42883", Corrupt),
            ("23505", Corrupt),
            ("XX001", Corrupt),
            ("LH001", Limit),
            ("LH002", Limit),
            ("LH003", Invalid),
        ];
        for (code, kind) in table {
            assert_eq!(meaning(code, "").0, kind, "{code}");
        }
        assert!(meaning("28000", "no pg_hba.conf entry for host, no encryption").1.contains("sslmode"));
    }

    #[test]
    fn what_is_not_known_is_not_called_a_failure() {
        for error in [silence(std::time::Duration::from_secs(1)), unconfirmed(), strange("x")] {
            assert_eq!(error.effect(), Effect::Unknown, "{error}");
        }
    }
}

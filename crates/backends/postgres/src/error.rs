//! Turns errors of PostgreSQL, of the driver and of the network into errors of the contract.
//!
//! How the effect of a failed statement is decided:
//!
//! - Every verb is one transaction. The server answers with an `ERROR` only after it has rolled back: no effect.
//! - A `FATAL` ends the session, perhaps after the commit: the effect is unknown.
//! - A lost connection or a missing reply proves nothing: the effect is unknown.
//!
//! Whether an error belongs to our own request at all is decided in `Connection::statement_failed`.

use std::{io, time::Duration};

use leasehold_core::{Effect, Error, ErrorKind};
use leasehold_support::tls::explain_certificate;
use tokio_postgres::error::{DbError, Severity};

/// SQLSTATE "read only transaction": the server is a standby, or is set to read only.
const READ_ONLY: &str = "25006";
/// The SQLSTATE class of lost connections. A pool uses it when it has lost its own connection to the server.
const CONNECTION_EXCEPTION: &str = "08";
/// The SQLSTATEs that announce the end of the session, such as a shutdown of the server.
const OPERATOR_INTERVENTION: &str = "57P";
/// What the SQLSTATEs of our own functions begin with: see `acquire.sql`.
const OWN_CODES: &str = "LH";

/// The connection could not be made. No statement was sent.
pub(crate) fn of_connect(error: &tokio_postgres::Error, hosts: &str) -> Error {
    if let Some(server_error) = error.as_db_error() {
        return of_server(server_error, &format!("cannot connect to {hosts}: ")).with_effect(Effect::None);
    }
    let (kind, why) =
        connect_failure(&error.to_string(), &cause_text(error), io_cause(error).map(io::Error::kind));
    Error::new(kind, format!("cannot connect to {hosts}: {why}"))
}

/// What it means that no connection was made. The driver does not expose the kinds of its errors, so this reads their texts.
fn connect_failure(text: &str, cause: &str, io: Option<io::ErrorKind>) -> (ErrorKind, String) {
    if let Some(problem) = explain_certificate(cause) {
        // An expired certificate is replaced soon, so leases should survive it. ADR 0062.
        let kind = if cause.contains("xpired") { ErrorKind::Unavailable } else { ErrorKind::Denied };
        return (kind, format!("{problem} ({cause})"));
    }
    match io {
        // How the driver reports that no host has `target_session_attrs=read-write`.
        Some(io::ErrorKind::PermissionDenied) => {
            let why = "it takes no writes: it is a standby, or set to read only; name the primary in the URL, or turn off \
                       default_transaction_read_only";
            return (ErrorKind::Unavailable, why.to_owned());
        }
        Some(io::ErrorKind::ConnectionRefused) => {
            return (ErrorKind::Unavailable, "connection refused".to_owned());
        }
        _ => {}
    }
    if cause.contains("failed to lookup address") {
        return (ErrorKind::Unavailable, format!("the host name cannot be resolved: {cause}"));
    }
    let kind = if text.contains("authentication") || text.contains("invalid configuration") {
        // "invalid configuration: password missing" means that the server asks for one and the URL has none.
        ErrorKind::Denied
    } else if cause.contains("does not support TLS") {
        ErrorKind::Unsupported
    } else {
        ErrorKind::Unavailable
    };
    (kind, cause.to_owned())
}

/// No host accepted a connection in time.
pub(crate) fn connect_timeout(hosts: &str, timeout: Duration) -> Error {
    let message = format!(
        "cannot connect to {hosts} within {timeout:?}: check the address and the network, or raise connect_timeout= in \
         the URL"
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// A statement was sent, and the server answered with an error, or the connection broke.
pub(crate) fn of_statement(error: &tokio_postgres::Error, hosts: &str) -> Error {
    match error.as_db_error() {
        Some(server_error) => {
            of_server(server_error, &format!("PostgreSQL at {hosts}: ")).with_effect(effect(server_error))
        }
        None => {
            let message = format!("the connection to PostgreSQL at {hosts} was lost: {}", cause_text(error));
            Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)
        }
    }
}

/// A statement was sent, and no reply came in time.
pub(crate) fn no_reply(hosts: &str, timeout: Duration) -> Error {
    let message = format!("PostgreSQL at {hosts} did not answer within {timeout:?}");
    Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)
}

/// Behind a pool each connection has one request at a time, and all connections were in use. Nothing was sent.
pub(crate) fn pool_busy(hosts: &str, connections: usize, timeout: Duration) -> Error {
    let message = format!(
        "none of {connections} connections to the pool at {hosts} was free within {timeout:?}: raise connections= in the URL, or \
         find out what keeps the database busy"
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// The wait for a synchronous standby was cancelled. The transaction is committed on the primary, and perhaps not on the
/// standby. ADR 0022.
pub(crate) fn unconfirmed() -> Error {
    let message =
        "committed on the primary, but the synchronous standby has not confirmed it: check the standby";
    Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)
}

/// Another transaction has a row of the resource locked. Nothing was carried out.
pub(crate) fn row_locked(waited: Duration) -> Error {
    let message = format!(
        "another transaction has locked a row of the resource for longer than {waited:?}: try again, or look for a long \
         transaction on the tables of leasehold"
    );
    Error::new(ErrorKind::Unavailable, message).with_effect(Effect::None)
}

/// The reply does not have the expected columns or values.
pub(crate) fn unexpected_reply(what: impl std::fmt::Display) -> Error {
    let message = format!(
        "unexpected reply of PostgreSQL: {what}: check whether tables or functions of leasehold were changed by hand"
    );
    Error::new(ErrorKind::Corrupt, message).with_effect(Effect::Unknown)
}

/// A column of a table holds a value that leasehold never writes.
pub(crate) fn bad_value(column: &str, found: i64, expected: &str) -> Error {
    let message = format!(
        "the column {column} holds {found} instead of {expected}: it was changed by hand; correct it"
    );
    Error::new(ErrorKind::Corrupt, message).with_effect(Effect::Unknown)
}

/// Whether the connection cannot be used any more: it is broken, the session ends, or the server takes no writes.
pub(crate) fn ends_connection(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        None => true,
        Some(server_error) => {
            let code = server_error.code().code();
            code == READ_ONLY
                || code.starts_with(OPERATOR_INTERVENTION)
                || code.starts_with(CONNECTION_EXCEPTION)
                || is_fatal(server_error)
        }
    }
}

fn is_fatal(error: &DbError) -> bool {
    // A severity that cannot be read counts as fatal: that is the safe side.
    !matches!(error.parsed_severity(), Some(Severity::Error))
}

fn effect(error: &DbError) -> Effect {
    let is_unknown = is_fatal(error) || error.code().code().starts_with(CONNECTION_EXCEPTION);
    if is_unknown { Effect::Unknown } else { Effect::None }
}

/// An error that the server reported; `place` names the server. Its DETAIL is left out: it may show a row, with a whole owner token.
fn of_server(error: &DbError, place: &str) -> Error {
    let (message, code) = (error.message(), error.code().code());
    let (kind, hint) = kind_and_hint(code, message);
    let message = match code.starts_with(OWN_CODES) {
        true => message.to_owned(),
        false => format!("{place}{message} ({code}){hint}"),
    };
    Error::new(kind, message)
}

fn kind_and_hint(code: &str, message: &str) -> (ErrorKind, &'static str) {
    use ErrorKind::{Corrupt, Denied, Invalid, Limit, Unavailable, Unsupported};
    match code {
        "LH001" => (Corrupt, ""),
        "LH002" => (Limit, ""),
        "LH003" => (Invalid, ""),
        "28000" if message.contains("no encryption") || message.contains("SSL off") => {
            (Denied, ": if the server requires TLS, add sslmode=require to the URL")
        }
        // CASE not found: a command that the functions of an earlier release do not know.
        "20000" => {
            (Unsupported, ": the functions in the schema are of an earlier release; let a role update them")
        }
        "3D000" => (Invalid, ": create the database, or name another one after the host"),
        "42501" => (Denied, ": grant the rights that `leasehold schema postgres` names"),
        READ_ONLY => {
            (Unavailable, ": the server is a standby, or set to read only; name the primary in the URL")
        }
        "53300" => {
            (Unavailable, ": raise max_connections, lower connections= in the URL, or put PgBouncer in front")
        }
        "3F000" | "42P01" | "42883" | "42704" => (
            Corrupt,
            ": the schema was dropped or changed while it was in use; restart the program to create it anew",
        ),
        _ => match &code[..2.min(code.len())] {
            "28" => (Denied, ""),
            CONNECTION_EXCEPTION | "40" | "53" | "55" | "57" | "58" => (Unavailable, ""),
            _ => (Corrupt, ""),
        },
    }
}

fn io_cause(error: &tokio_postgres::Error) -> Option<&io::Error> {
    std::error::Error::source(error).and_then(|cause| cause.downcast_ref())
}

/// The text of the cause, or of the error itself if it has no cause.
fn cause_text(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sqlstate_has_a_kind() {
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
            ("20000", Unsupported),
            ("23505", Corrupt),
            ("XX001", Corrupt),
            ("LH001", Corrupt),
            ("LH002", Limit),
            ("LH003", Invalid),
        ];
        for (code, kind) in table {
            assert_eq!(kind_and_hint(code, "").0, kind, "{code}");
        }
        assert!(kind_and_hint("28000", "no pg_hba.conf entry for host, no encryption").1.contains("sslmode"));
    }

    /// The texts are those of the driver: its error, the cause, and the kind of the cause if it is one of the system.
    #[test]
    fn a_connection_that_is_not_made_says_why() {
        use ErrorKind::*;
        let (connecting, handshake) = ("error connecting to server", "error performing TLS handshake");
        let table = [
            (
                connecting,
                "Connection refused (os error 111)",
                Some(io::ErrorKind::ConnectionRefused),
                Unavailable,
                "refused",
            ),
            (
                connecting,
                "failed to lookup address information: Name or service not known",
                Some(io::ErrorKind::Other),
                Unavailable,
                "the host name cannot be resolved",
            ),
            (connecting, "connection timed out", Some(io::ErrorKind::TimedOut), Unavailable, "timed out"),
            (
                connecting,
                "database does not allow writes",
                Some(io::ErrorKind::PermissionDenied),
                Unavailable,
                "standby",
            ),
            ("invalid configuration", "password missing", None, Denied, "password missing"),
            ("authentication error", "SCRAM authentication failed", None, Denied, "SCRAM"),
            (handshake, "server does not support TLS", None, Unsupported, "does not support TLS"),
            (handshake, "invalid peer certificate: UnknownIssuer", None, Denied, "self-signed"),
            (handshake, "invalid peer certificate: Expired", None, Unavailable, "expired"),
            (handshake, "invalid peer certificate: NotValidForName", None, Denied, "another host name"),
            (handshake, "tls handshake eof", Some(io::ErrorKind::UnexpectedEof), Unavailable, "eof"),
        ];
        for (text, cause, io, kind, words) in table {
            let (found, why) = connect_failure(text, cause, io);
            assert_eq!(found, kind, "{cause}");
            assert!(why.contains(words), "{cause}: {why}");
        }
    }

    #[test]
    fn an_error_that_proves_nothing_has_an_unknown_effect() {
        for error in [no_reply("db:5432", Duration::from_secs(1)), unconfirmed(), unexpected_reply("x")] {
            assert_eq!(error.effect(), Effect::Unknown, "{error}");
        }
    }
}

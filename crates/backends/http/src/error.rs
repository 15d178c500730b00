//! Errors of the connection, with their effects.
//!
//! No effect: nothing was written, because no connection was made. Unknown: everything else that is not a refusal of the server
//! itself.

use std::{error::Error as StdError, fmt, io, time::Duration};

use leasehold_api::Problem;
use leasehold_core::{Effect, Error, ErrorKind};
use leasehold_support::tls::explain_certificate;

/// No connection could be made, so nothing was sent.
pub(crate) fn cannot_connect(server: &str, error: &(dyn StdError + 'static)) -> Error {
    let text = chain(error);
    if let Some(why) = explain_certificate(&text) {
        return Error::new(ErrorKind::Denied, format!("{server} cannot be trusted: {why}"));
    }
    let why = match io_error(error) {
        Some(error) if error.kind() == io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        // What rustls says of an answer that is not TLS.
        _ if text.contains("InvalidContentType") => {
            "it does not speak TLS: write http://, or start it with TLS".to_owned()
        }
        _ => match text.split_once("failed to lookup address information: ") {
            Some((_, why)) => format!("the host name cannot be resolved: {why}"),
            None => text,
        },
    };
    Error::new(ErrorKind::Unavailable, format!("cannot connect to {server}: {why}"))
}

/// The connection failed after the request may have been written.
pub(crate) fn broken(server: &str, error: &(dyn StdError + 'static)) -> Error {
    unknown(format!("the connection to {server} broke before the answer came: {}", chain(error)))
}

/// There was a connection, and no answer in time.
pub(crate) fn no_answer(server: &str, limit: Duration) -> Error {
    unknown(format!("{server} did not answer within {limit:?}"))
}

/// There was no connection in time, so nothing was sent.
pub(crate) fn no_connection(server: &str, limit: Duration) -> Error {
    let message =
        format!("{server} did not accept a connection within {limit:?}: check the host and the firewall");
    Error::new(ErrorKind::Unavailable, message)
}

/// The server knows no such token, or wants one. The hint of the document is for programs that speak HTTP themselves.
pub(crate) fn refused_token(server: &str, problem: &Problem, has_token: bool) -> Error {
    let why = problem.detail.as_deref().unwrap_or("it is not valid");
    let message = if has_token {
        format!("{server} refused the token: {why}")
    } else {
        format!("{server} wants a token: give it as the password of the URL, or in password_file")
    };
    Error::new(ErrorKind::Denied, message).with_effect(problem.effect())
}

/// Something on the way answered, and not a leasehold server.
pub(crate) fn not_leasehold(server: &str, status: u16) -> Error {
    unknown(format!(
        "{server} answered with status {status}, and not as a leasehold server does: check the address, and what stands \
         between this host and the server"
    ))
}

/// The answer came from a server on another store.
pub(crate) fn another_store(server: &str, ours: &dyn fmt::Display, theirs: &str) -> Error {
    unknown(format!(
        "{server} now serves another store (id {theirs:.20}, before {ours}), so its answer says nothing about our leases: all \
         servers at one address must have the same store"
    ))
}

/// Two stores have answered at this address, so nothing was sent.
pub(crate) fn two_stores(server: &str, lasting: Duration) -> Error {
    let message = format!(
        "{server} has answered for another store within the last {} s, so no lease is taken there: all servers at one address must \
         have the same store",
        lasting.as_secs()
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// The answer came from our server and cannot be read.
pub(crate) fn unreadable(server: &str, why: &dyn fmt::Display) -> Error {
    unknown(format!("the answer of {server} cannot be read: {why}"))
}

fn unknown(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)
}

/// The error and its causes, without repetitions.
fn chain(error: &(dyn StdError + 'static)) -> String {
    // The pool only says that there was an error; its cause says which.
    let error = error.source().unwrap_or(error);
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    text
}

fn io_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a io::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io);
        }
        next = error.source();
    }
    None
}

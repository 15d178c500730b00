//! [`StoreError`]: an error of Redis, of the driver or of the network, and how it becomes a
//! [`leasehold_core::Error`].
//!
//! An error of the server carries no request id. Why it is still believed where it says that nothing was
//! done: see `request_id.rs`.

use std::fmt;

use leasehold_core::{Effect, Error, ErrorKind};
use redis::{ErrorKind as Driver, RedisError};

use crate::{script::Script, server_info::IS_CLUSTERED};

/// Why a call failed, or why it is not known whether it did.
#[derive(Clone, Debug)]
pub(crate) enum StoreError {
    /// No connection could be made: nothing was sent.
    Connect(RedisError),
    /// A command was sent, and the server returned this error, or the connection failed.
    Command(RedisError),
    /// A command was sent to this server, and no reply came, or one that could not be read.
    NoReply(RedisError, String),
    /// A reply that no script of ours returns.
    UnexpectedReply(String),
    /// The reply belongs to another request. ADR 0033.
    Misdelivered(Error),
    /// An error that already has its final form, with its effect.
    Translated(Error),
}

/// An error without effect: the store cannot be used now.
pub(crate) fn unavailable(message: impl Into<std::borrow::Cow<'static, str>>) -> StoreError {
    StoreError::Translated(Error::new(ErrorKind::Unavailable, message))
}

/// How a node of a cluster refuses a call for a slot. In every case it has done nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// The slot is at this node. An empty host means the host of the node that was asked.
    Moved(String, u16),
    /// The slot is being moved to this node, and the key is already there.
    Ask(String, u16),
    /// The slot is being moved, and the keys of the call are at both nodes.
    TryAgain,
    /// This node does not serve the slot: it is a replica, or the cluster is down.
    NotHere,
}

/// Reads `host:port`. The host may contain colons.
fn parse_address(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = if host == "?" { "" } else { host };
    Some((host.to_owned(), port.parse().ok()?))
}

impl StoreError {
    pub(crate) fn unexpected_reply(what: String) -> StoreError {
        StoreError::UnexpectedReply(what)
    }

    pub(crate) fn missing_reply() -> StoreError {
        StoreError::UnexpectedReply("the server sent fewer replies than it got commands".to_owned())
    }

    /// A command that was sent to this server failed.
    pub(crate) fn of_command(source: RedisError, server: &dyn fmt::Display) -> StoreError {
        match code(&source) {
            Some(_) => StoreError::Command(source),
            None => StoreError::NoReply(source, server.to_string()),
        }
    }

    /// The error of a command that was sent.
    fn command_error(&self) -> Option<&RedisError> {
        match self {
            StoreError::Command(error) | StoreError::NoReply(error, _) => Some(error),
            _ => None,
        }
    }

    /// Whether the server does not know the script: it was restarted, or its scripts were flushed.
    pub(crate) fn is_no_script(&self) -> bool {
        matches!(self, StoreError::Command(error) if code(error) == Some("NOSCRIPT"))
    }

    /// Whether a key has another Redis type than leasehold gives it.
    pub(crate) fn is_wrong_type(&self) -> bool {
        matches!(self, StoreError::Command(error) if code(error) == Some("WRONGTYPE"))
    }

    /// Where a node of a cluster says that the slot is.
    pub(crate) fn redirect(&self) -> Option<Redirect> {
        let StoreError::Command(error) = self else { return None };
        let to = || error.redirect_node().and_then(|(address, _)| parse_address(address));
        match code(error)? {
            "MOVED" => to().map(|(host, port)| Redirect::Moved(host, port)),
            "ASK" => to().map(|(host, port)| Redirect::Ask(host, port)),
            "TRYAGAIN" => Some(Redirect::TryAgain),
            "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" => Some(Redirect::NotHere),
            _ => None,
        }
    }

    /// Whether the keys of a resource are on two nodes, because their slot is being moved.
    pub(crate) fn is_try_again(&self) -> bool {
        self.redirect() == Some(Redirect::TryAgain)
    }

    /// Whether the server refused the call before it did anything, because of the user's permissions.
    pub(crate) fn is_refused_permission(&self) -> bool {
        matches!(self, StoreError::Command(error) if code(error) == Some("NOPERM") && interpret(error).2 == Effect::None)
    }

    /// Whether the call may have been executed.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.command_error().is_some_and(|error| interpret(error).2 == Effect::Unknown)
    }

    /// Whether nothing was sent, because there is no connection.
    pub(crate) fn is_connect(&self) -> bool {
        let unavailable = |error: &Error| error.kind() == ErrorKind::Unavailable;
        match self {
            StoreError::Connect(source) => interpret(source).0 == ErrorKind::Unavailable,
            // Translated while connecting, such as a replica where a primary was expected.
            StoreError::Translated(error) => unavailable(error) && error.effect() == Effect::None,
            _ => false,
        }
    }

    /// Whether the connection cannot be used any more: it is broken, or its server is not the primary or
    /// wants another password.
    pub(crate) fn breaks_connection(&self) -> bool {
        match self {
            StoreError::Command(error) | StoreError::NoReply(error, _) => {
                let other_server = matches!(code(error), Some("READONLY" | "NOAUTH" | "MASTERDOWN"));
                // A timeout alone does not break a connection: `Connections::live` discards it when it stays
                // silent.
                let broken = matches!(error.kind(), Driver::Io | Driver::Parse) && !error.is_timeout();
                other_server || broken || error.is_connection_dropped()
            }
            StoreError::UnexpectedReply(_) | StoreError::Misdelivered(_) => true,
            StoreError::Connect(_) | StoreError::Translated(_) => false,
        }
    }

    /// If a command in this script is not permitted, adds the name of the command: Redis 7.0 gives only the
    /// line.
    pub(crate) fn in_script(self, script: &Script) -> StoreError {
        let StoreError::Command(source) = &self else { return self };
        let Some((what, place)) = source.detail().and_then(|detail| detail.split_once(" script: ")) else {
            return self;
        };
        let line =
            place.split_once("@user_script:").and_then(|(_, line)| line.trim_end_matches('.').parse().ok());
        match line.and_then(|line| script.commands_in(line)).filter(|_| what.starts_with(IN_A_SCRIPT)) {
            None => self,
            Some(commands) => {
                let error = Error::new(ErrorKind::Denied, not_permitted(&format!("{commands}: {what}")));
                StoreError::Translated(error.with_effect(Effect::Unknown).because(source.clone()))
            }
        }
    }

    /// Adds which peer could not be connected to. `role` is empty, or says what it is: `the Sentinel at `.
    pub(crate) fn for_peer(self, role: &str, host: &str, port: u16) -> StoreError {
        let StoreError::Connect(source) = self else { return self };
        let (kind, what) = connecting(&source);
        let what = what.replace("the server's", "its").replace("the server", "it");
        let error = match unresolved(&source) {
            Some(why) => {
                let message = format!("cannot resolve the host of {role}{host}:{port}: {why}");
                Error::new(ErrorKind::Unavailable, message)
            }
            None => Error::new(kind, format!("cannot connect to {role}{host}:{port}: {what}")),
        };
        StoreError::Translated(error.because(source))
    }

    /// For a server that was connected before: a certificate that is refused now may be replaced soon, so the error is
    /// `Unavailable`. ADR 0062.
    pub(crate) fn of_known_server(self) -> StoreError {
        match self {
            StoreError::Translated(error) if source_of(&error).and_then(tls_failure).is_some() => {
                let message = error.to_string();
                StoreError::Translated(Error::new(ErrorKind::Unavailable, message).because(error))
            }
            other => other,
        }
    }

    /// Whether there was no server at all.
    fn is_unreached(&self) -> bool {
        let source = match self {
            StoreError::Connect(source) => Some(source),
            StoreError::Translated(error) => source_of(error),
            _ => None,
        };
        source.is_some_and(|source| source.is_io_error() && tls_failure(source).is_none())
    }

    /// The most useful of several errors. A refusal comes before an unavailable server, and that before a
    /// server that was not reached at all.
    pub(crate) fn most_specific(errors: Vec<StoreError>) -> Option<StoreError> {
        let specificity = |error: &StoreError| {
            (error.clone().into_error().kind() != ErrorKind::Unavailable, !error.is_unreached())
        };
        errors.into_iter().max_by_key(specificity)
    }

    /// The error for the caller of the backend.
    pub(crate) fn into_error(self) -> Error {
        match self {
            StoreError::Translated(error) | StoreError::Misdelivered(error) => error,
            StoreError::UnexpectedReply(what) => {
                Error::new(ErrorKind::Unavailable, what).with_effect(Effect::Unknown)
            }
            StoreError::Connect(source) => {
                let (kind, what) = connecting(&source);
                Error::new(kind, format!("cannot connect: {what}")).because(source)
            }
            StoreError::Command(source) => {
                let (kind, what, effect) = interpret(&source);
                Error::new(kind, what).with_effect(effect).because(source)
            }
            StoreError::NoReply(source, server) => {
                let (kind, what, effect) = interpret(&source);
                let message = match source.kind() {
                    _ if source.is_timeout() => format!("{server} did not answer in time"),
                    Driver::Io => format!("the connection to {server} was lost: {what}"),
                    _ => format!("{server}: {what}"),
                };
                Error::new(kind, message).with_effect(effect).because(source)
            }
        }
    }
}

/// The error of the driver behind a translated one.
fn source_of(error: &Error) -> Option<&RedisError> {
    std::error::Error::source(error)?.downcast_ref()
}

/// The error of the operating system behind an error of the driver.
fn io_error(error: &RedisError) -> Option<&std::io::Error> {
    use std::error::Error;
    let source = error.source()?;
    let shared = source.downcast_ref::<std::sync::Arc<dyn Error + Send + Sync>>();
    shared.map_or(source, |shared| &**shared).downcast_ref()
}

/// Why the name of a host could not be resolved, if that is what happened.
fn unresolved(error: &RedisError) -> Option<String> {
    if error.kind() == Driver::InvalidClientConfig && error.to_string().contains("No address found") {
        return Some("it has no address".to_owned());
    }
    // The standard library has no kind for it, only this text.
    let text = io_error(error)?.to_string();
    text.strip_prefix("failed to lookup address information: ").map(str::to_owned)
}

/// The words of the operating system, without the number: `Network is unreachable`.
fn io_cause(error: &RedisError) -> String {
    let text = io_error(error).map_or_else(|| error.to_string(), ToString::to_string);
    text.split_once(" (os error").map_or(text.as_str(), |(text, _)| text).to_owned()
}

fn code(error: &RedisError) -> Option<&str> {
    error.code()
}

/// Why there is no connection. A reply that cannot be understood may be a passing problem here, so it is
/// `Unavailable`.
fn connecting(source: &RedisError) -> (ErrorKind, String) {
    match interpret(source) {
        (ErrorKind::Corrupt, what, _) => (ErrorKind::Unavailable, what),
        (kind, what, _) => (kind, what),
    }
}

/// The error text of core for a floor that is more than a year ahead of the clock.
fn floor_too_high(floor: &str) -> String {
    floor
        .parse()
        .map_or_else(|error: Error| error.to_string(), |floor| Error::floor_too_high(floor).to_string())
}

/// The kind and the text of an error, and whether the command may have been executed.
fn interpret(error: &RedisError) -> (ErrorKind, String, Effect) {
    use {Effect::None, ErrorKind::*};
    let Some(code) = code(error) else { return without_code(error) };
    let detail = error.detail().unwrap_or_default();
    if let Some((kind, what)) = refusal(code) {
        return (kind, what.to_owned(), None);
    }
    match code {
        "LIMIT" => (Limit, detail.to_owned(), None),
        "FLOOR" => (Invalid, floor_too_high(detail), None),
        "CORRUPT" => (Corrupt, detail.to_owned(), None),
        // The script stopped, perhaps after its first write. Redis adds the line of the script.
        "UNREADABLE" => {
            let what = detail.split_once(" script: ").map_or(detail, |(what, _)| what);
            (Corrupt, what.to_owned(), Effect::Unknown)
        }
        // A command in the middle of a script: the script may have written something before it.
        "NOPERM" if detail.contains("script") => (Denied, not_permitted(detail), Effect::Unknown),
        "ERR" if detail.starts_with(IN_A_SCRIPT) => (Denied, not_permitted(detail), Effect::Unknown),
        "NOPERM" => (Denied, not_permitted(detail), None),
        "WRONGTYPE" => {
            let what = "a key of this resource has another type than leasehold gave it";
            (Corrupt, what.to_owned(), Effect::Unknown)
        }
        "ERR" if detail.contains("max number of clients") => {
            (Unavailable, "the server has too many clients (maxclients)".to_owned(), None)
        }
        "ERR" if detail.contains("unknown command") => {
            let what = "the server does not know a command: Redis 7 or later is needed";
            (Unsupported, what.to_owned(), None)
        }
        _ => (Corrupt, format!("the server answered {code:.20}: {detail:.200}"), Effect::Unknown),
    }
}

/// The errors with which a server refuses a command before it does anything.
fn refusal(code: &str) -> Option<(ErrorKind, &'static str)> {
    use ErrorKind::*;
    Some(match code {
        "LOADING" => (Unavailable, "the server is still loading its data"),
        "READONLY" => (Unavailable, "the server is a read-only replica"),
        "MASTERDOWN" => (Unavailable, "the server is a replica that has lost its primary"),
        "OOM" => (Unavailable, "the server's memory is full: raise maxmemory, or delete keys"),
        "NOREPLICAS" => {
            (Unavailable, "the server has too few replicas to accept writes (min-replicas-to-write)")
        }
        "MISCONF" => (Unavailable, "the server cannot save to its disk and refuses writes: see its log"),
        "BUSY" | "UNKILLABLE" => (Unavailable, "the server is busy with a slow script of another client"),
        "NOSCRIPT" => (Unavailable, "the server does not know the script"),
        "TRYAGAIN" | "CLUSTERDOWN" => (Unavailable, "the cluster cannot serve the slot of this resource now"),
        "MOVED" | "ASK" | "CROSSSLOT" => (Unsupported, IS_CLUSTERED),
        "NOAUTH" => (Denied, "the server wants a password"),
        "WRONGPASS" => (Denied, "the server refused the user or the password"),
        "DENIED" => {
            (Denied, "the server is in protected mode: it accepts only connections from its own host")
        }
        _ => return None,
    })
}

/// How Redis 7.0 begins the error for a command in a script that is not permitted. It does not name the
/// command.
const IN_A_SCRIPT: &str = "The user executing the script";

fn not_permitted(detail: &str) -> String {
    format!("the user may not do this: {detail:.200}")
}

fn without_code(error: &RedisError) -> (ErrorKind, String, Effect) {
    use {Effect::*, ErrorKind::*};
    if let Some((kind, why)) = tls_failure(error) {
        return (kind, why, Unknown);
    }
    match error.kind() {
        Driver::AuthenticationFailed => {
            (Denied, "the server refused the user or the password".to_owned(), None)
        }
        Driver::InvalidClientConfig => (Invalid, error.to_string(), None),
        Driver::RESP3NotSupported => (Unsupported, "Redis 7 or later is needed".to_owned(), None),
        _ if error.is_timeout() => (Unavailable, "no answer in time".to_owned(), Unknown),
        _ if error.is_connection_refusal() => (Unavailable, "connection refused".to_owned(), Unknown),
        Driver::Io => (Unavailable, io_cause(error), Unknown),
        _ => (Unavailable, "the answer could not be read".to_owned(), Unknown),
    }
}

/// Why TLS with the server failed, if that is what happened. A certificate that is refused is `Denied`: trying again does
/// not help. ADR 0062.
#[cfg(feature = "tls")]
fn tls_failure(error: &RedisError) -> Option<(ErrorKind, String)> {
    use rustls::{AlertDescription as Alert, CertificateError as Certificate};
    let tls = io_error(error)?.get_ref()?.downcast_ref::<rustls::Error>()?;
    let certificate = match tls {
        rustls::Error::InvalidCertificate(certificate) => certificate,
        rustls::Error::AlertReceived(Alert::CertificateRequired) => {
            let wanted = "the server wants a certificate of the client: name one with cert_file and key_file, or set \
                          tls-auth-clients to no there";
            return Some((ErrorKind::Denied, wanted.to_owned()));
        }
        rustls::Error::AlertReceived(
            Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::CertificateUnknown
            | Alert::CertificateExpired
            | Alert::CertificateRevoked
            | Alert::DecryptError
            | Alert::AccessDenied,
        ) => {
            let refused = format!("the server refused the certificate in cert_file: {tls}");
            return Some((ErrorKind::Denied, refused));
        }
        other => return Some((ErrorKind::Unavailable, format!("TLS with the server failed: {other}"))),
    };
    let why = match certificate {
        Certificate::Expired | Certificate::ExpiredContext { .. } => {
            "the server's certificate has expired".to_owned()
        }
        Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet".to_owned()
        }
        Certificate::NotValidForName => "the server's certificate is for another host name".to_owned(),
        Certificate::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().map(|name| name_without_kind(name)).collect();
            let (asked, names) = (expected.to_str(), names.join(", "));
            format!("the server's certificate is for another host name: not for {asked}, only for {names}")
        }
        Certificate::Revoked => "the server's certificate was revoked".to_owned(),
        other if is_of_authority(other) => leasehold_support::tls::OF_AUTHORITY.to_owned(),
        Certificate::UnknownIssuer | Certificate::BadSignature => {
            // An issuer with the same name and another key shows as a bad signature.
            "the server's certificate is not trusted: self-signed, or of an unknown issuer; name its CA with \
             ca_file=FILE in the URL"
                .to_owned()
        }
        other => format!("the server's certificate is not valid: {other}"),
    };
    Some((ErrorKind::Denied, why))
}

/// Whether a server shows the certificate of an authority, as `openssl req -x509` makes it. It is refused, also if it is trusted.
#[cfg(feature = "tls")]
fn is_of_authority(certificate: &rustls::CertificateError) -> bool {
    // rustls has no kind for it.
    matches!(certificate, rustls::CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity"))
}

/// The name in `DnsName("cache.internal")` or `IpAddress(10.0.0.7)`.
#[cfg(feature = "tls")]
fn name_without_kind(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

#[cfg(not(feature = "tls"))]
fn tls_failure(_: &RedisError) -> Option<(ErrorKind, String)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn server(line: &str) -> RedisError {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        value.extract_error().unwrap_err()
    }

    #[test]
    fn every_error_of_redis_has_a_kind_and_an_effect() {
        use {Effect::*, ErrorKind::*};
        let table = [
            ("LOADING Redis is loading the dataset in memory", Unavailable, None, false),
            ("READONLY You can't write against a read only replica.", Unavailable, None, true),
            ("MASTERDOWN Link with MASTER is down", Unavailable, None, true),
            ("OOM command not allowed when used memory > 'maxmemory'.", Unavailable, None, false),
            ("NOREPLICAS Not enough good replicas to write.", Unavailable, None, false),
            ("MISCONF Errors writing to the AOF file", Unavailable, None, false),
            ("BUSY Redis is busy running a script.", Unavailable, None, false),
            ("NOSCRIPT No matching script.", Unavailable, None, false),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Unavailable, None, false),
            ("CLUSTERDOWN Hash slot not served", Unavailable, None, false),
            ("MOVED 3999 127.0.0.1:6381", Unsupported, None, false),
            ("ASK 3999 127.0.0.1:6381", Unsupported, None, false),
            ("CROSSSLOT Keys in request don't hash to the same slot", Unsupported, None, false),
            ("NOAUTH Authentication required.", Denied, None, true),
            ("WRONGPASS invalid username-password pair or user is disabled.", Denied, None, false),
            ("NOPERM this user has no permissions to run the 'evalsha' command", Denied, None, false),
            ("DENIED Redis is running in protected mode", Denied, None, false),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Corrupt, Unknown, false),
            ("ERR max number of clients reached", Unavailable, None, false),
            ("ERR unknown command 'EVALSHA'", Unsupported, None, false),
            ("ERR user_script:7: attempt to index a nil value", Corrupt, Unknown, false),
            ("LIMIT the queue of this resource is full", Limit, None, false),
            ("FLOOR 9007199254740990", Invalid, None, false),
            ("CORRUPT lock:v1:{report/42}:fence", Corrupt, None, false),
            ("UNREADABLE key a is corrupt script: ea55, on @user_script:2.", Corrupt, Unknown, false),
        ];
        for (line, kind, effect, breaks) in table {
            let error = StoreError::Command(server(line));
            assert_eq!(error.breaks_connection(), breaks, "{line}");
            let error = error.into_error();
            assert_eq!((error.kind(), error.effect()), (kind, effect), "{line}: {error:?}");
        }
    }

    #[test]
    fn a_redirect_names_the_node_of_the_slot() {
        let redirect = |line: &str| StoreError::Command(server(line)).redirect();
        let moved = |host: &str| Some(Redirect::Moved(host.to_owned(), 6381));
        assert_eq!(redirect("MOVED 3999 127.0.0.1:6381"), moved("127.0.0.1"));
        assert_eq!(redirect("MOVED 3999 ::1:6381"), moved("::1"));
        assert_eq!(redirect("MOVED 3999 cache.internal:6381"), moved("cache.internal"));
        assert_eq!(redirect("MOVED 3999 :6381"), moved(""), "the host of the node that was asked");
        assert_eq!(redirect("MOVED 3999 ?:6381"), moved(""));
        assert_eq!(redirect("MOVED nonsense"), None);
        assert_eq!(redirect("ASK 7 10.0.0.7:6381"), Some(Redirect::Ask("10.0.0.7".to_owned(), 6381)));
        assert_eq!(redirect("TRYAGAIN Multiple keys request"), Some(Redirect::TryAgain));
        assert_eq!(redirect("CLUSTERDOWN The cluster is down"), Some(Redirect::NotHere));
        assert_eq!(redirect("OOM command not allowed"), None);
    }

    #[test]
    fn a_call_without_a_reply_has_an_unknown_effect_and_a_call_that_was_not_sent_has_none() {
        use io::ErrorKind::*;
        for kind in [TimedOut, ConnectionReset, BrokenPipe, UnexpectedEof, ConnectionRefused] {
            let source = || RedisError::from(io::Error::from(kind));
            let command = StoreError::Command(source());
            assert_eq!(command.breaks_connection(), kind != TimedOut, "{kind:?}");
            let error = command.into_error();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown), "{kind:?}");
            let error = StoreError::Connect(source()).into_error();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{kind:?}");
        }
    }

    #[test]
    fn of_several_errors_the_most_specific_one_is_reported() {
        let silent = || StoreError::Connect(RedisError::from(io::Error::from(io::ErrorKind::TimedOut)));
        let refused = || StoreError::Connect(server("WRONGPASS invalid username-password pair"));
        let loading = || StoreError::Connect(server("LOADING Redis is loading"));
        let reported =
            |errors: Vec<StoreError>| StoreError::most_specific(errors).unwrap().into_error().to_string();
        assert!(reported(vec![refused(), loading(), silent()]).contains("password"));
        assert!(reported(vec![loading(), silent().for_peer("the primary at ", "a", 1)]).contains("loading"));
        assert!(reported(vec![silent()]).contains("no answer"));
        assert!(StoreError::most_specific(Vec::new()).is_none());
    }

    #[test]
    fn a_server_that_cannot_be_reached_is_named_with_the_cause() {
        let lookup = "failed to lookup address information: Name or service not known";
        let table = [
            (io::Error::from_raw_os_error(111), "cannot connect to 10.0.0.5:6379: connection refused"),
            (io::ErrorKind::TimedOut.into(), "cannot connect to 10.0.0.5:6379: no answer in time"),
            (io::Error::from_raw_os_error(101), "cannot connect to 10.0.0.5:6379: Network is unreachable"),
            (io::Error::other(lookup), "cannot resolve the host of 10.0.0.5:6379: Name or service not known"),
        ];
        for (source, text) in table {
            let error = StoreError::Connect(source.into()).for_peer("", "10.0.0.5", 6379);
            assert!(error.is_connect() && error.is_unreached());
            assert_eq!(error.into_error().to_string(), text);
        }
        let no_address = RedisError::from((Driver::InvalidClientConfig, "No address found for host"));
        let error = StoreError::Connect(no_address).for_peer("the Sentinel at ", "cache", 1).into_error();
        assert_eq!(
            error.to_string(),
            "cannot resolve the host of the Sentinel at cache:1: it has no address"
        );
        let refused = RedisError::from(io::Error::from_raw_os_error(111));
        let error = StoreError::Connect(refused).for_peer("the Sentinel at ", "cache", 1).into_error();
        assert_eq!(error.to_string(), "cannot connect to the Sentinel at cache:1: connection refused");
    }

    #[test]
    fn a_server_that_does_not_reply_is_named() {
        let failed = |source: io::Error| StoreError::of_command(source.into(), &"10.0.0.5:6379");
        let table = [
            (
                io::Error::from_raw_os_error(104),
                "the connection to 10.0.0.5:6379 was lost: Connection reset by peer",
            ),
            (io::ErrorKind::TimedOut.into(), "10.0.0.5:6379 did not answer in time"),
        ];
        for (source, text) in table {
            let error = failed(source);
            assert!(error.is_unanswered() && !error.is_connect());
            let error = error.into_error();
            assert_eq!((error.effect(), error.to_string().as_str()), (Effect::Unknown, text));
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_certificate_that_is_refused_is_a_wrong_configuration_until_the_server_was_connected() {
        use rustls::CertificateError as Certificate;
        let failed = |certificate| {
            let tls = rustls::Error::InvalidCertificate(certificate);
            let source = io::Error::new(io::ErrorKind::InvalidData, tls);
            StoreError::Connect(source.into()).for_peer("", "cache", 6379)
        };
        let table = [
            (
                Certificate::UnknownIssuer,
                "self-signed, or of an unknown issuer; name its CA with ca_file=FILE",
            ),
            (
                Certificate::Other(rustls::OtherError(std::sync::Arc::new(io::Error::other(
                    "CaUsedAsEndEntity",
                )))),
                "that of an authority, which a server must not show",
            ),
            (Certificate::Expired, "cannot connect to cache:6379: its certificate has expired"),
            (Certificate::NotValidForName, "its certificate is for another host name"),
        ];
        for (certificate, text) in table {
            let error = failed(certificate);
            assert!(!error.is_unreached());
            let known = error.clone().of_known_server().into_error();
            let error = error.into_error();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, Effect::None));
            assert!(error.to_string().contains(text), "{error}");
            assert_eq!((known.kind(), known.to_string()), (ErrorKind::Unavailable, error.to_string()));
        }
    }

    #[test]
    fn a_wrong_password_is_denied_at_once() {
        let source = RedisError::from((Driver::AuthenticationFailed, "Password authentication failed"));
        let error = StoreError::Connect(source).into_error();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, Effect::None));
    }
}

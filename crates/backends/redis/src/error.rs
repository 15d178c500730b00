//! What Redis and the network say, in the words of the contract.
//!
//! An error of the server names no request. Why it is believed that it had no effect, where it says so: see `proof`.

use leasehold_core::{Effect, Error, ErrorKind};
use redis::{ErrorKind as Driver, RedisError};

use crate::{script::Script, site::IS_CLUSTERED};

/// Why a call came to nothing, or why it is not known whether it did.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// No connection could be made: nothing was sent.
    Connect(RedisError),
    /// A command was sent, and this came back, or nothing.
    Command(RedisError),
    /// An answer makes no sense.
    Strange(String),
    /// An answer belongs to another request: see `proof`.
    MixedUp(Error),
    /// Refused by us, before anything was sent.
    Refused(Error),
}

/// What a node of a cluster says of a slot. In any case it has done nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// It is at this node. Without a host: the one that was asked.
    Moved(String, u16),
    /// It is on its way to this node, and so is this key.
    Ask(String, u16),
    /// It is on its way, and the keys are at both ends.
    TryAgain,
    /// Not here, or nowhere at the moment.
    Elsewhere,
}

/// `host:port`; the host may have colons of its own.
fn parse_address(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = if host == "?" { "" } else { host };
    Some((host.to_owned(), port.parse().ok()?))
}

impl Fault {
    /// Whether the server does not know the script: it was restarted, or told to forget.
    pub(crate) fn is_no_script(&self) -> bool {
        matches!(self, Fault::Command(error) if code(error) == Some("NOSCRIPT"))
    }

    /// Whether a key holds something of another type than ours.
    pub(crate) fn is_wrong_type(&self) -> bool {
        matches!(self, Fault::Command(error) if code(error) == Some("WRONGTYPE"))
    }

    /// Where a node of a cluster says that the slot is, or that it is on its way.
    pub(crate) fn redirect(&self) -> Option<Redirect> {
        let Fault::Command(error) = self else { return None };
        let to = || error.redirect_node().and_then(|(address, _)| parse_address(address));
        match code(error)? {
            "MOVED" => to().map(|(host, port)| Redirect::Moved(host, port)),
            "ASK" => to().map(|(host, port)| Redirect::Ask(host, port)),
            "TRYAGAIN" => Some(Redirect::TryAgain),
            "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" => Some(Redirect::Elsewhere),
            _ => None,
        }
    }

    /// Whether the keys of a resource are on two nodes at the moment.
    pub(crate) fn is_try_again(&self) -> bool {
        self.redirect() == Some(Redirect::TryAgain)
    }

    /// Whether it is not known what became of it.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, Fault::Command(error) if interpret(error).2 == Effect::Unknown)
    }

    /// Whether nothing was sent, because there is no connection.
    pub(crate) fn is_connect(&self) -> bool {
        let unavailable = |error: &Error| error.kind() == ErrorKind::Unavailable;
        match self {
            Fault::Connect(source) => interpret(source).0 == ErrorKind::Unavailable,
            Fault::Refused(error) => unavailable(error) && error.effect() == Effect::None,
            _ => false,
        }
    }

    /// Whether the connection is of no more use: it is broken, or leads to a server that is not the primary, or that
    /// wants another password.
    pub(crate) fn breaks_connection(&self) -> bool {
        match self {
            Fault::Command(error) => {
                let other_server = matches!(code(error), Some("READONLY" | "NOAUTH" | "MASTERDOWN"));
                let broken = matches!(error.kind(), Driver::Io | Driver::Parse) && !error.is_timeout();
                other_server || broken || error.is_connection_dropped()
            }
            Fault::Strange(_) | Fault::MixedUp(_) => true,
            Fault::Connect(_) | Fault::Refused(_) => false,
        }
    }

    /// The same fault of this script; if one of its commands is not permitted, with its name.
    pub(crate) fn of_script(self, script: &Script) -> Fault {
        let Fault::Command(source) = &self else { return self };
        let Some((what, place)) = source.detail().and_then(|detail| detail.split_once(" script: ")) else {
            return self;
        };
        let line =
            place.split_once("@user_script:").and_then(|(_, line)| line.trim_end_matches('.').parse().ok());
        match line.and_then(|line| script.commands_in(line)).filter(|_| what.starts_with(IN_A_SCRIPT)) {
            None => self,
            Some(commands) => {
                let error = Error::new(ErrorKind::Denied, not_permitted(&format!("{commands}: {what}")));
                Fault::Refused(error.with_effect(Effect::Unknown).because(source.clone()))
            }
        }
    }

    /// The same fault, with the name of whom no connection could be made to: behind Sentinel the URL does not say.
    pub(crate) fn of_peer(self, who: &str) -> Fault {
        let Fault::Connect(source) = self else { return self };
        let (kind, what) = connecting(&source);
        let what = what.replace("the server's", "its").replace("the server", "it");
        Fault::Refused(Error::new(kind, format!("cannot connect to {who}: {what}")).because(source))
    }

    /// The one of several that says most: that someone cannot be reached is news only if nobody refused, or was refused.
    pub(crate) fn clearest(faults: Vec<Fault>) -> Option<Fault> {
        let says = |fault: &Fault| {
            let error = fault.clone().into_error();
            let unreached = UNREACHED.iter().any(|what| error.to_string().ends_with(what));
            (error.kind() != ErrorKind::Unavailable, !unreached)
        };
        faults.into_iter().max_by_key(says)
    }

    /// As the caller sees it.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Fault::Refused(error) | Fault::MixedUp(error) => error,
            Fault::Strange(what) => Error::new(ErrorKind::Unavailable, what).with_effect(Effect::Unknown),
            Fault::Connect(source) => {
                let (kind, what) = connecting(&source);
                Error::new(kind, format!("cannot connect: {what}")).because(source)
            }
            Fault::Command(source) => {
                let (kind, what, effect) = interpret(&source);
                Error::new(kind, what).with_effect(effect).because(source)
            }
        }
    }
}

fn code(error: &RedisError) -> Option<&str> {
    error.code()
}

/// Why there is no connection. An answer that makes no sense may pass.
fn connecting(source: &RedisError) -> (ErrorKind, String) {
    match interpret(source) {
        (ErrorKind::Corrupt, what, _) => (ErrorKind::Unavailable, what),
        (kind, what, _) => (kind, what),
    }
}

fn floor_too_high(floor: &str) -> String {
    floor
        .parse()
        .map_or_else(|error: Error| error.to_string(), |floor| Error::floor_too_high(floor).to_string())
}

/// What it is, in words, and whether the command may have been executed.
fn interpret(error: &RedisError) -> (ErrorKind, String, Effect) {
    use {Effect::None, ErrorKind::*};
    let Some(code) = code(error) else { return without_code(error) };
    let detail = error.detail().unwrap_or_default();
    let (kind, what) = match code {
        "LIMIT" => (Limit, detail.to_owned()),
        "FLOOR" => (Invalid, floor_too_high(detail)),
        "CORRUPT" => (Corrupt, format!("{detail} holds something that leasehold did not write")),
        "LOADING" => (Unavailable, "the server is still loading its data".to_owned()),
        "READONLY" => (Unavailable, "the server is a read-only replica".to_owned()),
        "MASTERDOWN" => (Unavailable, "the server is a replica that has lost its primary".to_owned()),
        "OOM" => (Unavailable, "the server's memory is full".to_owned()),
        "NOREPLICAS" => (Unavailable, "the server has too few replicas to write".to_owned()),
        "MISCONF" => (Unavailable, "the server cannot save to its disk, and refuses to write".to_owned()),
        "BUSY" | "UNKILLABLE" => (Unavailable, "the server is busy with someone's script".to_owned()),
        "NOSCRIPT" => (Unavailable, "the server forgot the script".to_owned()),
        "TRYAGAIN" | "CLUSTERDOWN" => (Unavailable, "the cluster cannot serve this slot now".to_owned()),
        "MOVED" | "ASK" | "CROSSSLOT" => (Unsupported, IS_CLUSTERED.to_owned()),
        "NOAUTH" => (Denied, "the server wants a password".to_owned()),
        "WRONGPASS" => (Denied, "the server refused the user or the password".to_owned()),
        // A script may have done some of its work by then.
        "NOPERM" if detail.contains("script") => return (Denied, not_permitted(detail), Effect::Unknown),
        "ERR" if detail.starts_with(IN_A_SCRIPT) => return (Denied, not_permitted(detail), Effect::Unknown),
        "NOPERM" => (Denied, not_permitted(detail)),
        "DENIED" => (Denied, "the server is in protected mode".to_owned()),
        "WRONGTYPE" => {
            return (Corrupt, "a key of ours holds something of another type".to_owned(), Effect::Unknown);
        }
        "ERR" if detail.contains("max number of clients") => {
            (Unavailable, "the server has too many clients".to_owned())
        }
        "ERR" if detail.contains("unknown command") => {
            (Unsupported, "the server does not know a command: Redis 7 or later is needed".to_owned())
        }
        _ => return (Corrupt, format!("the server answered {code:.20}: {detail:.200}"), Effect::Unknown),
    };
    (kind, what, None)
}

/// How Redis 7.0 begins to say that a command in a script is not permitted. It does not say which one.
const IN_A_SCRIPT: &str = "The user executing the script";

fn not_permitted(detail: &str) -> String {
    format!("the user may not do this: {detail:.200}")
}

/// What is said of whoever cannot be reached.
const UNREACHED: [&str; 3] = ["no answer in time", "the connection was refused", "the connection was lost"];

fn without_code(error: &RedisError) -> (ErrorKind, String, Effect) {
    use {Effect::*, ErrorKind::*};
    if let Some(why) = distrust(error) {
        return (Unavailable, why, Unknown);
    }
    match error.kind() {
        Driver::AuthenticationFailed => {
            (Denied, "the server refused the user or the password".to_owned(), None)
        }
        Driver::InvalidClientConfig => (Invalid, error.to_string(), None),
        Driver::RESP3NotSupported => (Unsupported, "Redis 7 or later is needed".to_owned(), None),
        _ if error.is_timeout() => (Unavailable, UNREACHED[0].to_owned(), Unknown),
        _ if error.is_connection_refusal() => (Unavailable, UNREACHED[1].to_owned(), Unknown),
        Driver::Io => (Unavailable, UNREACHED[2].to_owned(), Unknown),
        _ => (Unavailable, "the answer could not be read".to_owned(), Unknown),
    }
}

/// Why TLS does not trust the server, if that is what happened. It may pass: a certificate can be renewed.
#[cfg(feature = "tls")]
fn distrust(error: &RedisError) -> Option<String> {
    use rustls::CertificateError as Certificate;
    use std::error::Error;
    let source = error.source()?;
    let shared = source.downcast_ref::<std::sync::Arc<dyn Error + Send + Sync>>();
    let source = shared.map_or(source, |shared| &**shared);
    let tls = source.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref::<rustls::Error>()?;
    let certificate = match tls {
        rustls::Error::InvalidCertificate(certificate) => certificate,
        rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired) => {
            let wanted = "the server wants a certificate of the client: name one with cert_file and key_file, or set \
                          tls-auth-clients to no there";
            return Some(wanted.to_owned());
        }
        other => return Some(format!("no TLS with the server: {other}")),
    };
    Some(match certificate {
        // An issuer of the same name and another key has a signature that does not fit.
        Certificate::UnknownIssuer | Certificate::BadSignature => {
            "the server's certificate is of an issuer that is not trusted: name the \
                                       issuer's with ca_file"
                .to_owned()
        }
        Certificate::Expired | Certificate::ExpiredContext { .. } => {
            "the server's certificate has expired".to_owned()
        }
        Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet".to_owned()
        }
        Certificate::NotValidForName => "the server's certificate is for another host name".to_owned(),
        Certificate::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().map(|name| bare(name)).collect();
            let (asked, names) = (expected.to_str(), names.join(", "));
            format!("the server's certificate is for another host name: not for {asked}, only for {names}")
        }
        Certificate::Revoked => "the server's certificate was revoked".to_owned(),
        other => format!("the server's certificate is not valid: {other}"),
    })
}

/// A name without its kind: `DnsName("cache.internal")`, `IpAddress(10.0.0.7)`.
#[cfg(feature = "tls")]
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

#[cfg(not(feature = "tls"))]
fn distrust(_: &RedisError) -> Option<String> {
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
    fn every_answer_of_redis_has_a_kind_and_an_effect() {
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
            ("LIMIT 1000000 wait in line already", Limit, None, false),
            ("FLOOR 9007199254740990", Invalid, None, false),
            ("CORRUPT lock:v1:{report/42}:fence", Corrupt, None, false),
        ];
        for (line, kind, effect, breaks) in table {
            let fault = Fault::Command(server(line));
            assert_eq!(fault.breaks_connection(), breaks, "{line}");
            let error = fault.into_error();
            assert_eq!((error.kind(), error.effect()), (kind, effect), "{line}: {error:?}");
        }
    }

    #[test]
    fn a_node_says_where_the_slot_is() {
        let redirect = |line: &str| Fault::Command(server(line)).redirect();
        let moved = |host: &str| Some(Redirect::Moved(host.to_owned(), 6381));
        assert_eq!(redirect("MOVED 3999 127.0.0.1:6381"), moved("127.0.0.1"));
        assert_eq!(redirect("MOVED 3999 ::1:6381"), moved("::1"));
        assert_eq!(redirect("MOVED 3999 cache.internal:6381"), moved("cache.internal"));
        assert_eq!(redirect("MOVED 3999 :6381"), moved(""), "the host that was asked");
        assert_eq!(redirect("MOVED 3999 ?:6381"), moved(""));
        assert_eq!(redirect("MOVED nonsense"), None);
        assert_eq!(redirect("ASK 7 10.0.0.7:6381"), Some(Redirect::Ask("10.0.0.7".to_owned(), 6381)));
        assert_eq!(redirect("TRYAGAIN Multiple keys request"), Some(Redirect::TryAgain));
        assert_eq!(redirect("CLUSTERDOWN The cluster is down"), Some(Redirect::Elsewhere));
        assert_eq!(redirect("OOM command not allowed"), None);
    }

    #[test]
    fn what_was_sent_and_not_answered_is_unknown_and_what_was_not_sent_is_not() {
        use io::ErrorKind::*;
        for kind in [TimedOut, ConnectionReset, BrokenPipe, UnexpectedEof, ConnectionRefused] {
            let source = || RedisError::from(io::Error::from(kind));
            let command = Fault::Command(source());
            assert_eq!(command.breaks_connection(), kind != TimedOut, "{kind:?}");
            let error = command.into_error();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown), "{kind:?}");
            let error = Fault::Connect(source()).into_error();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{kind:?}");
        }
    }

    #[test]
    fn of_several_faults_the_one_that_says_most_is_told() {
        let silent = || Fault::Connect(RedisError::from(io::Error::from(io::ErrorKind::TimedOut)));
        let refused = || Fault::Connect(server("WRONGPASS invalid username-password pair"));
        let loading = || Fault::Connect(server("LOADING Redis is loading"));
        let told = |faults: Vec<Fault>| Fault::clearest(faults).unwrap().into_error().to_string();
        assert!(told(vec![refused(), loading(), silent()]).contains("password"));
        assert!(told(vec![loading(), silent().of_peer("someone")]).contains("loading"));
        assert!(told(vec![silent()]).contains("no answer"));
        assert!(Fault::clearest(Vec::new()).is_none());
    }

    #[test]
    fn a_wrong_password_is_denied_at_once() {
        let source = RedisError::from((Driver::AuthenticationFailed, "Password authentication failed"));
        let error = Fault::Connect(source).into_error();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, Effect::None));
    }
}

//! [`StoreError`]: the errors of the driver, the network and etcd, and what they mean for the caller.
//!
//! Every error says whether the request may have had an effect. That decides what the engine does next: after
//! [`Effect::None`] it may simply try again, after [`Effect::Unknown`] it must ask with the same owner token
//! or leave a tombstone.

use std::error::Error as StdError;

use etcd_client::Error as DriverError;
use leasehold_core::{Effect, Error, ErrorKind};

use crate::NAME;

/// Why a request failed.
#[derive(Clone, Debug)]
pub(crate) enum StoreError {
    /// No connection could be made, so nothing was sent. `host:port: why`.
    NotSent(String),
    /// The certificate of the member is not trusted, so nothing was sent. `host:port: why`. The URL or the
    /// certificate has to be changed: to wait does not help.
    Untrusted(String),
    /// A member replied with this gRPC status code and etcd's message.
    Status(i32, String),
    /// The request was sent, and no reply came in time. The member.
    Timeout(String),
    /// The request was sent, and the connection was lost. The member, and why.
    ConnectionLost { member: String, why: String },
    /// The leader changed before the reply to a write came: the write may be lost.
    LeaderChanged,
    /// The reply does not name its request (ADR 0033). The member.
    Misdelivered(String),
    /// The reply is from another cluster than the earlier ones.
    OtherCluster { known: u64, replied: u64 },
    /// The reply is older than one that came before the request was sent.
    StaleReply { known: i64, replied: i64 },
    /// The reply does not have the form that the protocol requires.
    UnexpectedReply(String),
    /// This backend refuses the request, or gave up on it. The error is for the caller as it is.
    Refused(Error),
}

/// gRPC status codes.
mod code {
    pub(super) const CANCELLED: i32 = 1;
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const DEADLINE_EXCEEDED: i32 = 4;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const OUT_OF_RANGE: i32 = 11;
    pub(super) const UNIMPLEMENTED: i32 = 12;
    pub(super) const INTERNAL: i32 = 13;
    pub(super) const UNAVAILABLE: i32 = 14;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

impl From<DriverError> for StoreError {
    fn from(error: DriverError) -> StoreError {
        match error {
            DriverError::GRpcStatus(status) => {
                // A status with a cause was made by the driver from an error of the network. A member sends
                // no causes.
                if status.source().is_some() {
                    from_transport(&status)
                } else {
                    StoreError::Status(status.code() as i32, status.message().to_owned())
                }
            }
            DriverError::LeaseKeepAliveError(message) if message.contains("not found") => {
                StoreError::Status(code::NOT_FOUND, "etcdserver: requested lease not found".to_owned())
            }
            DriverError::TransportError(error) => from_transport(&error),
            DriverError::InvalidUri(_) | DriverError::InvalidArgs(_) => {
                StoreError::NotSent(error.to_string())
            }
            other => StoreError::connection_lost(other.to_string()),
        }
    }
}

/// Texts of the driver that say that no connection was made.
const CONNECT_ERRORS: [&str; 5] =
    ["connect error", "dns error", "Connection refused", "invalid peer certificate", "handshake"];

/// Tells a failed connection attempt from a lost connection. The driver has no error kinds for that, only
/// texts. The last cause is the one that people understand.
fn from_transport(error: &(dyn StdError + 'static)) -> StoreError {
    let causes: Vec<String> =
        std::iter::successors(Some(error), |&error| error.source()).map(ToString::to_string).collect();
    let could_not_connect = causes.iter().any(|cause| CONNECT_ERRORS.iter().any(|text| cause.contains(text)));
    let why = causes.last().cloned().unwrap_or_default();
    if let Some(untrusted) = explain_untrusted(&why) {
        return StoreError::Untrusted(untrusted.to_owned());
    }
    let why = explain_unreachable(why);
    if could_not_connect { StoreError::NotSent(why) } else { StoreError::connection_lost(why) }
}

/// Why the certificate of a member is not trusted, if that is what the driver says. It has texts only, those of
/// rustls.
fn explain_untrusted(why: &str) -> Option<&'static str> {
    const TABLE: [(&str, &str); 4] = [
        (
            "UnknownIssuer",
            "its certificate is of an issuer that is not trusted: name the certificate of the issuer with ca_file",
        ),
        // An issuer with the same name and another key.
        (
            "BadSignature",
            "its certificate is of an issuer that is not trusted: name the certificate of the issuer with ca_file",
        ),
        (
            "CaUsedAsEndEntity",
            "its certificate is self-signed and that of an issuer: give the server a certificate of its own, and \
             name that of the issuer with ca_file",
        ),
        (
            "not valid for name",
            "its certificate is for another host name: use a host name of the certificate, or set server_name",
        ),
    ];
    let is_certificate = why.contains("certificate");
    TABLE.iter().find(|(text, _)| is_certificate && why.contains(text)).map(|(_, explained)| *explained)
}

/// The words of the system for a name that does not exist do not say that it is about the name.
fn explain_unreachable(why: String) -> String {
    match why.split_once("failed to lookup address information: ") {
        Some((_, cause)) => format!("the host name cannot be resolved: {cause}"),
        None => why,
    }
}

impl StoreError {
    /// The reply does not name its request.
    pub(crate) fn misdelivered() -> StoreError {
        StoreError::Misdelivered(NAME.to_owned())
    }

    /// No reply came in time.
    pub(crate) fn timeout() -> StoreError {
        StoreError::Timeout(NAME.to_owned())
    }

    fn connection_lost(why: String) -> StoreError {
        StoreError::ConnectionLost { member: NAME.to_owned(), why }
    }

    /// The resource changed again and again while a verb worked on it.
    pub(crate) fn too_much_contention(what: &str) -> StoreError {
        let message = format!("{what}, because other clients change it all the time: try again later");
        StoreError::Refused(Error::new(ErrorKind::Unavailable, message))
    }

    /// Adds the member that the request was sent to.
    pub(crate) fn of_member(self, host: &str, port: u16) -> StoreError {
        let member = format!("{host}:{port}");
        match self {
            StoreError::NotSent(why) => StoreError::NotSent(format!("{member}: {why}")),
            StoreError::Untrusted(why) => StoreError::Untrusted(format!("{member}: {why}")),
            StoreError::Misdelivered(_) => StoreError::Misdelivered(member),
            StoreError::Timeout(_) => StoreError::Timeout(member),
            StoreError::ConnectionLost { why, .. } => StoreError::ConnectionLost { member, why },
            other => other,
        }
    }

    /// Whether nothing was sent: then any request may be sent to another member.
    pub(crate) fn was_not_sent(&self) -> bool {
        matches!(self, StoreError::NotSent(_) | StoreError::Untrusted(_))
    }

    /// Whether another member may succeed: this one is down, cut off, or without a leader.
    pub(crate) fn blames_member(&self) -> bool {
        match self {
            StoreError::NotSent(_)
            | StoreError::Untrusted(_)
            | StoreError::Timeout(_)
            | StoreError::ConnectionLost { .. }
            | StoreError::Misdelivered(_)
            | StoreError::OtherCluster { .. }
            | StoreError::StaleReply { .. } => true,
            StoreError::Status(number, message) => {
                matches!(*number, code::UNAVAILABLE | code::CANCELLED) || needs_login(*number, message)
            }
            StoreError::LeaderChanged | StoreError::UnexpectedReply(_) | StoreError::Refused(_) => false,
        }
    }

    /// Whether the connection itself may be at fault, so that it must be replaced.
    pub(crate) fn breaks_connection(&self) -> bool {
        match self {
            StoreError::Timeout(_)
            | StoreError::ConnectionLost { .. }
            | StoreError::Misdelivered(_)
            | StoreError::OtherCluster { .. }
            | StoreError::StaleReply { .. } => true,
            // The driver logs in when it connects: a new connection is a new login.
            StoreError::Status(number, message) => needs_login(*number, message),
            StoreError::NotSent(_)
            | StoreError::Untrusted(_)
            | StoreError::LeaderChanged
            | StoreError::UnexpectedReply(_)
            | StoreError::Refused(_) => false,
        }
    }

    /// Whether the member could not be reached.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(
            self,
            StoreError::NotSent(_)
                | StoreError::Untrusted(_)
                | StoreError::Timeout(_)
                | StoreError::ConnectionLost { .. }
        )
    }

    /// Whether there is no leader at the moment, and nothing was done: the same request may succeed soon.
    pub(crate) fn is_leaderless(&self) -> bool {
        matches!(self, StoreError::Status(_, message) if lacks_leader(message))
    }

    /// Whether a read failed because the leader changed.
    pub(crate) fn is_leader_change(&self) -> bool {
        matches!(self, StoreError::Status(code::UNAVAILABLE, message) if message.contains("leader changed"))
    }

    /// Whether an etcd lease of the request does not exist any more.
    pub(crate) fn is_lease_gone(&self) -> bool {
        matches!(self, StoreError::Status(code::NOT_FOUND, message) if message.contains("lease not found"))
    }

    /// Whether etcd has refused a transaction because of what it contains, and so done nothing. Each of its
    /// parts may still be accepted if it is sent alone.
    pub(crate) fn refuses_transaction(&self) -> bool {
        matches!(self, StoreError::Status(..))
            && self.has_no_effect()
            && !self.blames_member()
            && !self.is_leaderless()
    }

    /// Whether etcd allows fewer operations in a transaction.
    pub(crate) fn is_too_many_operations(&self) -> bool {
        matches!(self, StoreError::Status(_, message) if message.contains("too many operations"))
    }

    /// Whether a stored value cannot be read.
    pub(crate) fn is_corrupt(&self) -> bool {
        matches!(self, StoreError::Refused(error) if error.kind() == ErrorKind::Corrupt)
    }

    /// Whether the request certainly had no effect.
    pub(crate) fn has_no_effect(&self) -> bool {
        self.clone().into_error().effect() == Effect::None
    }

    /// The error for the caller.
    pub(crate) fn into_error(self) -> Error {
        let (what, effect) = match self {
            StoreError::Refused(error) => return error,
            StoreError::Misdelivered(server) => return Error::misdelivered(&server),
            StoreError::Status(number, message) => {
                let (kind, what, effect) = interpret(number, &message);
                return Error::new(kind, what).with_effect(effect);
            }
            StoreError::NotSent(why) => (format!("cannot connect to {why:.300}"), Effect::None),
            StoreError::Untrusted(why) => {
                return Error::new(ErrorKind::Denied, format!("cannot connect to {why:.300}"));
            }
            StoreError::Timeout(member) => {
                let what = format!("no reply from {member} in time: it may be down or slow (option timeout)");
                (what, Effect::Unknown)
            }
            StoreError::ConnectionLost { member, why } => {
                (format!("the connection to {member} was lost: {why:.300}"), Effect::Unknown)
            }
            StoreError::LeaderChanged => {
                let what = "the leader of the etcd cluster changed before the reply to a write came";
                (what.to_owned(), Effect::Unknown)
            }
            StoreError::OtherCluster { known, replied } => {
                let what = format!(
                    "the reply is from another etcd cluster (id {replied:x}, expected {known:x}): check the hosts in \
                     the URL; if the cluster was replaced, restart this program"
                );
                (what, Effect::Unknown)
            }
            StoreError::StaleReply { known, replied } => {
                let what = format!(
                    "the reply is from revision {replied}, but revision {known} was seen before: a proxy delivers old \
                     replies, or etcd was restored from an older snapshot; then restart this program"
                );
                (what, Effect::Unknown)
            }
            StoreError::UnexpectedReply(what) => {
                (format!("etcd sent an unexpected reply: {what}"), Effect::Unknown)
            }
        };
        Error::new(ErrorKind::Unavailable, what).with_effect(effect)
    }
}

/// Whether a new login may help: the token is from before a change of users, or the password has changed.
fn needs_login(number: i32, message: &str) -> bool {
    let texts = ["authentication failed", "invalid auth token", "revision of auth store is old"];
    number == code::UNAUTHENTICATED || texts.iter().any(|text| message.contains(text))
}

/// Whether a member says that it did nothing because it has no leader. A dropped proposal is in no log.
fn lacks_leader(message: &str) -> bool {
    ["etcdserver: no leader", "raft proposal dropped"].iter().any(|text| message.contains(text))
}

/// What a status means for the caller, and whether the request may have had an effect.
fn interpret(number: i32, message: &str) -> (ErrorKind, String, Effect) {
    use {Effect::*, ErrorKind::*};
    let reason = message.strip_prefix("etcdserver: ").unwrap_or(message);
    let (kind, what, effect) = match number {
        _ if reason.contains("revision of auth store is old") => {
            (Unavailable, "the users of etcd have changed, so a new login is needed: try again", None)
        }
        _ if reason.contains("user name is empty") => {
            (Denied, "etcd wants a user and a password: write etcd://user:password@host", None)
        }
        _ if needs_login(number, reason) => {
            (Denied, "etcd refused the user or the password: check them in the URL", None)
        }
        code::PERMISSION_DENIED => (
            Denied,
            "the etcd user has no permission: grant it readwrite on the prefix of all keys (option root)",
            None,
        ),
        code::RESOURCE_EXHAUSTED if reason.contains("space exceeded") => (
            Unavailable,
            "the database of etcd is full: compact and defragment it, then disarm the alarm",
            None,
        ),
        _ if lacks_leader(message) => {
            (Unavailable, "the etcd member has no leader: a majority of the members must be up", None)
        }
        code::UNIMPLEMENTED => (Unsupported, "etcd does not know the request: use etcd 3.4 or later", None),
        _ => return interpret_with_reason(number, reason),
    };
    (kind, what.to_owned(), effect)
}

/// The statuses whose meaning is in the message of etcd.
fn interpret_with_reason(number: i32, reason: &str) -> (ErrorKind, String, Effect) {
    use {Effect::*, ErrorKind::*};
    match number {
        code::RESOURCE_EXHAUSTED => (Unavailable, format!("etcd is overloaded: {reason:.200}"), None),
        code::NOT_FOUND => (Unavailable, format!("etcd reports: {reason:.200}"), None),
        code::UNAVAILABLE | code::DEADLINE_EXCEEDED | code::CANCELLED | code::UNKNOWN | code::INTERNAL => {
            (Unavailable, format!("etcd reports: {reason:.200}"), Unknown)
        }
        code::INVALID_ARGUMENT | code::FAILED_PRECONDITION | code::OUT_OF_RANGE => {
            (Corrupt, format!("etcd rejected the request: {reason:.200}"), None)
        }
        _ => (Unavailable, format!("etcd replied with gRPC status {number}: {reason:.200}"), Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_of_etcd_has_a_kind_and_an_effect() {
        use {Effect::*, ErrorKind::*};
        let table = [
            (14, "etcdserver: no leader", Unavailable, None),
            (2, "raft proposal dropped", Unavailable, None),
            (14, "etcdserver: leader changed", Unavailable, Unknown),
            (14, "etcdserver: request timed out", Unavailable, Unknown),
            (
                14,
                "etcdserver: request timed out, possibly due to previous leader failure",
                Unavailable,
                Unknown,
            ),
            (14, "etcdserver: server stopped", Unavailable, Unknown),
            (4, "context deadline exceeded", Unavailable, Unknown),
            (1, "context canceled", Unavailable, Unknown),
            (13, "stream terminated", Unavailable, Unknown),
            (8, "etcdserver: mvcc: database space exceeded", Unavailable, None),
            (8, "etcdserver: too many requests", Unavailable, None),
            (5, "etcdserver: requested lease not found", Unavailable, None),
            (16, "etcdserver: invalid auth token", Denied, None),
            (3, "etcdserver: authentication failed, invalid user ID or password", Denied, None),
            (3, "etcdserver: user name is empty", Denied, None),
            (3, "etcdserver: revision of auth store is old", Unavailable, None),
            (7, "etcdserver: permission denied", Denied, None),
            (3, "etcdserver: duplicate key given in txn request", Corrupt, None),
            (11, "etcdserver: mvcc: required revision has been compacted", Corrupt, None),
            (12, "unknown service", Unsupported, None),
        ];
        for (number, message, kind, effect) in table {
            let error = StoreError::Status(number, message.to_owned()).into_error();
            assert_eq!((error.kind(), error.effect()), (kind, effect), "{message}: {error:?}");
        }
    }

    #[test]
    fn the_effect_is_unknown_if_the_request_was_sent_and_none_if_it_was_not() {
        let table = [
            (StoreError::NotSent("tcp connect error".to_owned()), Effect::None),
            (StoreError::timeout(), Effect::Unknown),
            (StoreError::connection_lost("connection reset".to_owned()), Effect::Unknown),
            (StoreError::UnexpectedReply("?".to_owned()), Effect::Unknown),
            (StoreError::LeaderChanged, Effect::Unknown),
            (StoreError::misdelivered(), Effect::Unknown),
            (StoreError::OtherCluster { known: 1, replied: 2 }, Effect::Unknown),
            (StoreError::StaleReply { known: 9, replied: 8 }, Effect::Unknown),
        ];
        for (error, effect) in table {
            let error = error.into_error();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, effect), "{error:?}");
        }
    }

    #[test]
    fn an_error_of_the_network_has_the_text_of_its_last_cause() {
        #[derive(Debug)]
        struct FakeError(&'static str, Option<std::io::Error>);
        impl std::fmt::Display for FakeError {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.0)
            }
        }
        impl StdError for FakeError {
            fn source(&self) -> Option<&(dyn StdError + 'static)> {
                self.1.as_ref().map(|error| error as _)
            }
        }
        let refused = FakeError("tcp connect error", Some(std::io::ErrorKind::ConnectionRefused.into()));
        let error = from_transport(&refused).of_member("e1", 2379).into_error();
        assert_eq!(error.effect(), Effect::None);
        assert_eq!(error.to_string(), "cannot connect to e1:2379: connection refused");
        let reset = FakeError("transport error", Some(std::io::ErrorKind::ConnectionReset.into()));
        let error = from_transport(&reset).of_member("e1", 2379).into_error();
        assert_eq!(error.effect(), Effect::Unknown);
        assert_eq!(error.to_string(), "the connection to e1:2379 was lost: connection reset");
    }

    #[test]
    fn an_error_of_connecting_says_why_in_words() {
        use ErrorKind::{Denied, Unavailable};
        let table = [
            ("invalid peer certificate: UnknownIssuer", Denied, "issuer that is not trusted"),
            ("invalid peer certificate: BadSignature", Denied, "issuer that is not trusted"),
            ("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", Denied, "self-signed"),
            (
                "invalid peer certificate: certificate not valid for name \"a\"; certificate is only valid for b",
                Denied,
                "another host name",
            ),
            ("invalid peer certificate: certificate expired", Unavailable, "certificate expired"),
            (
                "failed to lookup address information: Name or service not known",
                Unavailable,
                "the host name cannot be resolved: Name or service not known",
            ),
        ];
        for (text, kind, words) in table {
            let driver = std::io::Error::other(format!("tcp connect error: {text}"));
            let error = from_transport(&driver).of_member("e1", 2379).into_error();
            assert!(error.to_string().starts_with("cannot connect to e1:2379: "), "{error}");
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!((error.kind(), error.effect()), (kind, Effect::None), "{text}");
        }
    }

    #[test]
    fn a_missing_lease_is_recognised_and_a_missing_user_is_not_one() {
        assert!(
            StoreError::from(DriverError::LeaseKeepAliveError("lease not found".to_owned())).is_lease_gone()
        );
        assert!(!StoreError::Status(5, "etcdserver: user not found".to_owned()).is_lease_gone());
    }
}

//! What etcd and the network say, in the words of the contract.

use std::error::Error as StdError;

use etcd_client::Error as Driver;
use leasehold_core::{Effect, Error, ErrorKind};

use crate::NAME;

/// Why a call came to nothing, or why it is not known whether it did.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// No connection could be made: nothing was sent. To whom, and why.
    NotSent(String),
    /// A member answered with this status: a number of gRPC, and etcd's own words.
    Status(i32, String),
    /// Something was sent, and no answer came in time.
    Silent,
    /// Something was sent, and the connection was lost.
    Broken(String),
    /// The leader changed while a change was under way: it may be lost.
    LeaderChanged,
    /// An answer does not name its request. From which server.
    Misdelivered(String),
    /// An answer is of another cluster than those before.
    OtherCluster { known: u64, answered: u64 },
    /// An answer is older than one that came before the request was sent.
    Outdated { known: i64, answered: i64 },
    /// An answer makes no sense.
    Strange(String),
    /// Refused by us.
    Refused(Error),
}

/// Numbers of gRPC.
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

impl From<Driver> for Fault {
    fn from(error: Driver) -> Fault {
        match error {
            Driver::GRpcStatus(status) => {
                let (number, message) = (status.code() as i32, status.message().to_owned());
                // One that has a cause was made here, not by a member.
                if status.source().is_some() { of_transport(&status) } else { Fault::Status(number, message) }
            }
            Driver::LeaseKeepAliveError(message) if message.contains("not found") => {
                Fault::Status(code::NOT_FOUND, "etcdserver: requested lease not found".to_owned())
            }
            Driver::TransportError(error) => of_transport(&error),
            Driver::InvalidUri(_) | Driver::InvalidArgs(_) => Fault::NotSent(error.to_string()),
            other => Fault::Broken(other.to_string()),
        }
    }
}

/// What the network did. The driver has no kinds to ask for: its words are all there is, and the last of them are those
/// that people understand.
fn of_transport(error: &(dyn StdError + 'static)) -> Fault {
    let causes: Vec<String> =
        std::iter::successors(Some(error), |&error| error.source()).map(ToString::to_string).collect();
    let marks = ["connect error", "dns error", "Connection refused", "invalid peer certificate", "handshake"];
    let could_not_connect = causes.iter().any(|cause| marks.iter().any(|mark| cause.contains(mark)));
    let why = causes.last().cloned().unwrap_or_default();
    if could_not_connect { Fault::NotSent(why) } else { Fault::Broken(why) }
}

impl Fault {
    /// An answer does not name its request.
    pub(crate) fn misdelivered() -> Fault {
        Fault::Misdelivered(NAME.to_owned())
    }

    /// Says which member it was.
    pub(crate) fn of_member(self, host: &str, port: u16) -> Fault {
        match self {
            Fault::NotSent(why) => Fault::NotSent(format!("{host}:{port}: {why}")),
            Fault::Misdelivered(_) => Fault::Misdelivered(format!("{host}:{port}")),
            other => other,
        }
    }

    /// Whether the same may be asked of another member: nothing was sent.
    pub(crate) fn was_not_sent(&self) -> bool {
        matches!(self, Fault::NotSent(_))
    }

    /// Whether another member may do better: this one is gone, cut off, or without a leader.
    pub(crate) fn blames_member(&self) -> bool {
        match self {
            Fault::NotSent(_)
            | Fault::Silent
            | Fault::Broken(_)
            | Fault::Misdelivered(_)
            | Fault::OtherCluster { .. }
            | Fault::Outdated { .. } => true,
            Fault::Status(number, message) => {
                matches!(*number, code::UNAVAILABLE | code::CANCELLED) || wants_login(*number, message)
            }
            Fault::LeaderChanged | Fault::Strange(_) | Fault::Refused(_) => false,
        }
    }

    /// Whether the connection may be what is wrong: the next attempt makes a new one.
    pub(crate) fn breaks_connection(&self) -> bool {
        match self {
            Fault::Silent
            | Fault::Broken(_)
            | Fault::Misdelivered(_)
            | Fault::OtherCluster { .. }
            | Fault::Outdated { .. } => true,
            Fault::Status(number, message) => wants_login(*number, message),
            Fault::NotSent(_) | Fault::LeaderChanged | Fault::Strange(_) | Fault::Refused(_) => false,
        }
    }

    /// Whether the member could not be reached.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Fault::NotSent(_) | Fault::Silent | Fault::Broken(_))
    }

    /// Whether there is no leader at the moment, and nothing was done: it is worth asking again soon.
    pub(crate) fn is_leaderless(&self) -> bool {
        matches!(self, Fault::Status(_, message) if lacks_leader(message))
    }

    /// Whether a read came to nothing because the leader changed.
    pub(crate) fn is_leader_change(&self) -> bool {
        matches!(self, Fault::Status(code::UNAVAILABLE, message) if message.contains("leader changed"))
    }

    /// Whether an etcd lease is gone.
    pub(crate) fn is_lease_gone(&self) -> bool {
        matches!(self, Fault::Status(code::NOT_FOUND, message) if message.contains("lease not found"))
    }

    /// Whether nothing was executed, for sure.
    pub(crate) fn has_no_effect(&self) -> bool {
        self.clone().into_error().effect() == Effect::None
    }

    /// As the caller sees it.
    pub(crate) fn into_error(self) -> Error {
        let (kind, what, effect) = match self {
            Fault::Refused(error) => return error,
            Fault::NotSent(why) => {
                (ErrorKind::Unavailable, format!("cannot connect to {why:.300}"), Effect::None)
            }
            Fault::Silent => (ErrorKind::Unavailable, "no answer in time".to_owned(), Effect::Unknown),
            Fault::Broken(why) => {
                (ErrorKind::Unavailable, format!("the connection was lost: {why:.300}"), Effect::Unknown)
            }
            Fault::LeaderChanged => {
                (ErrorKind::Unavailable, "etcd's leader changed meanwhile".to_owned(), Effect::Unknown)
            }
            Fault::Misdelivered(server) => return Error::misdelivered(&server),
            Fault::OtherCluster { known, answered } => {
                let what = format!(
                    "the answer is from another etcd cluster ({answered:x}, not {known:x}): if the cluster was \
                     replaced, restart this program"
                );
                (ErrorKind::Unavailable, what, Effect::Unknown)
            }
            Fault::Outdated { known, answered } => {
                let what = format!(
                    "the answer is of revision {answered}, and {known} was seen before: a proxy delivers old answers, or \
                     etcd was restored from older data"
                );
                (ErrorKind::Unavailable, what, Effect::Unknown)
            }
            Fault::Strange(what) => (ErrorKind::Unavailable, what, Effect::Unknown),
            Fault::Status(number, message) => interpret(number, &message),
        };
        Error::new(kind, what).with_effect(effect)
    }
}

/// Whether another login may help: the token is of before a change of users, or the password has changed.
fn wants_login(number: i32, message: &str) -> bool {
    let said = ["authentication failed", "invalid auth token", "revision of auth store is old"];
    number == code::UNAUTHENTICATED || said.iter().any(|said| message.contains(said))
}

/// Whether a member says that it did nothing, for want of a leader. A proposal is dropped before it is in any log.
fn lacks_leader(message: &str) -> bool {
    ["etcdserver: no leader", "raft proposal dropped"].iter().any(|said| message.contains(said))
}

/// What a status means, in words, and whether the request may have been executed.
fn interpret(number: i32, message: &str) -> (ErrorKind, String, Effect) {
    use {Effect::*, ErrorKind::*};
    let said = message.strip_prefix("etcdserver: ").unwrap_or(message);
    let refused = "etcd refused the user or the password";
    match number {
        _ if said.contains("revision of auth store is old") => {
            (Unavailable, "etcd's users have changed: another login is needed".to_owned(), None)
        }
        _ if said.contains("user name is empty") => {
            (Denied, "etcd wants a user and a password".to_owned(), None)
        }
        _ if wants_login(number, said) => (Denied, refused.to_owned(), None),
        code::PERMISSION_DENIED => {
            (Denied, "the user may not read and write the keys under the root".to_owned(), None)
        }
        code::RESOURCE_EXHAUSTED if said.contains("space exceeded") => (
            Unavailable,
            "etcd's database is full: compact and defragment it, then disarm the alarm".to_owned(),
            None,
        ),
        code::RESOURCE_EXHAUSTED => (Unavailable, format!("etcd has too much to do: {said:.200}"), None),
        code::NOT_FOUND => (Unavailable, format!("etcd says: {said:.200}"), None),
        _ if lacks_leader(message) => (Unavailable, "the member has no leader".to_owned(), None),
        code::UNAVAILABLE | code::DEADLINE_EXCEEDED | code::CANCELLED | code::UNKNOWN | code::INTERNAL => {
            (Unavailable, format!("etcd says: {said:.200}"), Unknown)
        }
        code::INVALID_ARGUMENT | code::FAILED_PRECONDITION | code::OUT_OF_RANGE => {
            (Corrupt, format!("etcd does not take the request: {said:.200}"), None)
        }
        code::UNIMPLEMENTED => {
            (Unsupported, "etcd does not know the request: 3.4 or later is needed".to_owned(), None)
        }
        _ => (Unavailable, format!("etcd answered {number}: {said:.200}"), Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_of_etcd_has_a_kind_and_an_effect() {
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
            let error = Fault::Status(number, message.to_owned()).into_error();
            assert_eq!((error.kind(), error.effect()), (kind, effect), "{message}: {error:?}");
        }
    }

    #[test]
    fn what_was_sent_and_not_answered_is_unknown_and_what_was_not_sent_is_not() {
        let table = [
            (Fault::NotSent("tcp connect error".to_owned()), Effect::None),
            (Fault::Silent, Effect::Unknown),
            (Fault::Broken("connection reset".to_owned()), Effect::Unknown),
            (Fault::Strange("?".to_owned()), Effect::Unknown),
            (Fault::LeaderChanged, Effect::Unknown),
            (Fault::misdelivered(), Effect::Unknown),
            (Fault::OtherCluster { known: 1, answered: 2 }, Effect::Unknown),
            (Fault::Outdated { known: 9, answered: 8 }, Effect::Unknown),
        ];
        for (fault, effect) in table {
            let error = fault.into_error();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, effect), "{error:?}");
        }
    }

    #[test]
    fn what_the_network_did_is_said_in_its_own_words() {
        #[derive(Debug)]
        struct Told(&'static str, Option<std::io::Error>);
        impl std::fmt::Display for Told {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.0)
            }
        }
        impl StdError for Told {
            fn source(&self) -> Option<&(dyn StdError + 'static)> {
                self.1.as_ref().map(|error| error as _)
            }
        }
        let refused = Told("tcp connect error", Some(std::io::ErrorKind::ConnectionRefused.into()));
        let error = of_transport(&refused).of_member("e1", 2379).into_error();
        assert_eq!(error.effect(), Effect::None);
        assert_eq!(error.to_string(), "cannot connect to e1:2379: connection refused");
        let reset = Told("transport error", Some(std::io::ErrorKind::ConnectionReset.into()));
        let error = of_transport(&reset).of_member("e1", 2379).into_error();
        assert_eq!(error.effect(), Effect::Unknown);
        assert_eq!(error.to_string(), "the connection was lost: connection reset");
    }

    #[test]
    fn a_lease_that_is_gone_is_told_apart() {
        assert!(Fault::from(Driver::LeaseKeepAliveError("lease not found".to_owned())).is_lease_gone());
        assert!(!Fault::Status(5, "etcdserver: user not found".to_owned()).is_lease_gone());
    }
}

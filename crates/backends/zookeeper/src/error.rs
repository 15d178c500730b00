//! Translates errors of the ZooKeeper driver into errors of the backend contract.
//!
//! The most important question about an error is whether the servers may have executed the request:
//!
//! - [`Effect::None`]: the server refused the request, or it was never sent.
//! - [`Effect::Unknown`]: the connection broke, the session ended, or the reply did not belong to the
//!   request. The engine then asks again with the same owner token, or ends the claim with a tombstone.

use std::io;

use leasehold_core::{Effect, Error, ErrorKind};
use zookeeper_client::Error as Driver;

use crate::ROUNDS_MAX;

/// An error of the ZooKeeper driver, or of this backend, before it is returned as [`leasehold_core::Error`].
#[derive(Clone, Debug)]
pub(crate) struct StoreError {
    error: Error,
    /// The session is over. The servers have deleted all its ephemeral nodes, or will do so soon.
    pub(crate) session_ended: bool,
}

impl StoreError {
    /// No session could be established with these servers. No request was sent, so there is no effect.
    pub(crate) fn cannot_connect(ensemble: &str, source: Driver) -> StoreError {
        let (kind, _) = kind_and_effect(&source);
        let message = format!("cannot connect to ZooKeeper at {ensemble}: {}", explain(&source));
        StoreError::from(Error::new(kind, message).because(source))
    }

    /// No session could be established. `causes` has every server and what is wrong with it.
    pub(crate) fn no_session(causes: &str) -> StoreError {
        StoreError::from(Error::new(ErrorKind::Unavailable, format!("cannot connect to {causes}")))
    }

    /// The same error, but an earlier request of the same call has changed something.
    pub(crate) fn after_effect(self) -> StoreError {
        StoreError { error: self.error.with_effect(Effect::Unknown), ..self }
    }

    /// Whether the nodes of a resource cannot be read, or their sequence numbers have overflowed. This says nothing
    /// about other resources.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self.error.kind(), ErrorKind::Corrupt | ErrorKind::Limit)
    }

    /// The error as the caller of the backend sees it.
    pub(crate) fn into_error(self) -> Error {
        self.error
    }

    /// The reply cannot be the reply to our request (ADR 0033).
    pub(crate) fn foreign_reply() -> StoreError {
        StoreError::from(Driver::UnexpectedError("the reply does not fit the request".to_owned()))
    }

    /// Other clients changed the nodes of the resource during each of our attempts.
    pub(crate) fn contention() -> StoreError {
        let message = format!(
            "other clients changed the nodes of the resource during all {ROUNDS_MAX} attempts; try again"
        );
        StoreError::from(Error::new(ErrorKind::Unavailable, message))
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> StoreError {
        StoreError { error, session_ended: false }
    }
}

impl From<Driver> for StoreError {
    fn from(source: Driver) -> StoreError {
        let (kind, effect) = kind_and_effect(&source);
        let session_ended =
            matches!(source, Driver::SessionExpired | Driver::SessionMoved | Driver::ClientClosed);
        StoreError {
            error: Error::new(kind, explain(&source)).with_effect(effect).because(source),
            session_ended,
        }
    }
}

/// Why no connection could be opened, in words.
pub(crate) fn explain_io(error: &io::Error) -> String {
    let text = error.to_string();
    match (error.kind(), text.split_once("failed to lookup address information: ")) {
        (io::ErrorKind::ConnectionRefused, _) => "connection refused".to_owned(),
        (_, Some((_, cause))) => format!("the host name cannot be resolved: {cause}"),
        _ => text,
    }
}

/// The kind of a driver's error, and whether the servers may have executed the request.
fn kind_and_effect(error: &Driver) -> (ErrorKind, Effect) {
    use {Effect::*, ErrorKind::*};
    match error {
        Driver::NoAuth | Driver::AuthFailed | Driver::InvalidAcl => (Denied, None),
        Driver::NoHosts | Driver::NotReadOnly | Driver::Throttled => (Unavailable, None),
        // The server refused the operation, because another client came first.
        Driver::NoNode | Driver::NodeExists | Driver::BadVersion | Driver::RuntimeInconsistent => {
            (Unavailable, None)
        }
        Driver::NotEmpty | Driver::NoChildrenForEphemerals => (Corrupt, None),
        Driver::QuotaExceeded => (Limit, None),
        Driver::MarshallingError | Driver::BadArguments(_) => (Invalid, None),
        Driver::Unimplemented => (Unsupported, None),
        // The connection broke, the session ended, the reply was not ours, or a code that we do not know.
        _ => (Unavailable, Unknown),
    }
}

/// What a driver's error means and what to do about it.
fn explain(error: &Driver) -> &'static str {
    match error {
        Driver::NoAuth => {
            "the user may not read or write a node of leasehold: connect as the user that created \
             /leasehold below the chroot, or choose another chroot"
        }
        Driver::AuthFailed => "the servers refused the user or the password: check the login in the URL",
        Driver::InvalidAcl => {
            "the servers refused the ACL of a new node: check that they accept the digest scheme"
        }
        Driver::NoHosts => "no server answers: check the hosts, the ports and that the servers run",
        Driver::NotReadOnly => {
            "the server has no contact with a majority of its ensemble and only serves reads"
        }
        Driver::Throttled => "the server is overloaded and rejects requests; try again",
        Driver::NoNode | Driver::NodeExists | Driver::BadVersion | Driver::RuntimeInconsistent => {
            "another client changed the same node at the same time; try again"
        }
        Driver::NotEmpty | Driver::NoChildrenForEphemerals => {
            "another program has created or changed a node below /leasehold/v1 in a way that leasehold \
             cannot use: look at it with zkCli.sh"
        }
        Driver::QuotaExceeded => "the ZooKeeper quota of the chroot is used up: raise it with setquota",
        Driver::MarshallingError => "the server could not decode the request",
        Driver::Unimplemented => "the server is too old: use ZooKeeper 3.6 or later",
        Driver::BadArguments(_) => "the path is not valid in ZooKeeper",
        Driver::SessionExpired | Driver::SessionMoved | Driver::ClientClosed => {
            "the ZooKeeper session has ended, and its leases with it; the next call begins a new session"
        }
        Driver::UnexpectedError(_) => {
            "the reply belongs to another request: check whether a proxy between client and servers mixes \
             up connections"
        }
        Driver::ConnectionLoss => "the connection was lost before the reply came; the driver reconnects",
        Driver::Timeout => "the server did not reply in time",
        _ => "the connection to the server failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_driver_error_has_a_kind_and_an_effect() {
        use {Effect::*, ErrorKind::*};
        let table = [
            (Driver::NoAuth, Denied, None, false),
            (Driver::AuthFailed, Denied, None, false),
            (Driver::InvalidAcl, Denied, None, false),
            (Driver::NoHosts, Unavailable, None, false),
            (Driver::NotReadOnly, Unavailable, None, false),
            (Driver::Throttled, Unavailable, None, false),
            (Driver::NodeExists, Unavailable, None, false),
            (Driver::NoNode, Unavailable, None, false),
            (Driver::BadVersion, Unavailable, None, false),
            (Driver::NotEmpty, Corrupt, None, false),
            (Driver::QuotaExceeded, Limit, None, false),
            (Driver::Unimplemented, Unsupported, None, false),
            (Driver::ConnectionLoss, Unavailable, Unknown, false),
            (Driver::Timeout, Unavailable, Unknown, false),
            (Driver::UnexpectedErrorCode(-9), Unavailable, Unknown, false),
            (Driver::UnexpectedError("xid 7".into()), Unavailable, Unknown, false),
            (Driver::SessionExpired, Unavailable, Unknown, true),
            (Driver::SessionMoved, Unavailable, Unknown, true),
            (Driver::ClientClosed, Unavailable, Unknown, true),
        ];
        for (driver, kind, effect, session_ended) in table {
            let error = StoreError::from(driver.clone());
            assert_eq!(error.session_ended, session_ended, "{driver:?}");
            let error = error.into_error();
            assert_eq!((error.kind(), error.effect()), (kind, effect), "{driver:?}");
        }
    }

    #[test]
    fn an_error_of_connecting_names_the_servers_and_has_no_effect() {
        let error = StoreError::cannot_connect("zk1:2181,zk2:2181", Driver::AuthFailed).into_error();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, Effect::None));
        assert!(
            error.to_string().starts_with("cannot connect to ZooKeeper at zk1:2181,zk2:2181: "),
            "{error}"
        );
        let error = StoreError::no_session("zk1:2181: connection refused").into_error();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
        assert_eq!(error.to_string(), "cannot connect to zk1:2181: connection refused");
    }
}

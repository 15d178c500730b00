//! What ZooKeeper and the network say, in the words of the contract.

use leasehold_core::{Effect, Error, ErrorKind};
use zookeeper_client::{Error as Driver, MultiWriteError};

/// Why a call came to nothing, or why it is not known whether it did.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    error: Error,
    /// The session is over: everything that it held is gone, or goes soon.
    pub(crate) ended: bool,
}

impl Fault {
    pub(crate) fn of(source: Driver) -> Fault {
        let (kind, what, effect) = interpret(&source);
        let ended = matches!(source, Driver::SessionExpired | Driver::SessionMoved | Driver::ClientClosed);
        Fault { error: Error::new(kind, what).with_effect(effect).because(source), ended }
    }

    /// No session could be made: nothing was asked for yet.
    pub(crate) fn connecting(source: Driver) -> Fault {
        let (kind, what, _) = interpret(&source);
        Fault::from(Error::new(kind, format!("cannot connect: {what}")).because(source))
    }

    /// Of a step after one that took effect: whatever it says, something has been done.
    pub(crate) fn after_effect(self) -> Fault {
        Fault { error: self.error.with_effect(Effect::Unknown), ended: self.ended }
    }

    /// As the caller sees it.
    pub(crate) fn into_error(self) -> Error {
        self.error
    }

    /// The answer is not one to the request.
    pub(crate) fn unfit() -> Fault {
        Fault::of(Driver::UnexpectedError("the answer does not fit the request".to_owned()))
    }

    /// Too many did the same at the same time.
    pub(crate) fn too_busy() -> Fault {
        let message = "the line changed at every attempt; try again";
        Fault::from(Error::new(ErrorKind::Unavailable, message))
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault { error, ended: false }
    }
}

impl From<MultiWriteError> for Fault {
    fn from(error: MultiWriteError) -> Fault {
        Fault::of(error.into())
    }
}

/// What it is, in words, and whether the request may have been executed.
fn interpret(error: &Driver) -> (ErrorKind, &'static str, Effect) {
    use {Effect::*, ErrorKind::*};
    match error {
        Driver::NoAuth => (Denied, "the user may not do this to a node of ours", None),
        Driver::AuthFailed => (Denied, "the servers refused the user or the password", None),
        Driver::InvalidAcl => (Denied, "the servers do not take the rights that we give to our nodes", None),
        Driver::NoHosts => (Unavailable, "no server answers", None),
        Driver::NotReadOnly => (Unavailable, "the server is cut off from its ensemble and only reads", None),
        Driver::Throttled => (Unavailable, "the server is too busy", None),
        Driver::NoNode | Driver::NodeExists | Driver::BadVersion | Driver::RuntimeInconsistent => {
            (Unavailable, "someone else changed the same node; try again", None)
        }
        Driver::NotEmpty | Driver::NoChildrenForEphemerals => {
            (Corrupt, "a node of ours is used in a way that leasehold does not", None)
        }
        Driver::QuotaExceeded => (Limit, "the quota of the chroot is used up", None),
        Driver::MarshallingError => (Invalid, "the server could not read the request", None),
        Driver::Unimplemented => {
            (Unsupported, "the server is too old: ZooKeeper 3.6 or later is needed", None)
        }
        Driver::BadArguments(_) => (Invalid, "ZooKeeper does not take this path", None),
        Driver::SessionExpired | Driver::SessionMoved | Driver::ClientClosed => {
            (Unavailable, "the session is over, and all that it held", Unknown)
        }
        Driver::UnexpectedError(_) => {
            let what = "the answer belongs to another request; a pool or proxy on the way mixes up answers";
            (Unavailable, what, Unknown)
        }
        Driver::ConnectionLoss => (Unavailable, "the connection was lost", Unknown),
        Driver::Timeout => (Unavailable, "no answer in time", Unknown),
        _ => (Unavailable, "the connection failed", Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_has_a_meaning() {
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
        for (driver, kind, effect, ended) in table {
            let fault = Fault::of(driver.clone());
            assert_eq!(fault.ended, ended, "{driver:?}");
            let error = fault.into_error();
            assert_eq!((error.kind(), error.effect()), (kind, effect), "{driver:?}");
        }
    }
}

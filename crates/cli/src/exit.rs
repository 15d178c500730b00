//! How a command ends: the codes of our own, in one place, and why.

use std::process::ExitCode;

use leasehold::{Effect, Error, ErrorKind};

/// The codes of our own. Those of a command that ran are passed on as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// The command line makes no sense.
    Usage = 64,
    /// The backend does not answer.
    Unavailable = 69,
    /// A bug, or the host has no more of something.
    Internal = 70,
    /// Someone else holds it, and the wait is over.
    Busy = 75,
    /// An order was not carried out: the holder that it means is not there any more, or is alive.
    Refused = 77,
    /// The store, its credentials or the configuration are wrong.
    Config = 78,
    /// The lease was lost, and the command is dead.
    Lost = 79,
    /// The command is there but cannot be run.
    CannotRun = 126,
    /// There is no such command.
    NotFound = 127,
}

impl Exit {
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }
}

/// The code of a process that a signal ended, as shells have it.
pub(crate) fn by_signal(signal: i32) -> u8 {
    128 | u8::try_from(signal & 0x7f).unwrap_or(0)
}

/// Why a command came to nothing: for people in one line, for programs by kind.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) kind: &'static str,
    pub(crate) effect: Effect,
    pub(crate) message: String,
    /// What to do next.
    pub(crate) hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, kind: &'static str, message: impl Into<String>) -> Failure {
        Failure { code: exit.code(), kind, effect: Effect::None, message: message.into(), hint: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, "usage", message)
    }

    pub(crate) fn config(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Config, "config", message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Internal, "internal", message)
    }

    /// The host does not give us what every process may have.
    #[expect(clippy::needless_pass_by_value, reason = "for map_err")]
    pub(crate) fn host(error: std::io::Error) -> Failure {
        Failure::internal(format!("the host refused: {error}")).hint("free some processes, files or memory")
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// Ends with another code, as the caller of the program wished.
    #[must_use]
    pub(crate) fn with_code(mut self, code: u8) -> Failure {
        self.code = code;
        self
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let (exit, hint) = meaning(error.kind());
        Failure {
            code: exit.code(),
            kind: error.kind().as_str(),
            effect: error.effect(),
            message: error.to_string(),
            hint: hint.map(str::to_owned),
        }
    }
}

/// A message that says what to do itself needs no hint.
fn meaning(kind: ErrorKind) -> (Exit, Option<&'static str>) {
    match kind {
        ErrorKind::Contended => (Exit::Busy, Some("wait longer with -w, or try again later")),
        ErrorKind::Limit => (Exit::Busy, Some("ask for less, or try again when fewer wait")),
        ErrorKind::Lost => (Exit::Lost, Some("run it again")),
        ErrorKind::Invalid => (Exit::Usage, None),
        ErrorKind::Unavailable => (Exit::Unavailable, Some("see that the store works, then try again")),
        ErrorKind::Denied => (Exit::Config, Some("check the user, the password and the permissions")),
        ErrorKind::Corrupt => (Exit::Config, Some("check that --store names leasehold's own")),
        ErrorKind::Mismatch | ErrorKind::Unsupported | ErrorKind::GuaranteeTooWeak => (Exit::Config, None),
        _ => (Exit::Internal, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_error_has_its_code() {
        let table = [
            (ErrorKind::Contended, 75),
            (ErrorKind::Lost, 79),
            (ErrorKind::Invalid, 64),
            (ErrorKind::Mismatch, 78),
            (ErrorKind::Unsupported, 78),
            (ErrorKind::GuaranteeTooWeak, 78),
            (ErrorKind::Unavailable, 69),
            (ErrorKind::Denied, 78),
            (ErrorKind::Corrupt, 78),
            (ErrorKind::StaleToken, 70),
            (ErrorKind::ShutDown, 70),
            (ErrorKind::Limit, 75),
        ];
        for (kind, code) in table {
            assert_eq!(Failure::from(Error::new(kind, "x")).code, code, "{kind:?}");
        }
    }
}

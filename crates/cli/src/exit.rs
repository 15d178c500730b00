//! Exit codes of `leasehold` itself, and the error type of the program.

use std::process::ExitCode;

use leasehold::{Effect, Error, ErrorKind};

/// The exit codes of `leasehold` itself. The exit code of a command that ran is passed on unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// The command line is wrong.
    Usage = 64,
    /// The store does not reply.
    Unavailable = 69,
    /// A bug, or the host is out of processes, files or memory.
    Internal = 70,
    /// The resource is held by others, and the wait is over.
    Busy = 75,
    /// An order was refused: its holder has gone, or is alive.
    Refused = 77,
    /// The store URL, the credentials or the configuration are wrong.
    Config = 78,
    /// The lease was lost, and the command is dead.
    Lost = 79,
    /// The command exists but cannot be run.
    CannotRun = 126,
    /// There is no such command.
    NotFound = 127,
}

impl Exit {
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }
}

/// The exit code of a process that was killed by a signal, as in shells: 128 + n.
pub(crate) fn by_signal(signal: i32) -> u8 {
    128 | u8::try_from(signal & 0x7f).unwrap_or(0)
}

/// Why `leasehold` failed. Printed as one line, `message: hint`, or as a JSON object.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// A stable name of the kind of error, for programs.
    pub(crate) kind: &'static str,
    /// Whether the store may have carried out the request all the same.
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

    /// The operating system refused something that every process may normally have.
    #[expect(clippy::needless_pass_by_value, reason = "for map_err")]
    pub(crate) fn host(error: std::io::Error) -> Failure {
        Failure::internal(format!("the operating system refused a resource: {error}"))
            .hint("check the limits on processes, open files and memory")
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// The same error with another exit code.
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
        let message = error.to_string();
        let hint = hint.filter(|_| error.kind() != ErrorKind::Denied || !says_what_to_do(&message));
        Failure {
            code: exit.code(),
            kind: error.kind().as_str(),
            effect: error.effect(),
            message,
            hint: hint.map(str::to_owned),
        }
    }
}

/// Whether the message of a backend ends with advice, such as `: check the login in the URL`. Then a hint would only repeat it.
fn says_what_to_do(message: &str) -> bool {
    const ADVICE: [&str; 9] = [
        "add ",
        "check ",
        "connect as ",
        "grant ",
        "if the server requires ",
        "name ",
        "run as ",
        "set ",
        "write ",
    ];
    let parts =
        message.match_indices([':', ';']).filter_map(|(at, _)| message.get(at + 1..)?.strip_prefix(' '));
    parts.into_iter().any(|part| ADVICE.iter().any(|start| part.starts_with(start)))
}

/// The exit code and the hint for a kind of error of the library. `None` where the message itself says what
/// to do.
fn meaning(kind: ErrorKind) -> (Exit, Option<&'static str>) {
    match kind {
        ErrorKind::Contended => (Exit::Busy, Some("wait longer with -w, or try again later")),
        ErrorKind::Limit => (Exit::Busy, Some("ask for less, or try again later when fewer claims wait")),
        ErrorKind::Lost => (Exit::Lost, Some("run it again")),
        ErrorKind::Invalid => (Exit::Usage, None),
        ErrorKind::Unavailable => {
            (Exit::Unavailable, Some("check that the store is running and reachable, then try again"))
        }
        ErrorKind::Denied => {
            (Exit::Config, Some("check the user, the password, the permissions and the certificates"))
        }
        ErrorKind::Corrupt => (
            Exit::Config,
            Some("check that --store names a store of leasehold, and what the message names in it"),
        ),
        ErrorKind::Mismatch | ErrorKind::Unsupported | ErrorKind::GuaranteeTooWeak => (Exit::Config, None),
        _ => (Exit::Internal, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_error_has_its_exit_code() {
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

    #[test]
    fn a_refusal_that_says_what_to_do_has_no_further_hint() {
        let hint = |message| Failure::from(Error::new(ErrorKind::Denied, message)).hint;
        for message in [
            "etcd wants a user and a password: write etcd://user:password@host",
            "the servers refused the user or the password: check the login in the URL",
            "the server's certificate is not trusted: self-signed, or of an unknown issuer; name its CA with ca_file=FILE",
            "no entry in pg_hba.conf: if the server requires TLS, add sslmode=require to the URL",
            "permission denied for schema: grant the rights that `leasehold schema postgres` names",
        ] {
            assert_eq!(hint(message), None, "{message}");
        }
        for message in ["redis h:6379: the server wants a password", "the server's certificate has expired"] {
            assert!(hint(message).unwrap().starts_with("check the user"), "{message}");
        }
    }

    #[test]
    fn a_resource_without_further_tokens_is_78_and_not_to_be_tried_again() {
        let last = leasehold::FencingToken::new((1 << 53) - 1).unwrap();
        let failure = Failure::from(leasehold::FencingToken::mint(Some(last), 0, None).unwrap_err());
        assert_eq!(failure.code, 78);
        assert!(!failure.hint.unwrap().contains("try again"));
    }
}

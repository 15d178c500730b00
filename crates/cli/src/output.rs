//! Printing: results go to stdout; notes and errors go to stderr, one line each. Secrets are removed from
//! every line.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use clap::error::{ContextKind, ContextValue};

use crate::{
    args::Global,
    exit::{Exit, Failure},
    redact, terminal, text,
};

/// How much is printed, and in which form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
    pub(crate) json: bool,
}

impl Output {
    pub(crate) fn new(global: &Global) -> Output {
        Output { quiet: global.quiet, verbose: global.verbose > 0, json: global.json }
    }

    /// Whether to print notes about progress: with `-v`, or if a person may be looking at stderr.
    pub(crate) fn shows_progress(self) -> bool {
        !self.quiet && (self.verbose || io::stderr().is_terminal())
    }

    /// Prints a note on stderr, unless `--quiet` is set.
    pub(crate) fn note(self, line: &str) {
        if !self.quiet {
            to_stderr(&format!("leasehold: {line}"));
        }
    }

    /// Prints an error on stderr and returns its exit code.
    pub(crate) fn fail(self, failure: &Failure) -> ExitCode {
        to_stderr(&if self.json { as_json(failure) } else { as_line(failure) });
        failure.exit_code()
    }
}

/// Prints a result on stdout. If the reader has closed the pipe (`| head -1`), that is no error.
pub(crate) fn print(text: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::internal(format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// The most columns of a typed value in an error.
const TYPED_MAX: usize = 60;
/// The most columns of an error in the command line.
const MESSAGE_MAX: usize = 400;

/// Handles an error of clap: prints an error in the command line as one line, and help or the version on
/// stdout.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return print(error.render().to_string().as_bytes())
            .map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    // clap suggests `--` to pass a value that starts with a dash. In `leasehold run` a `--` starts the
    // command instead.
    let unhelpful = ["For more information", "tip: to pass"];
    let lines = lines.filter(|line| !unhelpful.iter().any(|start| line.starts_with(start)));
    let message = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    // The typed value may be very long.
    let message = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(typed)) if !typed.is_empty() => {
            message.replace(typed, &text::cut(typed, TYPED_MAX))
        }
        _ => message.to_owned(),
    };
    let message = text::cut(&message, MESSAGE_MAX);
    let hint = if text.contains("--help") { Some("see --help".to_owned()) } else { None };
    let failure = Failure { hint, ..Failure::usage(message) };
    let output =
        Output { quiet: false, verbose: false, json: std::env::args_os().any(|arg| arg == "--json") };
    debug_assert_eq!(failure.code, Exit::Usage.code());
    output.fail(&failure)
}

fn as_line(failure: &Failure) -> String {
    let mut line = format!("leasehold: {}", failure.message);
    if let Some(hint) = &failure.hint {
        line.push_str(": ");
        line.push_str(hint);
    }
    line
}

fn as_json(failure: &Failure) -> String {
    let effect = failure.effect.as_str();
    let (kind, message, hint, code) = (failure.kind, &failure.message, &failure.hint, failure.code);
    serde_json::json!({ "error": {
        "kind": kind, "effect": effect, "message": message, "hint": hint, "exit_code": code,
    } })
    .to_string()
}

/// Writes one line to stderr. Line breaks and control characters become spaces. It is a single write, so that
/// lines of several processes do not mix.
fn to_stderr(text: &str) {
    let mut line: String =
        redact::redact(text).chars().map(|c| if text::is_unsafe(c) { ' ' } else { c }).collect();
    line.push('\n');
    // An error is ignored: stderr may be closed, and there is no other place to report it.
    let _ = terminal::without_sigttou(|| io::stderr().write_all(line.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_of_text_or_a_json_object() {
        let failure = Failure::config("no\nsuch store").hint("write sqlite:PATH");
        assert_eq!(as_line(&failure), "leasehold: no\nsuch store: write sqlite:PATH");
        let json: serde_json::Value = serde_json::from_str(&as_json(&failure)).unwrap();
        assert_eq!(json["error"]["kind"], "config");
        assert_eq!(json["error"]["effect"], "none");
        assert_eq!(json["error"]["exit_code"], 78);
    }
}

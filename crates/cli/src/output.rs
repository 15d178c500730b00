//! Printing: results go to stdout; notes and errors go to stderr, one line each. Secrets are removed from
//! every line.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use clap::error::{ContextKind, ContextValue};
use leasehold::ErrorKind;

use crate::{
    args::{Cli, Global},
    exit::{Exit, Failure},
    help, redact, status_line, terminal, text,
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
        if self.prints(failure) {
            to_stderr(&if self.json { as_json(failure) } else { as_line(failure) });
        }
        failure.exit_code()
    }

    /// A resource that is held is no error for a caller who said so, with `--quiet` or `-E 0`: cron mails whatever is printed.
    fn prints(self, failure: &Failure) -> bool {
        let is_busy = failure.kind == ErrorKind::Contended.as_str();
        !is_busy || (!self.quiet && (self.json || failure.code != 0))
    }

    /// Prints an object on stderr that says what `run` did instead of running the command, or the text for people.
    pub(crate) fn outcome(self, text: &str, object: impl FnOnce() -> serde_json::Value) {
        match self.json {
            true if !self.quiet => to_stderr(&object().to_string()),
            true => {}
            false => self.note(text),
        }
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

/// Prints the short help: nothing was typed but the name of the program.
pub(crate) fn short_help() -> ExitCode {
    let _ = io::stderr().write_all(help::short(&Cli::definition()).as_bytes()); // stderr may be closed
    ExitCode::from(Exit::Usage.code())
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
    if let Some(variable) = empty_variable(error) {
        let failure = Failure::usage(format!("the variable {variable} is empty"))
            .hint("unset it to use the default, or give it a value");
        return as_typed().fail(&failure);
    }
    let hint = if text.contains("--help") { Some("see --help".to_owned()) } else { None };
    let failure = Failure { hint, ..Failure::usage(message) };
    debug_assert_eq!(failure.code, Exit::Usage.code());
    as_typed().fail(&failure)
}

/// For errors in a command line that cannot be parsed.
fn as_typed() -> Output {
    Output { quiet: false, verbose: false, json: std::env::args_os().any(|arg| arg == "--json") }
}

/// The variable that is set and empty, if that is why the option has a wrong value. A shell sets such a
/// variable from another one that is not set.
fn empty_variable(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return None };
    let name = option.strip_prefix("--")?.split(' ').next()?;
    let variable = format!("LEASEHOLD_{}", name.to_uppercase().replace('-', "_"));
    std::env::var_os(&variable).is_some_and(|value| value.is_empty()).then_some(variable)
}

fn as_line(failure: &Failure) -> String {
    let mut line = format!("leasehold: {}", failure.message);
    match &failure.hint {
        // A hint that starts with a capital is a sentence.
        Some(hint) if hint.starts_with(char::is_uppercase) => line.push_str(&format!(". {hint}.")),
        Some(hint) => line.push_str(&format!(": {hint}")),
        None => {}
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
    line.insert_str(0, status_line::erasing());
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
        let sentence = Failure::config("no such store").hint("Write sqlite:PATH");
        assert_eq!(as_line(&sentence), "leasehold: no such store. Write sqlite:PATH.");
        let json: serde_json::Value = serde_json::from_str(&as_json(&failure)).unwrap();
        assert_eq!(json["error"]["kind"], "config");
        assert_eq!(json["error"]["effect"], "none");
        assert_eq!(json["error"]["exit_code"], 78);
    }
}

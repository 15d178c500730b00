//! What is said, and where: answers on stdout, everything else on stderr, a line each, never a secret.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use clap::error::{ContextKind, ContextValue};
use leasehold::Effect;

use crate::{
    args::Global,
    exit::{Exit, Failure},
    secret, terminal, text,
};

/// How much is said, and for whom.
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

    /// Whether a person watches.
    pub(crate) fn is_watched(self) -> bool {
        !self.quiet && (self.verbose || io::stderr().is_terminal())
    }

    /// Says something that is no error.
    pub(crate) fn say(self, line: &str) {
        if !self.quiet {
            to_stderr(&format!("leasehold: {line}"));
        }
    }

    /// Says why it came to nothing.
    pub(crate) fn fail(self, failure: &Failure) -> ExitCode {
        to_stderr(&if self.json { as_json(failure) } else { as_line(failure) });
        failure.exit_code()
    }
}

/// Answers. A reader that has had enough is no error.
pub(crate) fn print(text: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::internal(format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// Says what is wrong with the command line; prints help and the version, which are wishes.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return print(error.render().to_string().as_bytes())
            .map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    // After a `--` comes the command to run: that is no way to pass a value here.
    let idle = ["For more information", "tip: to pass"];
    let lines = lines.filter(|line| !idle.iter().any(|idle| line.starts_with(idle)));
    let message = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    // What was typed may be as long as it likes.
    let message = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(typed)) if !typed.is_empty() => {
            message.replace(typed, &text::cut(typed, 60))
        }
        _ => message.to_owned(),
    };
    let message = text::cut(&message, 400);
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
    let effect = match failure.effect {
        Effect::None => "none",
        Effect::Unknown => "unknown",
    };
    let (kind, message, hint, code) = (failure.kind, &failure.message, &failure.hint, failure.code);
    serde_json::json!({ "error": {
        "kind": kind, "effect": effect, "message": message, "hint": hint, "exit_code": code,
    } })
    .to_string()
}

/// One line, whatever is in the text, in one write: lines of several processes do not mix.
fn to_stderr(said: &str) {
    let mut line: String =
        secret::scrub(said).chars().map(|c| if text::is_unsafe(c) { ' ' } else { c }).collect();
    line.push('\n');
    // Nobody may be listening any more: then there is nobody to tell.
    let _ = terminal::undisturbed(|| io::stderr().write_all(line.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_for_people_and_an_object_for_programs() {
        let failure = Failure::config("no\nsuch store").hint("write sqlite:PATH");
        assert_eq!(as_line(&failure), "leasehold: no\nsuch store: write sqlite:PATH");
        let json: serde_json::Value = serde_json::from_str(&as_json(&failure)).unwrap();
        assert_eq!(json["error"]["kind"], "config");
        assert_eq!(json["error"]["effect"], "none");
        assert_eq!(json["error"]["exit_code"], 78);
    }
}

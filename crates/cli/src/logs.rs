//! The log on stderr, for `-v` and `--log-format`.

use std::io::{self, Write};

use tracing::Level;
use tracing_subscriber::fmt;

use crate::{
    args::{Global, LogFormat},
    exit::Failure,
    redact,
};

/// Starts the log if `-v` or `--log-format` asks for it.
pub(crate) fn start(global: &Global) -> Result<(), Failure> {
    let level = match global.verbose {
        0 if global.log_format.is_none() => return Ok(()),
        0 => Level::WARN,
        1 => Level::INFO,
        2 => Level::DEBUG,
        _ => Level::TRACE,
    };
    let log = fmt().with_max_level(level).with_writer(|| RedactedStderr).with_ansi(false).with_target(false);
    let started = match global.log_format.unwrap_or(LogFormat::Text) {
        LogFormat::Text => tracing::subscriber::set_global_default(log.finish()),
        LogFormat::Json => tracing::subscriber::set_global_default(log.json().flatten_event(true).finish()),
    };
    started.map_err(|error| Failure::internal(format!("cannot start the log: {error}")))
}

/// Stderr, with secrets removed. The subscriber writes each event in one call.
struct RedactedStderr;

impl Write for RedactedStderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(redact::redact(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

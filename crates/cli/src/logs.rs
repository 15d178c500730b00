//! The log, for those who ask for one.

use std::io::{self, Write};

use tracing::Level;
use tracing_subscriber::fmt;

use crate::{
    args::{Global, LogFormat},
    exit::Failure,
    secret,
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
    let log = fmt().with_max_level(level).with_writer(|| Scrubbed).with_ansi(false).with_target(false);
    let started = match global.log_format.unwrap_or(LogFormat::Text) {
        LogFormat::Text => tracing::subscriber::set_global_default(log.finish()),
        LogFormat::Json => tracing::subscriber::set_global_default(log.json().flatten_event(true).finish()),
    };
    started.map_err(|error| Failure::internal(format!("cannot start the log: {error}")))
}

/// Stderr, without secrets. Each event comes as one write.
struct Scrubbed;

impl Write for Scrubbed {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(secret::scrub(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

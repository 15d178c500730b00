//! The log on stderr, for `-v` and `--log-format`.
//!
//! | option | what is logged |
//! |---|---|
//! | `--log-format` alone, and none for `serve` without `--demo` | warnings: losses, failed renewals, evictions, files that cannot be read |
//! | `-v` | also what happens to leases: grants, renewals, releases |
//! | `-vv` | also every request to the store, with the time that it took |
//! | `-vvv` | everything, also of the libraries below |

use std::io::{self, Write};

use tracing::{Level, Metadata};
use tracing_subscriber::{
    Layer, Registry,
    filter::filter_fn,
    fmt::{self, format::FmtSpan},
    layer::SubscriberExt as _,
};

use crate::{
    args::{Command, Global, LogFormat},
    exit::Failure,
    redact, status_line, traces,
};

/// Starts the log if `-v` or `--log-format` asks for it, and traces if the environment does.
pub(crate) fn start(global: &Global, command: &Command) -> Result<(), Failure> {
    let layers: Vec<_> = log(global, command).into_iter().chain(traces::layer(command)?).collect();
    if layers.is_empty() {
        return Ok(());
    }
    let started = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layers));
    started.map_err(|error| Failure::internal(format!("cannot start the log: {error}")))
}

fn log(global: &Global, command: &Command) -> Option<Box<dyn Layer<Registry> + Send + Sync>> {
    let verbose = global.verbose;
    // A server has no other way to say that its tokens cannot be read, for example. In a demonstration, leases are lost on purpose.
    let warns = matches!(command, Command::Serve(serve) if !serve.is_demo()) && !global.quiet;
    if verbose == 0 && global.log_format.is_none() && !warns {
        return None;
    }
    let filter = filter_fn(move |metadata| is_shown(metadata, verbose));
    // A request is a span: it is logged when it ends.
    let spans = if verbose >= 2 { FmtSpan::CLOSE } else { FmtSpan::NONE };
    let log = fmt::layer().with_writer(|| RedactedStderr).with_ansi(false).with_target(false);
    Some(match global.log_format.unwrap_or(LogFormat::Text) {
        LogFormat::Text => log.with_span_events(spans).with_filter(filter).boxed(),
        LogFormat::Json => log.json().flatten_event(true).with_span_events(spans).with_filter(filter).boxed(),
    })
}

/// The target of what the engine reports about leases and requests. Grants and renewals are on the level DEBUG there, because in a
/// program that uses the library there are many of them.
const ENGINE: &str = "leasehold";

fn is_shown(metadata: &Metadata<'_>, verbose: u8) -> bool {
    let is_ours = metadata.target() == ENGINE || metadata.target().starts_with("leasehold_");
    let most = match verbose {
        0 => Level::WARN,
        1 if metadata.target() == ENGINE && metadata.is_event() => Level::DEBUG,
        2 if is_ours => Level::DEBUG,
        1 | 2 => Level::INFO,
        _ => Level::TRACE,
    };
    *metadata.level() <= most
}

/// Stderr, with secrets removed. The subscriber writes each event in one call.
struct RedactedStderr;

impl Write for RedactedStderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let line_text = String::from_utf8_lossy(line);
        let text = format!("{}{}", status_line::erasing(), redact::redact(&line_text));
        io::stderr().write_all(text.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

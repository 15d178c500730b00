//! Shows how long something still takes: on a terminal in a line that is kept up to date, elsewhere in a line at
//! the start.

use std::time::Duration;

use crate::{output::Output, status_line::StatusLine, text};

/// Shows how long something still takes. A line on a terminal is removed when this is dropped.
pub(crate) struct Countdown {
    output: Output,
    what: String,
    line: Option<StatusLine>,
    shown: Option<u64>,
}

impl Countdown {
    /// `what` is a sentence without its end: `watching X, to see whether it renews`.
    pub(crate) fn new(output: Output, what: String) -> Countdown {
        let line = if output.quiet { None } else { StatusLine::on_stderr() };
        Countdown { output, what, line, shown: None }
    }

    /// Shows that it takes at most this long from now.
    pub(crate) fn show(&mut self, left: Duration) {
        let seconds = left.as_millis().div_ceil(1000) as u64;
        if self.shown == Some(seconds) {
            return;
        }
        let is_first = self.shown.replace(seconds).is_none();
        let span = text::span(Duration::from_secs(seconds));
        match &self.line {
            Some(line) => line.draw(&format!("{span} left: {}", self.what)),
            None if is_first => self.output.note(&format!("{} (up to {span})", self.what)),
            None => {}
        }
    }
}
